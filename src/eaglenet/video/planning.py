"""Which moments of a video a window shows: the plan that picking then fills with frames."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from eaglenet.errors import UsageError, VideoDecodeError
from eaglenet.frame_spec import FrameSpec
from eaglenet.video import sampling
from eaglenet.video.pixels import Pixels

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource

Window = tuple[float, float]


class Picked(NamedTuple):
    time: int
    picture: Pixels
    whole: Pixels | None = None


@dataclass
class WindowPlan:
    """What one window needs: a frame for each target, and where the frames then go."""

    window: Window | None
    start: Fraction
    end: Fraction
    targets: list[int]
    places: list[int | None]
    mask: list[bool]
    step: float = 0.0
    picked: dict[int, Picked] = field(default_factory=dict)
    is_damaged: bool = False
    open_targets: int = 0


def plan_window(
    source: VideoSource, spec: FrameSpec, window: Window | None, step: float = 0.0
) -> WindowPlan:
    start, end = (Fraction(tick) for tick in source.span())
    if window is not None:
        start, end = clipped(source, window)
    table = None
    if spec.sampling != "uniform" or spec.short != "repeat":
        table = source.table()
    return plan_of(source, spec, window, (start, end), table.times if table else None, step)


def plan_of(
    source: VideoSource,
    spec: FrameSpec,
    window: Window | None,
    span: tuple[Fraction, Fraction],
    times: Sequence[int] | None,
    step: float,
) -> WindowPlan:
    """``times`` of the frames are needed where frames are counted, not only looked up."""
    start, end = span
    targets = None
    if times is not None:
        inside = list(times) if window is None else shown_within(source, times, start, end)
        if spec.sampling == "whole_rate":
            first = 0 if window is None else bisect_left(times, inside[0])
            seconds = None if window is None else int(window[1]) - int(window[0])
            targets = sampling.whole_rate_targets(
                times[first:], source.rate, spec.num_frames, seconds
            )
        elif spec.sampling == "per_second":
            targets = sampling.per_second_targets(inside, source.zero, spec.num_frames, source.tick)
        elif len(inside) < spec.num_frames and spec.short != "repeat":
            targets = inside
    if targets is None and window is not None and step:
        targets = _stepped(source, spec, window, span, step)
    if targets is None:
        targets = sampling.uniform_targets(start, end, spec.num_frames, source.tick)
    places, mask = sampling.fill_up(len(targets), spec.num_frames, spec.short)
    return WindowPlan(window, start, end, targets, places, mask, step)


def _stepped(
    source: VideoSource,
    spec: FrameSpec,
    window: Window,
    span: tuple[Fraction, Fraction],
    step: float,
) -> list[int] | None:
    """Moments ``step`` seconds apart; None where the video shows less of the window than that."""
    apart = Fraction(step) / source.tick
    if span[1] - span[0] + sampling.BORDER_TOLERANCE / source.tick < spec.num_frames * apart:
        return None
    # As the window was asked for, not as the video's ends cut it: else its neighbour's differ.
    first, last = (source.zero + Fraction(second) / source.tick for second in window)
    return sampling.stepped_targets(first, last, spec.num_frames, apart, source.tick)


def clipped(source: VideoSource, window: Window) -> tuple[Fraction, Fraction]:
    """Ticks of a window, cut at the ends of the video."""
    start, end = source.span()
    if not window[0] < window[1]:
        raise UsageError(
            f"window {window}: the start must lie before the end (seconds from the file's start)"
        )
    first = source.zero + Fraction(window[0]) / source.tick
    last = source.zero + Fraction(window[1]) / source.tick
    if first >= end or last <= start:
        raise VideoDecodeError(
            source.path,
            f"the window {window[0]:g}-{window[1]:g} s lies outside the video "
            f"({source.seconds(start):.2f}-{source.seconds(end):.2f} s)",
        )
    return max(first, Fraction(start)), min(last, Fraction(end))


def shown_within(
    source: VideoSource, times: Sequence[int], start: Fraction, end: Fraction
) -> list[int]:
    """The frame on show at ``start`` and all that follow before ``end``."""
    tolerance = sampling.BORDER_TOLERANCE / source.tick
    first = max(bisect_right(times, start + tolerance) - 1, 0)
    last = bisect_left(times, end - tolerance)
    return list(times[first : max(last, first + 1)])
