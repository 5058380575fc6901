"""Recall, median and mean rank of scores ``[texts, videos]``, in bounded memory.

- A rank is 1 plus the number of other candidates whose score is at least that of the right one:
  ties count against the model. ``ties="for"`` counts them for the model, as in many published
  numbers.
- ``video_of_text`` is the index of the video of each text. A video may have several texts, or none:
  then it is a candidate, but not a query.
- Text to video: every text is a query, all videos are candidates.
- Video to text: every video with texts is a query. The candidates are the groups of texts of each
  video; a group has the score of its best text (the usual multi-sentence protocol). With one text
  per video this is the plain transpose.
- NaN and infinite scores raise :class:`NonFiniteError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.core.files import atomic_write
from eaglenet.core.progress import Progress, ProgressUpdate, report_progress
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.scoring import check_choice, score_all

Ties = Literal["against", "for"]
RECALL_AT = (1, 5, 10)
STRIP_ENTRIES = 1 << 24
"""Scores compared at once; limits temporary memory to about 200 MB."""


@dataclass(frozen=True)
class DirectionMetrics:
    """Metrics of one direction; recalls in percent, ranks from 1."""

    recall_at_1: float
    recall_at_5: float
    recall_at_10: float
    median_rank: float
    mean_rank: float
    num_queries: int

    @property
    def recall_sum(self) -> float:
        return self.recall_at_1 + self.recall_at_5 + self.recall_at_10

    def to_dict(self) -> dict[str, float | int]:
        """Return the metrics by their usual names in tables."""
        return {
            "R@1": self.recall_at_1,
            "R@5": self.recall_at_5,
            "R@10": self.recall_at_10,
            "MdR": self.median_rank,
            "MnR": self.mean_rank,
            "Rsum": self.recall_sum,
            "queries": self.num_queries,
        }


@dataclass(frozen=True)
class Metrics:
    """Metrics of both directions; ``rsum`` is the sum of the six recalls."""

    t2v: DirectionMetrics
    v2t: DirectionMetrics

    @property
    def rsum(self) -> float:
        return self.t2v.recall_sum + self.v2t.recall_sum

    def to_dict(self) -> dict[str, Any]:
        return {"t2v": self.t2v.to_dict(), "v2t": self.v2t.to_dict(), "Rsum": self.rsum}


def summarize_ranks(ranks: Int[Tensor, "queries"]) -> DirectionMetrics:
    """Compute recalls, median and mean of ranks."""
    if len(ranks) == 0:
        raise UsageError("no query to summarize: the split has no text; check the annotations")
    values = ranks.cpu().numpy()
    recall_at_1, recall_at_5, recall_at_10 = (
        100.0 * float(np.mean(values <= cutoff)) for cutoff in RECALL_AT
    )
    return DirectionMetrics(
        recall_at_1,
        recall_at_5,
        recall_at_10,
        median_rank=float(np.median(values)),
        mean_rank=float(np.mean(values)),
        num_queries=len(values),
    )


class StreamingRanks:
    """Ranks from tiles of the score matrix, in memory proportional to texts + videos.

    First pass the tiles that contain right pairs to :meth:`add_targets`, then every tile of the
    matrix once to :meth:`add`. ``video_of_text`` must be sorted, and the tiles of each column must
    be added in the order of the texts: the texts of a video are then adjacent, and one flag per
    column records whether the current group has beaten the right one.
    """

    def __init__(
        self, video_of_text: Int[Tensor, "texts"], num_videos: int, ties: Ties = "against"
    ) -> None:
        check_video_of_text(video_of_text, num_videos)
        self._beats = torch.ge if ties == "against" else torch.gt
        self.video_of_text = video_of_text.cpu().long()
        if bool((self.video_of_text.diff() < 0).any()):
            raise UsageError("StreamingRanks needs texts sorted by video: sort them, then stream")
        num_texts = len(video_of_text)
        self.num_videos = num_videos
        self.text_target = torch.full((num_texts,), float("nan"), dtype=torch.float64)
        self.video_target = torch.full((num_videos,), float("-inf"), dtype=torch.float64)
        self.text_rank = torch.ones(num_texts, dtype=torch.long)
        self.video_rank = torch.ones(num_videos, dtype=torch.long)
        self._open_group = torch.full((num_videos,), -1, dtype=torch.long)
        self._open_beats = torch.zeros(num_videos, dtype=torch.bool)
        self._next_text = torch.zeros(num_videos, dtype=torch.long)

    def add_targets(
        self, tile: Float[Tensor, "texts videos"], text_start: int = 0, video_start: int = 0
    ) -> None:
        """Store the scores of the right pairs in one tile."""
        tile = self._check(tile, text_start, video_start)
        columns = self.video_of_text[text_start : text_start + tile.shape[0]] - video_start
        rows = ((columns >= 0) & (columns < tile.shape[1])).nonzero()[:, 0]
        values = tile[rows, columns[rows]].double()
        self.text_target[text_start + rows] = values
        self.video_target.scatter_reduce_(0, video_start + columns[rows], values, reduce="amax")

    def add(
        self, tile: Float[Tensor, "texts videos"], text_start: int = 0, video_start: int = 0
    ) -> None:
        """Count the candidates in one tile that beat the right ones."""
        tile = self._check(tile, text_start, video_start)
        columns = slice(video_start, video_start + tile.shape[1])
        if bool((self._next_text[columns] != text_start).any()):
            raise UsageError(
                f"tile at text {text_start}, video {video_start} is out of order: add the tiles of "
                "each column once, from the first text to the last"
            )
        strip = max(1, STRIP_ENTRIES // tile.shape[1])
        for start in range(0, tile.shape[0], strip):
            self._add_strip(tile[start : start + strip], text_start + start, columns)
        self._next_text[columns] += tile.shape[0]

    def _add_strip(
        self, tile: Float[Tensor, "texts videos"], text_start: int, columns: slice
    ) -> None:
        rows = slice(text_start, text_start + tile.shape[0])
        group = self.video_of_text[rows]
        target = self.text_target[rows]
        if bool(target.isnan().any()):
            text = text_start + int(target.isnan().nonzero()[0, 0])
            raise UsageError(f"text {text} has no target yet: call add_targets before add")
        target_rows = ((group >= columns.start) & (group < columns.stop)).nonzero()[:, 0]
        target_columns = group[target_rows] - columns.start
        beats_text = self._beats(tile, target.to(tile.dtype)[:, None])
        beats_text[target_rows, target_columns] = False  # A target does not compete with itself.
        self.text_rank[rows] += beats_text.sum(dim=1)
        beats_video = self._beats(tile, self.video_target[columns].to(tile.dtype)[None, :])
        beats_video[target_rows, target_columns] = False
        self._count_groups(beats_video, group, columns)

    def _count_groups(
        self,
        beats: Bool[Tensor, "texts videos"],
        group: Int[Tensor, "texts"],
        columns: slice,
    ) -> None:
        """Add 1 to the rank of a column for each group with a text that beats its target."""
        ids, local = torch.unique_consecutive(group, return_inverse=True)
        group_beats = beats
        if len(ids) < len(group):
            counts = torch.zeros(len(ids), beats.shape[1], dtype=torch.int32)
            group_beats = counts.index_add_(0, local, beats.int()) > 0
        is_continued = self._open_group[columns] == ids[0]
        open_beats = self._open_beats[columns]
        self.video_rank[columns] += open_beats & ~is_continued
        group_beats[0] |= open_beats & is_continued
        self.video_rank[columns] += group_beats[:-1].sum(dim=0)
        self._open_group[columns] = ids[-1]
        self._open_beats[columns] = group_beats[-1]

    def _check(
        self, tile: Float[Tensor, "texts videos"], text_start: int, video_start: int
    ) -> Float[Tensor, "texts videos"]:
        raise_if_not_finite(tile, text_start, video_start)
        return tile.detach().cpu()

    def join_targets(self, total: Callable[[Tensor], Tensor]) -> None:
        """Add the targets of other processes, which score other columns.

        ``total`` sums a tensor over all processes.
        """
        self.text_target = total(self.text_target.nan_to_num(nan=0.0))

    def join_counts(self, total: Callable[[Tensor], Tensor]) -> None:
        """Add the counts of other processes, after all have added their columns."""
        self.text_rank = total(self.text_rank - 1) + 1
        self.video_rank = total(self.video_rank - 1) + 1
        self._open_beats = total(self._open_beats.long()) > 0
        self._next_text = total(self._next_text)

    def metrics(self) -> Metrics:
        """Return the metrics of both directions, after all tiles were added."""
        text_rank, video_rank = self.ranks()
        return Metrics(summarize_ranks(text_rank), summarize_ranks(video_rank))

    def ranks(self) -> tuple[Int[Tensor, "texts"], Int[Tensor, "queries"]]:
        """Return the ranks of texts and of videos with texts, after all tiles were added."""
        num_incomplete = int((self._next_text != len(self.video_of_text)).sum())
        if num_incomplete:
            raise UsageError(f"{num_incomplete} of {self.num_videos} columns have tiles missing")
        queries = torch.unique(self.video_of_text)
        video_rank = self.video_rank + self._open_beats.long()
        return self.text_rank, video_rank[queries]


def retrieval_metrics(
    scores: Float[Tensor, "texts videos"],
    video_of_text: Int[Tensor, "labels"],
    ties: Ties = "against",
) -> Metrics:
    """Compute the metrics of a score matrix; ``ties`` count against or for the model.

    >>> scores = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.8, 0.8]])
    >>> retrieval_metrics(scores, torch.tensor([0, 1])).t2v.mean_rank
    1.5
    """
    if len(video_of_text) != len(scores):
        raise UsageError(
            f"scores have {len(scores)} texts but video_of_text has {len(video_of_text)} entries: "
            "it needs one entry per text, in the order of the rows"
        )
    raise_if_not_finite(scores)
    check_video_of_text(video_of_text, scores.shape[1])
    order = video_of_text.argsort(stable=True)
    is_sorted = torch.equal(order, torch.arange(len(order), device=order.device))
    sorted_scores = scores if is_sorted else scores[order.to(scores.device)]
    ranks = StreamingRanks(video_of_text[order], scores.shape[1], ties)
    ranks.add_targets(sorted_scores)
    ranks.add(sorted_scores)
    return ranks.metrics()


def raise_if_not_finite(
    scores: Float[Tensor, "texts videos"], text_start: int = 0, video_start: int = 0
) -> None:
    """Raise :class:`NonFiniteError` for NaN or infinity, whose ranks would be meaningless."""
    if bool(scores.sum(dtype=torch.float64).isfinite()):
        return  # The sum is finite only if all scores are; much faster than a mask.
    is_bad = ~scores.isfinite()
    count = int(is_bad.sum())
    if count:
        row, column = is_bad.nonzero()[0].tolist()
        raise NonFiniteError(
            f"{count} of {scores.numel()} scores are NaN or infinite (first at text "
            f"{text_start + row}, video {video_start + column}); expected finite numbers: "
            "check the weights and features"
        )


def check_video_of_text(video_of_text: Int[Tensor, "texts"], num_videos: int) -> None:
    """Raise :class:`DatasetError` if the video of a text does not exist."""
    if len(video_of_text) == 0 or num_videos == 0:
        raise DatasetError(
            f"{len(video_of_text)} texts and {num_videos} videos: expected at least one of each"
        )
    is_bad = (video_of_text < 0) | (video_of_text >= num_videos)
    if bool(is_bad.any()):
        first = int(is_bad.nonzero()[0, 0])
        raise DatasetError(
            f"{int(is_bad.sum())} texts belong to a video that does not exist (text {first}: video "
            f"{int(video_of_text[first])} of {num_videos}): leave these texts out and report them"
        )


MAX_SCORES = 1 << 26
"""Scores in memory at a time: 256 MB in fp32."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of encoding and scoring.

    backend: scoring back end; ``auto`` chooses.
    precision: ``fp32`` or ``bf16`` for encoders (autocast) and scoring; ``fp16`` for encoders only,
        as the authors evaluate; ``auto`` for the precision of the model (``EvaluationHabits``).
    noise_seeds: also score with each seed and report mean and spread, for methods with evaluation
        noise. The noise of the model is restored afterwards.
    pair_noise: draw separate noise for each pair, as the authors do, instead of one sample for all.
    scores_file: ``.npy`` file to write the scores to, ``[texts, videos]``.
    ranks_file: ``.npz`` file to write the ranks to: ``t2v``, ``v2t`` and ``video_of_text``.
    hubness: also rank with hubness offsets, computed from a fixed bank of texts.
    hubness_bank: texts of that bank; if empty, 256 texts of the package.
    sinkhorn: also rank with UCoFiA's Sinkhorn offsets from this many training texts and videos.
    text_batch, video_batch: texts and videos encoded at a time.
    max_scores: scores in memory at a time.
    """

    backend: str = "auto"
    precision: str = "auto"
    noise_seeds: tuple[int, ...] = ()
    pair_noise: bool = False
    scores_file: Path | None = None
    ranks_file: Path | None = None
    hubness: bool = False
    hubness_bank: tuple[str, ...] = ()
    sinkhorn: int = 0
    text_batch: int = 256
    video_batch: int = 32
    max_scores: int = MAX_SCORES

    def __post_init__(self) -> None:
        check_choice(self.backend, "fp32" if self.precision == "auto" else self.scoring_precision)

    @property
    def scoring_precision(self) -> str:
        """Precision of scoring: fp32 instead of fp16, in which scores would overflow."""
        return "fp32" if self.precision == "fp16" else self.precision

    def resolve(self, method: Method) -> EvaluationOptions:
        """Return the options with the precision of the model instead of ``auto``."""
        if self.precision != "auto":
            return self
        return replace(self, precision=method.habits.precision)


@dataclass(frozen=True)
class EvaluationProcess:
    """One of several processes: it encodes every ``size``-th item and scores a range of videos.

    total: sums a tensor over all processes. gather: concatenates the features of all processes in
    the order of the items.
    """

    rank: int
    size: int
    total: Callable[[Tensor], Tensor]
    gather: Callable[[Any, int], Any]

    def videos(self, count: int) -> range:
        """Return the range of videos that this process scores."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def rank_pairs(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    video_of_text: Int[Tensor, "texts"],
    *,
    max_scores: int = MAX_SCORES,
    process: EvaluationProcess | None = None,
    scores_file: Path | None = None,
    ranks_file: Path | None = None,
    bias: Float[Tensor, "videos"] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Metrics:
    """Score all pairs in blocks and rank both directions.

    Blocks are whole columns if they fit, so that the work per video is done once. ``bias`` is added
    to all scores of a video; ``settings`` are passed to :func:`score_all`.
    """
    order = video_of_text.argsort(stable=True)
    text = text[order.to(text.sentence.device)]
    sorted_video = video_of_text[order].cpu()
    ranks = StreamingRanks(sorted_video, len(video))
    video_range = range(len(video)) if process is None else process.videos(len(video))
    matrix: NDArray[np.float32] | None = None
    if scores_file is not None:
        shape = (len(text), len(video))
        matrix = np.lib.format.open_memmap(scores_file, mode="w+", dtype=np.float32, shape=shape)

    num_scored = 0

    def score_block(texts: slice, videos: slice, *, is_counted: bool = True) -> Tensor:
        nonlocal num_scored
        offset = num_scored

        def advance(update: ProgressUpdate) -> None:
            total = len(text) * len(video_range)
            report_progress(progress, update.title, offset + update.count, total)

        callback = advance if is_counted else None
        scores: Tensor = score_all(
            method, text[texts], video[videos], progress=callback, **settings
        )
        if bias is not None:
            scores = scores + bias[videos].to(scores.device)
        num_scored += scores.numel() if is_counted else 0
        return scores

    def add_block(tile: Tensor, text_start: int, video_start: int) -> None:
        ranks.add(tile, text_start, video_start)
        if matrix is not None:
            rows = order[text_start : text_start + tile.shape[0]].numpy()
            matrix[rows, video_start : video_start + tile.shape[1]] = tile.cpu().numpy()

    text_step = min(len(text), max_scores)
    video_step = min(max(len(video_range), 1), max(1, max_scores // text_step))
    all_scores = None
    if text_step == len(text) and video_step >= len(video_range) > 0:
        all_scores = score_block(slice(None), slice(video_range.start, video_range.stop))
        ranks.add_targets(all_scores, 0, video_range.start)
    else:
        # First score the right pairs: texts are sorted by video, so those of a block are adjacent.
        for start in video_range[::video_step]:
            stop = min(start + video_step, video_range.stop)
            first, last = torch.searchsorted(sorted_video, torch.tensor([start, stop])).tolist()
            for row in range(first, last, text_step):
                rows = slice(row, min(row + text_step, last))
                target_scores = score_block(rows, slice(start, stop), is_counted=False)
                ranks.add_targets(target_scores, row, start)
    if process is not None:
        ranks.join_targets(process.total)
    if all_scores is not None:
        add_block(all_scores, 0, video_range.start)
    else:
        for start in video_range[::video_step]:
            videos = slice(start, min(start + video_step, video_range.stop))
            for row in range(0, len(text), text_step):
                add_block(score_block(slice(row, row + text_step), videos), row, start)
    if process is not None:
        ranks.join_counts(process.total)
    if ranks_file is not None and (process is None or process.rank == 0):
        text_ranks, video_ranks = ranks.ranks()
        unsorted_ranks = torch.empty_like(text_ranks)
        unsorted_ranks[order] = text_ranks
        with atomic_write(ranks_file) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file,
                t2v=unsorted_ranks.numpy(),
                v2t=video_ranks.numpy(),
                video_of_text=video_of_text.cpu().numpy(),
            )
    return ranks.metrics()
