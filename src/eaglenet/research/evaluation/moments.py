"""Moments against annotated spans: recalls at an IoU, mean IoU and mean average precision.

The readers take the annotation files as they are published for DiDeMo, QVHighlights, Charades-STA
and ActivityNet Captions. ``evaluate_store`` searches each video of a store for its own texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError, cause_of
from eaglenet.core.progress import Progress, report_progress

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine

Span = tuple[float, float]
"""First and last second."""
RECALL_THRESHOLDS = (0.3, 0.5, 0.7)
PRECISION_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""IoUs over which average precision is averaged, as for QVHighlights."""
DIDEMO_SECONDS = 5.0
"""Length of a segment of DiDeMo; its times are numbers of segments, the last one included."""
DIDEMO_ANNOTATORS = 3
"""Annotators whose best IoUs are averaged, as DiDeMo's own evaluation does."""
MAX_MOMENTS = 10
"""Moments per text that are ranked."""


@dataclass(frozen=True)
class MomentText:
    """A text and the spans of one video that show it.

    num_annotators: how many of the best-matching spans are averaged to one IoU. 1: any span will
        do, as where several moments show the text. More: each span is one person's opinion.
    """

    video_id: str
    text: str
    spans: tuple[Span, ...]
    num_annotators: int = 1

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError(f"no span for {self.text!r:.60}")
        for start, end in self.spans:
            if not 0 <= start <= end < float("inf"):
                raise ValueError(f"the span {start:g} to {end:g} s of {self.text!r:.60}")


def span_ious(moments: NDArray[np.float64], spans: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union ``[moments, spans]`` of spans ``[..., 2]``.

    Two empty spans at the same second have 1, an empty and a longer one 0.

    >>> span_ious(np.array([[0.0, 10.0]]), np.array([[5.0, 10.0], [5.0, 15.0], [20.0, 30.0]]))
    array([[0.5       , 0.33333333, 0.        ]])
    """
    first, second = moments[:, None], spans[None]
    shared = np.minimum(first[..., 1], second[..., 1]) - np.maximum(first[..., 0], second[..., 0])
    union = np.maximum(first[..., 1], second[..., 1]) - np.minimum(first[..., 0], second[..., 0])
    is_point = union <= 0
    ious = np.clip(shared, 0, None) / np.where(is_point, 1.0, union)
    # Spans that do not touch have a hull larger than their union; they share nothing anyway.
    result: NDArray[np.float64] = np.where(is_point, 1.0, ious)
    return result


def text_iou(moment: Span, text: MomentText) -> float:
    """IoU of a moment with the annotation of a text."""
    ious = np.sort(span_ious(np.array([moment]), np.array(text.spans))[0])
    return float(ious[-text.num_annotators :].mean())


def average_precision(moments: Sequence[Span], spans: Sequence[Span], threshold: float) -> float:
    """Average precision of ranked moments for one text, as QVHighlights measures it.

    A moment counts if it reaches ``threshold`` with a span that no better moment has taken. The
    area is that under the precision made monotone.
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
    """Percentages over all texts; a text without a moment counts as 0."""

    recalls: Mapping[str, float]
    """``R@1 IoU=0.5`` and so on: texts whose first moment reaches that IoU."""
    mean_iou: float
    mean_average_precision: float
    num_texts: int
    num_videos: int
    missing_videos: tuple[str, ...] = field(default=(), compare=False)
    """Videos of the annotation file that were not searched; their texts are left out."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        recalls = "  ".join(f"{name} {value:.1f}" for name, value in self.recalls.items())
        return (
            f"{recalls}  mIoU {self.mean_iou:.1f}  mAP {self.mean_average_precision:.1f}  "
            f"({self.num_texts} texts, {self.num_videos} videos)"
        )


def moment_metrics(
    texts: Sequence[MomentText],
    moments: Sequence[Sequence[Span]],
    missing_videos: Sequence[str] = (),
) -> MomentMetrics:
    """Compare the ranked moments of each text, best first, with its annotation."""
    if len(texts) != len(moments):
        raise ValueError(f"{len(texts)} texts and moments for {len(moments)}")
    if not texts:
        raise UsageError("no annotated text to evaluate; is any of the videos there?")
    first = np.array(
        [
            text_iou(ranked[0], text) if ranked else 0.0
            for text, ranked in zip(texts, moments, strict=True)
        ]
    )
    precisions = [
        average_precision(ranked[:MAX_MOMENTS], text.spans, threshold)
        for text, ranked in zip(texts, moments, strict=True)
        for threshold in PRECISION_THRESHOLDS
    ]
    return MomentMetrics(
        recalls={
            # 0.3 as three tenths of ten seconds must count, whatever the rounding.
            f"R@1 IoU={threshold:g}": 100 * float((first >= threshold - 1e-9).mean())
            for threshold in RECALL_THRESHOLDS
        },
        mean_iou=100 * float(first.mean()),
        mean_average_precision=100 * float(np.mean(precisions)),
        num_texts=len(texts),
        num_videos=len({text.video_id for text in texts}),
        missing_videos=tuple(missing_videos),
    )


def read_didemo(content: str) -> list[MomentText]:
    """``[{"video", "description", "times": [[first, last], ...]}, ...]``, in segments of 5 s.

    The last segment of a video shorter than 30 s is taken to be whole, as DiDeMo's evaluation does.
    """
    texts = []
    for row in untrusted.parse_json(content):
        times = [
            (DIDEMO_SECONDS * int(first), DIDEMO_SECONDS * (int(last) + 1))
            for first, last in row["times"]
        ]
        texts.append(
            MomentText(Path(row["video"]).stem, row["description"], tuple(times), DIDEMO_ANNOTATORS)
        )
    return texts


def read_qvhighlights(content: str) -> list[MomentText]:
    """One JSON object per line with ``vid``, ``query`` and ``relevant_windows``, in seconds."""
    rows = [untrusted.parse_json(line) for line in content.splitlines() if line.strip()]
    return [MomentText(row["vid"], row["query"], _spans(row["relevant_windows"])) for row in rows]


def read_charades_sta(content: str) -> list[MomentText]:
    """One ``VIDEO START END##text`` per line, in seconds."""
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)", line)
        if match is None:
            raise ValueError(f"line {number} is not 'VIDEO START END##text'")
        video, start, end, text = match.groups()
        # A few published lines end before they start.
        low, high = sorted((float(start), float(end)))
        texts.append(MomentText(video, text.strip(), ((low, high),)))
    return texts


