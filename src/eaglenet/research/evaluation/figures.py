"""Figures of reports as PNG and PDF, drawn with matplotlib without a display."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips
from eaglenet.methods.base import Method, evaluating
from eaglenet.research.data.sources import Source
from eaglenet.scoring import score_best

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, distinguishable with any colour vision."""
RIGHT, WRONG = "#1a9641", "#d7191c"
DOTS_PER_INCH = 120
FRAMES_SHOWN = 3
"""Frames drawn of each retrieved video."""
MIN_SPAN = 2.0
"""Smallest span of an axis of recalls, in percentage points."""


@dataclass(frozen=True)
class Picture:
    """A drawn figure, as the bytes of a PNG and of a PDF file."""

    png: bytes
    pdf: bytes


@dataclass(frozen=True)
class Curve:
    label: str
    x: Sequence[int | float]
    y: Sequence[int | float]


@dataclass(frozen=True)
class RetrievedVideo:
    """A video that was retrieved for a query, and whether it is the right one."""

    video_id: str
    frames: UInt8[Tensor, "frames 3 height width"]
    is_right: bool


@dataclass(frozen=True)
class QualitativeExample:
    """A query and the videos that each method retrieved, best first."""

    query: str
    videos: Mapping[str, Sequence[RetrievedVideo]]


def curves_figure(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    is_percent: bool = False,
) -> Picture:
    """Draw curves as lines, with markers if they have few points."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        marker = "o" if len(curve.x) <= 40 else None
        colour = PALETTE[number % len(PALETTE)]
        style = ("-", "--", ":")[number // len(PALETTE) % 3]
        axes.plot(
            curve.x, curve.y, style, marker=marker, markersize=3, color=colour, label=curve.label
        )
    if log_y and all(value > 0 for curve in curves for value in curve.y):
        axes.set_yscale("log")
    if all(float(value).is_integer() for curve in curves for value in curve.x):
        axes.xaxis.get_major_locator().set_params(integer=True)  # There is no epoch 1.25.
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    if is_percent:
        axes.set_ylim(*percent_range(*axes.get_ylim()))
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=7)
    return _save(figure)


def recall_against_time_figure(
    ours: Mapping[str, tuple[float, float]],
    paper: Mapping[str, tuple[float, float]],
    *,
    protocol: str = "",
) -> Picture:
    """Draw text-to-video R@1 against seconds of the whole test, like figure 1 of the paper.

    ours, paper: (seconds, R@1) by method. They are drawn in separate panels, because machines and
        data differ.
    """
    panels = [(f"ours, {protocol}" if protocol else "ours", "test time (s)", ours)]
    panels.append(("paper: MSR-VTT, ViT-B/16, A100", "test time (s)", paper))
    panels = [panel for panel in panels if panel[2]]
    figure = _figure(5.4 * max(1, len(panels)), 4.2)
    for number, (title, x_label, points) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.set_xscale("log")
        for name, (seconds, recall) in points.items():
            is_eagle = "eaglenet" in name.lower()
            marker, colour = ("*", PALETTE[1]) if is_eagle else ("o", PALETTE[0])
            axes.scatter([seconds], [recall], s=110 if is_eagle else 30, marker=marker, c=colour)
        axes.set(title=title, xlabel=x_label, ylabel="text-to-video R@1 (%)")
        axes.margins(x=0.2, y=0.12)
        axes.set_xlim(*_seconds_range(*axes.get_xlim()))
        _label_seconds(axes)
        axes.set_ylim(*percent_range(*axes.get_ylim()))
        axes.grid(alpha=0.3)
    figure.canvas.draw()  # Lays out the panels; labels are placed in their final frames.
    for axes, (_, _, points) in zip(figure.axes, panels, strict=True):
        _place_labels(axes, points)
    return _save(figure)


def _seconds_range(low: float, high: float) -> tuple[float, float]:
    """Widen a logarithmic axis to at least one decade, so that it has several ticks."""
    if high / low < 10:
        middle = (low * high) ** 0.5
        return middle / 10**0.5, middle * 10**0.5
    return low, high


def _label_seconds(axes: Any) -> None:
    """Write the ticks as 0.2, 0.5, 1; matplotlib's labels overlap on an axis of one decade."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    multiples = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=multiples))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


