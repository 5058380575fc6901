"""Which moments of a window are looked at, and where their frames then go."""

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
    picked: dict[int, Picked] = field(default_factory=dict)
    is_damaged: bool = False
    open_targets: int = 0


def plan_window(source: VideoSource, spec: FrameSpec, window: Window | None) -> WindowPlan:
    start, end = (Fraction(tick) for tick in source.span())
    if window is not None:
        start, end = clip(source, window)
    table = None
    if spec.sampling != "uniform" or spec.short != "repeat":
        table = source.table()
    return plan_moments(source, spec, window, (start, end), table.times if table else None)


def plan_moments(
    source: VideoSource,
    spec: FrameSpec,
    window: Window | None,
    span: tuple[Fraction, Fraction],
    times: Sequence[int] | None,
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
    if targets is None:
        targets = sampling.uniform_targets(start, end, spec.num_frames, source.tick)
    places, mask = sampling.fill_up(len(targets), spec.num_frames, spec.short)
    return WindowPlan(window, start, end, targets, places, mask)


def clip(source: VideoSource, window: Window) -> tuple[Fraction, Fraction]:
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
