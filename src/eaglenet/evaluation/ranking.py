"""Score all pairs block by block and rank both directions, alone or with other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.evaluation.metrics import Metrics, StreamingRanks
from eaglenet.evaluation.options import MAX_SCORES
from eaglenet.methods.base import Method
from eaglenet.progress import Progress, Work, tell
from eaglenet.scoring import score_all
from eaglenet.types import TextFeatures, VideoFeatures


@dataclass(frozen=True)
class Share:
    """One process of several: it encodes every ``size``-th row and scores its part of the videos.

    ``total`` sums a tensor over all of them; ``gather`` gives all rows, in order, of features of
    which each has its own.
    """

    rank: int
    size: int
    total: Callable[[Tensor], Tensor]
    gather: Callable[[Any, int], Any]

    def videos(self, count: int) -> range:
        """Neighbouring videos, as even as can be."""
        edges = [count * place // self.size for place in (self.rank, self.rank + 1)]
        return range(*edges)


def rank_pairs(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    video_of_text: Int[Tensor, "texts"],
    *,
    max_scores: int = MAX_SCORES,
    share: Share | None = None,
    scores_file: Path | None = None,
    ranks_file: Path | None = None,
    bias: Float[Tensor, "videos"] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Metrics:
    """Metrics of all pairs; memory grows with texts + videos, never their product.

    Blocks are whole columns where they fit, so that video-side work is done once.

    Args:
        max_scores: scores held at once.
        share: this process's part; every process gets the metrics of all.
        scores_file: also write the matrix there, ``[texts, videos]`` as given (not with a share).
        ranks_file: also write the rank of every query there.
        bias: added to all scores of a video.
        progress: told the scores made and all scores of this process.
        settings: of :func:`score_all`.
    """
    order = video_of_text.argsort(stable=True)
    text = text[order.to(text.sentence.device)]
    sorted_video = video_of_text[order].cpu()
    ranks = StreamingRanks(sorted_video, len(video))
    own = range(len(video)) if share is None else share.videos(len(video))
    matrix: NDArray[np.float32] | None = None
    if scores_file is not None:
        shape = (len(text), len(video))
        matrix = np.lib.format.open_memmap(scores_file, mode="w+", dtype=np.float32, shape=shape)

    scored = 0

    def block(texts: slice, videos: slice, *, shown: bool = True) -> Tensor:
        nonlocal scored
        before = scored

        def advance(work: Work) -> None:
            tell(progress, work.title, before + work.done, len(text) * len(own))

        told = advance if shown else None
        scores: Tensor = score_all(method, text[texts], video[videos], progress=told, **settings)
        if bias is not None:
            scores = scores + bias[videos].to(scores.device)
        scored += scores.numel() if shown else 0
        return scores

    def count(tile: Tensor, text_start: int, video_start: int) -> None:
        ranks.add(tile, text_start, video_start)
        if matrix is not None:
            rows = order[text_start : text_start + tile.shape[0]].numpy()
            matrix[rows, video_start : video_start + tile.shape[1]] = tile.cpu().numpy()

    text_step = min(len(text), max_scores)
    video_step = min(max(len(own), 1), max(1, max_scores // text_step))
    fits = text_step == len(text) and video_step >= len(own)
    kept = block(slice(None), slice(own.start, own.stop)) if fits and own else None
    if kept is not None:
        ranks.add_targets(kept, 0, own.start)
    else:
        # The right pairs first: texts are sorted by video, so those of a video block lie together.
        for start in own[::video_step]:
            stop = min(start + video_step, own.stop)
            first, last = torch.searchsorted(sorted_video, torch.tensor([start, stop])).tolist()
            for row in range(first, last, text_step):
                rows = slice(row, min(row + text_step, last))
                right = block(rows, slice(start, stop), shown=False)
                ranks.add_targets(right, row, start)
    if share is not None:
        ranks.share_targets(share.total)
    if kept is not None:
        count(kept, 0, own.start)
    else:
        for start in own[::video_step]:
            videos = slice(start, min(start + video_step, own.stop))
            for row in range(0, len(text), text_step):
                count(block(slice(row, row + text_step), videos), row, start)
    if share is not None:
        ranks.share_counts(share.total)
    if ranks_file is not None and (share is None or share.rank == 0):
        text_ranks, video_ranks = ranks.ranks()
        given = torch.empty_like(text_ranks)
        given[order] = text_ranks
        np.savez_compressed(
            ranks_file,
            t2v=given.numpy(),
            v2t=video_ranks.numpy(),
            video_of_text=video_of_text.cpu().numpy(),
        )
    return ranks.metrics()