LABEL_OFFSETS = tuple(
    (x * distance, y * distance)
    for distance in (5.0, 12.0, 20.0)
    for x, y in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (0.0, 1.6), (0.0, -1.6))
)
"""Where the label of a point may stand, in typographic points; the first ones are preferred."""


def _place_labels(axes: Any, points: Mapping[str, tuple[float, float]]) -> None:
    """Label points inside the axes, clear of each other and of the points as far as possible."""
    pixels = axes.figure.dpi / 72
    frame = tuple(axes.get_window_extent().extents)
    centres = {name: axes.transData.transform(point) for name, point in points.items()}
    taken_boxes = [(x - 4 * pixels, y - 4 * pixels, x + 4 * pixels, y + 4 * pixels)
                   for x, y in centres.values()]  # fmt: skip
    for name, point in points.items():
        label = axes.annotate(
            name, point, (0, 0), textcoords="offset points", fontsize=7, in_layout=False
        )
        size = label.get_window_extent().size
        boxes = {
            offset: _label_box(centres[name], size, offset, pixels) for offset in LABEL_OFFSETS
        }
        crowding = {
            offset: round(
                size.prod() - _overlap(box, frame) + sum(_overlap(box, b) for b in taken_boxes)
            )
            for offset, box in boxes.items()
        }
        best = min(LABEL_OFFSETS, key=crowding.__getitem__)
        taken_boxes.append(boxes[best])
        label.set(
            position=best,
            horizontalalignment=("center", "left", "right")[int(np.sign(best[0]))],
            verticalalignment="bottom" if best[1] > 0 else "top",
        )


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in pixels."""


def _label_box(
    centre: NDArray[np.float64],
    size: NDArray[np.float64],
    offset: tuple[float, float],
    pixels: float,
) -> Box:
    x, y = centre + pixels * np.array(offset)
    left = x - size[0] * (1 - np.sign(offset[0])) / 2
    bottom = y if offset[1] > 0 else y - size[1]
    return left, bottom, left + size[0], bottom + size[1]


def _overlap(first: Box, second: Box) -> float:
    """Return the common area of two boxes."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def percent_range(low: float, high: float) -> tuple[float, float]:
    """Widen an axis of percentages to at least :data:`MIN_SPAN`, without going below 0.

    >>> percent_range(1.9, 2.1), percent_range(0.0, 0.0), percent_range(10.0, 60.0)
    ((1.0, 3.0), (0.0, 2.0), (10.0, 60.0))
    """
    if high - low < MIN_SPAN:
        low = (low + high - MIN_SPAN) / 2
    low = max(0.0, low)
    return low, max(high, low + MIN_SPAN)


def qualitative_figure(examples: Sequence[QualitativeExample]) -> Picture:
    """Draw the best videos of each method for each query, right ones framed green, others red."""
    if not examples:
        raise UsageError("no example to draw: expected at least one query with its videos")
    num_methods = max(len(example.videos) for example in examples)
    top_k = max(len(videos) for example in examples for videos in example.videos.values())
    rows = len(examples) * num_methods
    figure = _figure(1.5 + 1.05 * FRAMES_SHOWN * top_k, 0.45 + 1.3 * rows)
    grid = figure.add_gridspec(rows, top_k)
    for number, example in enumerate(examples):
        for line, (method, videos) in enumerate(example.videos.items()):
            for rank, video in enumerate(videos):
                axes = figure.add_subplot(grid[number * num_methods + line, rank])
                _draw_video(axes, video)
                if rank == 0:
                    axes.set_ylabel(method, fontsize=8)
                if line == 0 and rank == 0:
                    query = textwrap.shorten(f'"{example.query}"', 110)
                    axes.set_title(query, fontsize=9, loc="left")
    return _save(figure)


