"""``score_all``: scores of all texts with all videos, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method, evaluating
from eaglenet.scoring.scorer import Scorer, choose


@dataclass(frozen=True)
class TopK:
    """Best videos of each text, best first."""

    scores: Tensor
    """``[texts, k]`` float32."""
    videos: Tensor
    """``[texts, k]`` int64 indices of videos."""


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: str = ...,
    pair_noise: int | None = ...,
    tile_texts: int | None = ...,
    tile_videos: int | None = ...,
    top_k: None = ...,
    progress: Progress | None = ...,
) -> Tensor: ...


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: str = ...,
    pair_noise: int | None = ...,
    tile_texts: int | None = ...,
    tile_videos: int | None = ...,
    top_k: int,
    progress: Progress | None = ...,
) -> TopK: ...


@torch.no_grad()
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = "auto",
    precision: str = "fp32",
    pair_noise: int | None = None,
    tile_texts: int | None = None,
    tile_videos: int | None = None,
    top_k: int | None = None,
    progress: Progress | None = None,
) -> Tensor | TopK:
    """Return float32 scores ``[texts, videos]`` on the device of the features.

    Args:
        backend: ``reference`` (``score`` of the method, for any method), ``factorised`` (plain
            PyTorch; computes once per video what depends on the video alone), ``kernel``
            (Triton), or ``auto``.
        precision: ``fp32`` (within 1e-5 of the reference) or ``bf16`` (within 3e-3).
        pair_noise: seed of separate noise for each pair, for methods that score with random
            candidates; by default all pairs share the noise stored with the model.
        tile_texts, tile_videos: size of a tile; the default depends on the back end.
        top_k: return the best videos of each text, without building the matrix.
        progress: called after every tile with the number of scored pairs and of all pairs.
    """
    if len(text) == 0 or len(video) == 0:
        raise UsageError(
            f"{len(text)} texts and {len(video)} videos to score; pass at least one of each"
        )
    if video.frames.shape[1] == 0:
        raise UsageError("videos of 0 frames have no scores; each needs at least one frame")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k is {top_k}; it must be 1 or more")
    with evaluating(method):
        scorer = choose(method, video, backend=backend, precision=precision, pair_noise=pair_noise)
        tile = (
            scorer.tile_texts if tile_texts is None else tile_texts,
            scorer.tile_videos if tile_videos is None else tile_videos,
        )
        if min(tile) < 1:
            raise UsageError(f"tiles of {tile[0]} texts x {tile[1]} videos; both must be 1 or more")
        scorer.calibrate(text, video)
        tiles = _score_tiles(scorer, text, video, tile, progress)
        if top_k is not None:
            return _best_videos(tiles, top_k)
        matrix = torch.empty(len(text), len(video), device=video.frames.device)
        for texts, videos, scores in tiles:
            matrix[texts, videos] = scores
        return matrix


def _score_tiles(
    scorer: Scorer,
    text: TextFeatures,
    video: VideoFeatures,
    tile: tuple[int, int],
    progress: Progress | None,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the scores of all tiles; videos are the outer loop, so each is prepared once."""
    for videos in _spans(len(video), tile[1]):
        prepared_videos = scorer.prepare(video[videos])
        for texts in _spans(len(text), tile[0]):
            yield texts, videos, scorer.score(text[texts], prepared_videos)
            num_pairs = videos.start * len(text) + texts.stop * (videos.stop - videos.start)
            report_progress(progress, "scoring pairs", num_pairs, len(text) * len(video))


def _best_videos(tiles: Iterator[tuple[slice, slice, Tensor]], count: int) -> TopK:
    """Merge each tile with the best videos of its texts so far."""
    best: dict[int, TopK] = {}  # By the first text of a tile.
    for texts, videos, scores in tiles:
        columns = torch.arange(videos.start, videos.stop, device=scores.device)
        columns = columns.expand(len(scores), -1)
        if texts.start in best:
            previous_best = best[texts.start]
            scores = torch.cat([previous_best.scores, scores], dim=1)
            columns = torch.cat([previous_best.videos, columns], dim=1)
        top = scores.topk(min(count, scores.shape[1]), dim=1)
        best[texts.start] = TopK(top.values, columns.gather(1, top.indices))
    return TopK(
        torch.cat([each.scores for each in best.values()]),
        torch.cat([each.videos for each in best.values()]),
    )


def _spans(total: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