def read_activitynet(content: str) -> list[MomentText]:
    """``{"v_ID": {"timestamps": [[start, end], ...], "sentences": [...]}}``, in seconds."""
    texts = []
    for video, entry in untrusted.parse_json(content).items():
        for span, text in zip(entry["timestamps"], entry["sentences"], strict=True):
            low, high = sorted(map(float, span))  # Some published spans are reversed.
            texts.append(MomentText(video, str(text).strip(), ((low, high),)))
    return texts


def _spans(rows: Iterable[Any]) -> tuple[Span, ...]:
    return tuple((float(start), float(end)) for start, end in rows)


READERS: Mapping[str, Callable[[str], list[MomentText]]] = {
    "didemo": read_didemo,
    "qvhighlights": read_qvhighlights,
    "charades-sta": read_charades_sta,
    "activitynet": read_activitynet,
}


def detect_format(content: str) -> str:
    """Name of the format of an annotation file.

    >>> detect_format("AO8RW 0.0 6.9##a person puts a book on a shelf.")
    'charades-sta'
    """
    start = content.lstrip()[:1]
    if start == "[":
        return "didemo"
    if start == "{":
        first_line = content.lstrip().split("\n", 1)[0]
        return "qvhighlights" if '"relevant_windows"' in first_line else "activitynet"
    if "##" in content.split("\n", 1)[0]:
        return "charades-sta"
    raise ValueError("it is none of " + ", ".join(READERS))


def read_moments(path: Path, name: str | None = None) -> list[MomentText]:
    """Read an annotation file; the format is recognised if ``name`` is None."""
    if name is not None and name not in READERS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(READERS)}")
    try:
        content = untrusted.read_text(path.expanduser(), untrusted.MAX_ANNOTATIONS)
        texts = READERS[name or detect_format(content)](content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError(
            f"{path}: cannot be read as annotated moments ({cause_of(error)}); expected the "
            f"published file of one of: {', '.join(READERS)}"
        ) from error
    if not texts:
        raise DatasetError(f"{path}: has no annotated moment")
    return texts


def evaluate_store(
    engine: Engine,
    texts: Sequence[MomentText],
    *,
    progress: Progress | None = None,
) -> MomentMetrics:
    """Search each video of a store for its annotated texts, and measure the moments.

    Videos are found by the name of their file, without folder and ending. Speech and on-screen text
    are not searched.
    """
    paths: dict[str, str] = {}
    for group in engine.snapshot.files().paths:
        for path in group:
            paths.setdefault(Path(path).stem, path)
    by_video: dict[str, list[MomentText]] = {}
    for text in texts:
        by_video.setdefault(text.video_id, []).append(text)
    missing = [video for video in by_video if video not in paths]
    searched: list[MomentText] = []
    moments: list[list[Span]] = []
    for number, (video, own) in enumerate(by_video.items()):
        if video in paths:
            hits = engine.search_many(
                [text.text for text in own],
                MAX_MOMENTS,
                path=_exact_pattern(paths[video]),
                modalities="visual",
            )
            searched += own
            moments += [[(hit.moment.start, hit.moment.end) for hit in ranked] for ranked in hits]
        report_progress(progress, "videos", number + 1, len(by_video))
    return moment_metrics(searched, moments, missing)


def _exact_pattern(path: str) -> str:
    """Pattern of ``Filters.path`` for one file: text without wildcards may be part of a path."""
    return re.sub(r"([*?[])", r"[\1]", path) if re.search(r"[*?[]", path) else path