def _draw_video(axes: Any, video: RetrievedVideo) -> None:
    middles = (np.arange(FRAMES_SHOWN) + 0.5) * len(video.frames) / FRAMES_SHOWN
    indices = np.floor(middles).astype(int)
    frames = [video.frames[index].movedim(0, -1).numpy() for index in indices]
    gap = np.full((frames[0].shape[0], max(1, frames[0].shape[1] // 48), 3), 255, dtype=np.uint8)
    images = [image for frame in frames for image in (gap, frame)][1:]
    strip = np.concatenate(images, axis=1)
    axes.imshow(strip, interpolation="nearest", aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([])
    # Also as text: red and green look alike to many people.
    verdict = "right" if video.is_right else "wrong"
    axes.set_xlabel(f"{video.video_id}: {verdict}", fontsize=6, labelpad=1)
    for spine in axes.spines.values():
        spine.set(color=RIGHT if video.is_right else WRONG, linewidth=3)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "figures need matplotlib, which is not installed: pip install 'eaglenet[train]'"
        ) from error
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any) -> Picture:
    import matplotlib

    # Without date and version, so that the same numbers give the same bytes.
    unset = {"png": ("Software",), "pdf": ("CreationDate", "Creator", "Producer")}
    pictures = {}
    for kind, names in unset.items():
        buffer = io.BytesIO()
        # Type 42 (TrueType): many publishers refuse matplotlib's default, Type 3.
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            figure.savefig(buffer, format=kind, metadata=dict.fromkeys(names))
        pictures[kind] = buffer.getvalue()
    return Picture(**pictures)


def best_videos(
    method: Method, texts: Iterable[Any], videos: Iterable[Any], *, top_k: int
) -> Int[Tensor, "texts best"]:
    """Return the indices of the ``top_k`` best videos of each text, from batches of both."""
    with evaluating(method), torch.no_grad():
        text = [method.encode_text(batch.to(method.device)) for batch in texts]
        video = [method.encode_video(batch.to(method.device)) for batch in videos]
        if not text or not video:
            raise UsageError("no text or no video to choose examples from; check the split")
        all_texts = type(text[0]).concatenate(text)
        all_videos = type(video[0]).concatenate(video)
        count = min(top_k, len(all_videos))
        return score_best(method, all_texts, all_videos, count).videos.cpu()


def choose_queries(
    best: Mapping[str, Int[Tensor, "texts best"]], video_of_text: Int[Tensor, "texts"], count: int
) -> list[int]:
    """Choose queries on which the methods disagree, then evenly spaced ones; at most one per video.

    Among these queries, the choice depends only on their positions in the split.
    """
    is_right = torch.stack([videos[:, 0] == video_of_text for videos in best.values()])
    disputed_queries = (is_right.any(dim=0) & ~is_right.all(dim=0)).nonzero()[:, 0].tolist()
    step = max(1, len(video_of_text) // max(1, count))
    queries: list[int] = []
    used_videos: set[int] = set()
    # Spaced over the split first, because neighbours are often alike.
    spaced_queries = disputed_queries[:: max(1, len(disputed_queries) // max(1, count))]
    for query in [*spaced_queries, *disputed_queries, *range(0, len(video_of_text), step)]:
        video = int(video_of_text[query])
        if len(queries) < count and video not in used_videos:
            queries.append(query)
            used_videos.add(video)
    return queries


def make_examples(
    best: Mapping[str, Int[Tensor, "texts best"]], source: Source, count: int
) -> list[QualitativeExample]:
    """Make up to ``count`` examples from the ``best`` videos of each text, by method."""
    examples = []
    video_of_text = source.video_of_text.cpu()
    for query in choose_queries(best, video_of_text, count):
        right_video = int(video_of_text[query])
        videos = {}
        for method, rankings in best.items():
            clips = source.videos(rankings[query])
            assert isinstance(clips, Clips), "stored features have no frames to show"
            frames = clips.frames.cpu()
            videos[method] = [
                RetrievedVideo(source.video_ids[video], frames[rank], video == right_video)
                for rank, video in enumerate(rankings[query].tolist())
            ]
        examples.append(QualitativeExample(source.captions[query], videos))
    return examples
