"""Which moments of a video are looked at. Pure arithmetic on ticks; knows nothing of files.

A tick is the unit of a container's clock. All sums are exact fractions, so that a moment that
falls on the border of two frames goes to the later one on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec, ShortVideo
from eaglenet.video.pixels import Pixels

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource


BORDER_TOLERANCE = Fraction(1, 2000)
"""Seconds. Containers round times to a tick (Matroska: 1 ms), so a border is only known so well."""


def uniform_targets(start: Fraction, end: Fraction, num_frames: int, tick: Fraction) -> list[int]:
    """Middles of ``num_frames`` equal segments of ``[start, end)``, in ticks of ``tick`` seconds.

    t_i = start + (2 i + 1) (end - start) / (2 M)
    """
    tolerance = min(BORDER_TOLERANCE / tick, Fraction(1, 2))
    step = (end - start) / (2 * num_frames)
    return [math.floor(start + (2 * i + 1) * step + tolerance) for i in range(num_frames)]


def shared_step(clip_seconds: float, overlap: float, num_frames: int) -> float:
    """Seconds between the frames of a clip for which overlapping clips look at the same ones.

    Clips begin every h seconds. With n = ceil(h M / length) frames in that time the step h / n is
    not longer than the length / M of M equal segments, and clip after clip the moments fall on one
    grid: n frames are new in each, M - n those of the clip before. 0 where none would be shared.
    """
    hop = clip_seconds - overlap
    fresh = math.ceil(hop * num_frames / clip_seconds - 1e-9)
    return hop / fresh if fresh < num_frames else 0.0


def stepped_targets(
    start: Fraction, end: Fraction, num_frames: int, step: Fraction, tick: Fraction
) -> list[int]:
    """``num_frames`` moments ``step`` ticks apart about the middle of ``[start, end)``.

    t_i = (start + end) / 2 + (2 i + 1 - M) step / 2
    """
    tolerance = min(BORDER_TOLERANCE / tick, Fraction(1, 2))
    middle = (start + end) / 2 + tolerance
    return [math.floor(middle + (2 * i + 1 - num_frames) * step / 2) for i in range(num_frames)]


def evenly_spaced(count: int, num_frames: int) -> list[int]:
    """``num_frames`` positions out of ``count`` with both ends kept: an integer ``linspace``."""
    if num_frames == 1:
        return [0]
    return [i * (count - 1) // (num_frames - 1) for i in range(num_frames)]


def per_second_targets(
    times: Sequence[int], zero: int, num_frames: int, tick: Fraction
) -> list[int]:
    """Times of the first frame of each second, thinned to at most ``num_frames``.

    ``times`` are the frames' sorted times in ticks and ``zero`` the tick of second 0. A second in
    which no frame starts gives none.
    """
    first_of_second: dict[int, int] = {}
    for time in times:
        first_of_second.setdefault(math.floor((time - zero) * tick + BORDER_TOLERANCE), time)
    seconds = list(first_of_second.values())
    if len(seconds) <= num_frames:
        return seconds
    return [seconds[position] for position in evenly_spaced(len(seconds), num_frames)]


def whole_rate_targets(
    times: Sequence[int], rate: int, num_frames: int, num_seconds: int | None = None
) -> list[int]:
    """Times of the frames 0, n, 2n, ... with ``rate`` n, thinned to at most ``num_frames``.

    What the field's code takes for the first frame of each second: at 29.97 frames a second n is
    29. ``num_seconds`` bounds a window as that code does, whose last second is taken too.
    """
    chosen = list(times[:: max(rate, 1)])
    if num_seconds is not None:
        chosen = chosen[: num_seconds + 1]
    if len(chosen) <= num_frames:
        return chosen
    return [chosen[position] for position in evenly_spaced(len(chosen), num_frames)]


def fill_up(count: int, num_frames: int, short: ShortVideo) -> tuple[list[int | None], list[bool]]:
    """Spread ``count <= num_frames`` frames over ``num_frames`` places.

    Gives for each place the frame that goes there (``None``: a blank one) and whether it counts.
    """
    if short == "repeat":
        return [place * count // num_frames for place in range(num_frames)], [True] * num_frames
    padding = num_frames - count
    real: list[int | None] = list(range(count))
    if short == "mask":
        return real + [count - 1] * padding, [True] * count + [False] * padding
    return real + [None] * padding, [True] * num_frames


# Which moments of a video a window shows: the plan that picking then fills with frames.

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
            targets = whole_rate_targets(times[first:], source.rate, spec.num_frames, seconds)
        elif spec.sampling == "per_second":
            targets = per_second_targets(inside, source.zero, spec.num_frames, source.tick)
        elif len(inside) < spec.num_frames and spec.short != "repeat":
            targets = inside
    if targets is None and window is not None and step:
        targets = _stepped(source, spec, window, span, step)
    if targets is None:
        targets = uniform_targets(start, end, spec.num_frames, source.tick)
    places, mask = fill_up(len(targets), spec.num_frames, spec.short)
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
    if span[1] - span[0] + BORDER_TOLERANCE / source.tick < spec.num_frames * apart:
        return None
    # As the window was asked for, not as the video's ends cut it: else its neighbour's differ.
    first, last = (source.zero + Fraction(second) / source.tick for second in window)
    return stepped_targets(first, last, spec.num_frames, apart, source.tick)


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
    tolerance = BORDER_TOLERANCE / source.tick
    first = max(bisect_right(times, start + tolerance) - 1, 0)
    last = bisect_left(times, end - tolerance)
    return list(times[first : max(last, first + 1)])
