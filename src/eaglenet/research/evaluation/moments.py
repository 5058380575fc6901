"""Evaluation of moments against annotated spans: recall at an IoU, mean IoU and mAP."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.text import pluralize
from eaglenet.research.data.annotation_files import MomentText, Span
from eaglenet.research.data.sources import few_videos

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine

RECALL_THRESHOLDS = (0.3, 0.5, 0.7)
PRECISION_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""IoU thresholds over which average precision is averaged, as in QVHighlights."""
MAX_MOMENTS = 10
"""Moments evaluated per text."""


def span_ious(moments: NDArray[np.float64], spans: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the intersection over union ``[moments, spans]`` of spans ``[..., 2]`` in seconds.

    It is 1 for two empty spans at the same time, and 0 for an empty and a longer one.

    >>> span_ious(np.array([[0.0, 10.0]]), np.array([[5.0, 10.0], [5.0, 15.0], [20.0, 30.0]]))
    array([[0.5       , 0.33333333, 0.        ]])
    """
    first, second = moments[:, None], spans[None]
    overlap = np.minimum(first[..., 1], second[..., 1]) - np.maximum(first[..., 0], second[..., 0])
    # For disjoint spans this exceeds the union, but their overlap is 0.
    union = np.maximum(first[..., 1], second[..., 1]) - np.minimum(first[..., 0], second[..., 0])
    is_point = union <= 0
    ious = np.clip(overlap, 0, None) / np.where(is_point, 1.0, union)
    result: NDArray[np.float64] = np.where(is_point, 1.0, ious)
    return result


def text_iou(moment: Span, text: MomentText) -> float:
    """Return the mean IoU of a moment with the best-matching spans, one per annotator."""
    ious = np.sort(span_ious(np.array([moment]), np.array(text.spans))[0])
    return float(ious[-text.num_annotators :].mean())


def average_precision(moments: Sequence[Span], spans: Sequence[Span], threshold: float) -> float:
    """Compute the average precision of ranked moments for one text, as QVHighlights does.

    A moment is right if its IoU with a span reaches ``threshold`` and no better moment matches that
    span. The result is the area under the precision-recall curve, made monotone.
    """
    if not moments:
        return 0.0
    ious = span_ious(np.array(moments), np.array(spans))
    is_taken = np.zeros(len(spans), bool)
    is_right = np.zeros(len(moments), bool)
    for number, row in enumerate(ious):
        for span in np.argsort(-row, kind="stable"):
            if row[span] < threshold:
                break
            if not is_taken[span]:
                is_taken[span] = is_right[number] = True
                break
    right = np.cumsum(is_right)
    recalls = np.concatenate([[0.0], right / len(spans), [1.0]])
    precisions = np.concatenate([[0.0], right / np.arange(1, len(moments) + 1), [0.0]])
    precisions = np.maximum.accumulate(precisions[::-1])[::-1]
    return float(((recalls[1:] - recalls[:-1]) * precisions[1:]).sum())


@dataclass(frozen=True)
class MomentMetrics:
    """Metrics in percent over all texts; a text without a moment counts as 0.

    recalls: percentage of texts whose first moment reaches an IoU, by name (``R@1 IoU=0.5``).
    missing_videos: annotated videos that are not in the store; their texts are left out.
    ambiguous_videos: videos whose name several files of the store have; one of them was searched.
    num_blank_texts: annotations without a text, which are left out.
    """

    recalls: Mapping[str, float]
    mean_iou: float
    mean_average_precision: float
    num_texts: int
    num_videos: int
    missing_videos: tuple[str, ...] = field(default=(), compare=False)
    ambiguous_videos: tuple[str, ...] = field(default=(), compare=False)
    num_blank_texts: int = field(default=0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"notes": list(self.notes)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the numbers."""
        notes = list(few_videos(self.num_texts, "text"))
        if self.num_blank_texts:
            notes.append(f"left out {pluralize(self.num_blank_texts, 'annotation')} without a text")
        if self.ambiguous_videos:
            count = pluralize(len(self.ambiguous_videos), "video")
            notes.append(
                f"{count} searched in one of several files of that name (first: "
                f"{self.ambiguous_videos[0]}); use a store of only the annotated videos"
            )
        return tuple(notes)

    def __str__(self) -> str:
        recalls = "  ".join(f"{name} {value:.1f}" for name, value in self.recalls.items())
        line = (
            f"{recalls}  mIoU {self.mean_iou:.1f}  mAP {self.mean_average_precision:.1f}  "
            f"({pluralize(self.num_texts, 'text')}, {pluralize(self.num_videos, 'video')})"
        )
        return "\n".join([line, *(f"note: {note}" for note in self.notes)])


def moment_metrics(
    texts: Sequence[MomentText],
    moments: Sequence[Sequence[Span]],
    missing_videos: Sequence[str] = (),
) -> MomentMetrics:
    """Compare the ranked moments of each text, best first, with its annotation."""
    if len(texts) != len(moments):
        raise ValueError(f"{len(texts)} texts, but moments of {len(moments)}")
    if not texts:
        raise UsageError("no annotated text to evaluate: none of the videos was found")
    ious = np.array(
        [
            text_iou(ranking[0], text) if ranking else 0.0
            for text, ranking in zip(texts, moments, strict=True)
        ]
    )
    precisions = [
        # Annotators who agree describe one span, which one moment matches.
        average_precision(ranking[:MAX_MOMENTS], tuple(dict.fromkeys(text.spans)), threshold)
        for text, ranking in zip(texts, moments, strict=True)
        for threshold in PRECISION_THRESHOLDS
    ]
    return MomentMetrics(
        recalls={
            # With a tolerance for rounding errors.
            f"R@1 IoU={threshold:g}": 100 * float((ious >= threshold - 1e-9).mean())
            for threshold in RECALL_THRESHOLDS
        },
        mean_iou=100 * float(ious.mean()),
        mean_average_precision=100 * float(np.mean(precisions)),
        num_texts=len(texts),
        num_videos=len({text.video_id for text in texts}),
        missing_videos=tuple(missing_videos),
    )


def evaluate_store(
    engine: Engine,
    texts: Sequence[MomentText],
    *,
    progress: Progress | None = None,
) -> MomentMetrics:
    """Search each video of a store for its annotated texts, and evaluate the moments.

    The id of a video is its file name without folder and extension. Only visual content is
    searched, not transcripts.
    """
    paths: dict[str, str] = {}
    num_files: Counter[str] = Counter()
    for group in engine.snapshot.files().paths:  # The files of a group have the same content.
        num_files.update({Path(path).stem for path in group})
        for path in group:
            paths.setdefault(Path(path).stem, path)
    by_video: dict[str, list[MomentText]] = {}
    num_blank_texts = 0
    for text in texts:
        if text.text:
            by_video.setdefault(text.video_id, []).append(text)
        else:
            num_blank_texts += 1
    if num_blank_texts and not by_video:
        count = pluralize(num_blank_texts, "annotation has", "annotations have")
        raise UsageError(f"no annotated text to evaluate: {count} no text")
    missing_videos = [video for video in by_video if video not in paths]
    queries: list[MomentText] = []
    moments: list[list[Span]] = []
    for number, (video, video_texts) in enumerate(by_video.items()):
        if video in paths:
            hits = engine.search_many(
                [text.text for text in video_texts],
                MAX_MOMENTS,
                path=_exact_pattern(paths[video]),
                modalities="visual",
            )
            queries += video_texts
            moments += [[(hit.moment.start, hit.moment.end) for hit in entry] for entry in hits]
        report_progress(progress, "videos", number + 1, len(by_video))
    return replace(
        moment_metrics(queries, moments, missing_videos),
        ambiguous_videos=tuple(video for video in by_video if num_files[video] > 1),
        num_blank_texts=num_blank_texts,
    )


def _exact_pattern(path: str) -> str:
    """Escape wildcards of a path, to match one file with ``Filters.path``."""
    return re.sub(r"([*?[])", r"[\1]", path) if re.search(r"[*?[]", path) else path
