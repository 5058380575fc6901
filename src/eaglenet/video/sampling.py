"""Times to sample from a video: arithmetic on ticks, without access to files.

A tick is the unit of a container's clock. The arithmetic uses exact fractions, so a time on the
border between two frames belongs to the later one on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec, ShortVideo
from eaglenet.video.pixels import Pixels

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource


BORDER_TOLERANCE = Fraction(1, 2000)
"""Seconds by which times may be inexact: containers round them to a tick (Matroska: 1 ms)."""


def uniform_targets(start: Fraction, end: Fraction, num_frames: int, tick: Fraction) -> list[int]:
    """Return the middles of ``num_frames`` equal segments of ``[start, end)``, in ticks.

    t_i = start + (2 i + 1) (end - start) / (2 M)
    """
    tolerance = min(BORDER_TOLERANCE / tick, Fraction(1, 2))
    step = (end - start) / (2 * num_frames)
    return [math.floor(start + (2 * i + 1) * step + tolerance) for i in range(num_frames)]


def shared_step(clip_seconds: float, overlap: float, num_frames: int) -> float:
    """Return the seconds between frames for which overlapping clips share frames.

    Clips begin every h seconds. With n = ceil(h M / length) frames in that time, the step h / n is
    at most length / M, the step of M equal segments, and the times of all clips lie on one grid:
    each clip has n new frames and shares M - n with the previous clip. Returns 0 if clips would
    share no frame.
    """
    hop = clip_seconds - overlap
    num_new = math.ceil(hop * num_frames / clip_seconds - 1e-9)
    return hop / num_new if num_new < num_frames else 0.0


def stepped_targets(
    start: Fraction, end: Fraction, num_frames: int, step: Fraction, tick: Fraction
) -> list[int]:
    """Return ``num_frames`` times, ``step`` ticks apart, around the middle of ``[start, end)``.

    t_i = (start + end) / 2 + (2 i + 1 - M) step / 2
    """
    tolerance = min(BORDER_TOLERANCE / tick, Fraction(1, 2))
    middle = (start + end) / 2 + tolerance
    return [math.floor(middle + (2 * i + 1 - num_frames) * step / 2) for i in range(num_frames)]


def evenly_spaced(count: int, num_frames: int) -> list[int]:
    """Return ``num_frames`` positions out of ``count``, including both ends.

    They equal those of NumPy's linspace, which released code uses: its step is a float, so some
    positions are one lower than the exact quotient.
    """
    if num_frames == 1:
        return [0]
    step = (count - 1) / (num_frames - 1)
    return [*(int(i * step) for i in range(num_frames - 1)), count - 1]


def middle_positions(count: int, num_frames: int) -> list[int]:
    """Return the middles of ``num_frames`` equal runs of ``count`` positions; all if fewer."""
    borders = evenly_spaced(count + 1, min(count, num_frames) + 1)
    return [(first + end - 1) // 2 for first, end in pairwise(borders)]


def before_middle_positions(count: int, num_frames: int) -> list[int]:
    """Return the positions before :func:`middle_positions`, as in BridgeFormer and MILES."""
    return [max(position - 1, 0) for position in middle_positions(count, num_frames)]


POSITIONS: dict[str, Callable[[int, int], list[int]]] = {
    "middle_frames": middle_positions,
    "before_middle": before_middle_positions,
    "first_to_last": evenly_spaced,
}
"""Functions of the samplings that depend on the number of frames only."""


def counted_positions(count: int, spec: FrameSpec) -> list[int]:
    """Return the positions to take out of ``count`` frames whose times are unknown.

    If they are fewer than ``num_frames``, these are all frames, except with ``first_to_last`` and
    ``before_middle``.
    """
    if spec.sampling in POSITIONS:
        return POSITIONS[spec.sampling](count, spec.num_frames)
    if count < spec.num_frames:
        return middle_positions(count, spec.num_frames)
    return [(2 * i + 1) * count // (2 * spec.num_frames) for i in range(spec.num_frames)]


def per_second_targets(
    times: Sequence[int], zero: int, num_frames: int, tick: Fraction
) -> list[int]:
    """Return the times of the first frame of each second, or an evenly spaced subset.

    ``times`` are the sorted frame times in ticks, ``zero`` is the tick of second 0. A second in
    which no frame starts is skipped.
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
    """Return the times of frames 0, n, 2n, ... for ``rate`` n, or an evenly spaced subset.

    Released code counts seconds this way: at 29.97 frames per second, n is 29, or 30 if it rounds.
    ``num_seconds`` is the length of a window, whose last second that code includes.
    """
    candidates = list(times[:: max(rate, 1)])
    if num_seconds is not None:
        candidates = candidates[: num_seconds + 1]
    if len(candidates) <= num_frames:
        return candidates
    return [candidates[position] for position in evenly_spaced(len(candidates), num_frames)]


def second_pairs(times: Sequence[int], rate: float, num_frames: int, length: float) -> list[int]:
    """Return the times of the first and the last frame of each clip of one second.

    As in ClipBERT: of n clips, clip i starts at i / n of the video without its last second, and a
    single clip at a third of it. ``length`` is that of the video in ticks. The last frame may lie
    shortly after its clip: positions in the video are rounded to ticks, those in clips to frames.
    """
    num_clips, ticks = num_frames // 2, length / len(times)
    last_start = max(len(times) - rate, 0.0)
    pairs = []
    for clip in range(num_clips):
        start = last_start * clip / num_clips if num_clips > 1 else last_start / 3
        first = bisect_left(times, times[0] + int(start * ticks))
        after = bisect_right(times, times[0] + int((start + rate - 1) * ticks))
        last = min(first + max(int(rate - 1), 0), max(after, first), len(times) - 1)
        pairs += [times[first], times[last]]
    return pairs


def fill_frames(
    count: int, num_frames: int, short: ShortVideo
) -> tuple[list[int | None], list[bool]]:
    """Assign ``count <= num_frames`` frames to ``num_frames`` positions.

    Returns the index of the frame at each position (None: a blank frame), and a mask of the real
    frames.
    """
    if short == "repeat":
        return [index * count // num_frames for index in range(num_frames)], [True] * num_frames
    if short == "spread":
        return [*evenly_spaced(count, num_frames)], [True] * num_frames
    padding = num_frames - count
    real: list[int | None] = list(range(count))
    if short == "mask":
        return real + [count - 1] * padding, [True] * count + [False] * padding
    last = count - 1 if short == "repeat_last" else None
    return real + [last] * padding, [True] * num_frames


Window = tuple[float, float]
"""Start and end in seconds."""


class PickedFrame(NamedTuple):
    """Time of a frame, its square pixels, and the uncropped frame for a thumbnail."""

    time: int
    square: Pixels
    thumbnail: Pixels | None = None


@dataclass
class WindowPlan:
    """Times to decode for one window, and the order of the decoded frames.

    frame_indices: positions in ``targets``; None is a blank frame.
    open_targets: number of targets without a frame so far.
    """

    window: Window | None
    start: Fraction
    end: Fraction
    targets: list[int]
    frame_indices: list[int | None]
    mask: list[bool]
    step: float = 0.0
    frames: dict[int, PickedFrame] = field(default_factory=dict)
    is_damaged: bool = False
    open_targets: int = 0


def plan_window(
    source: VideoSource, spec: FrameSpec, window: Window | None, step: float = 0.0
) -> WindowPlan:
    start, end = (Fraction(tick) for tick in source.span())
    if window is not None:
        start, end = clip_window(source, window)
    table = None
    if spec.sampling != "uniform" or spec.short != "repeat":
        table = source.table()
    return plan_targets(source, spec, window, (start, end), table.times if table else None, step)


def plan_targets(
    source: VideoSource,
    spec: FrameSpec,
    window: Window | None,
    span: tuple[Fraction, Fraction],
    times: Sequence[int] | None,
    step: float,
) -> WindowPlan:
    """Plan one window. ``times`` of all frames are needed for sampling that counts frames."""
    start, end = span
    targets = None
    if times is not None:
        times_inside = list(times) if window is None else frames_within(source, times, start, end)
        num_frames, count = spec.num_frames, len(times_inside)
        if spec.sampling == "whole_rate":
            first = 0 if window is None else bisect_left(times, times_inside[0])
            seconds = None if window is None else int(window[1]) - int(window[0])
            targets = whole_rate_targets(times[first:], int(source.rate), num_frames, seconds)
        elif spec.sampling == "rounded_rate":
            targets = whole_rate_targets(times_inside, round(source.rate), num_frames)
        elif spec.sampling == "per_second":
            targets = per_second_targets(times_inside, source.zero, num_frames, source.tick)
        elif spec.sampling in POSITIONS:
            positions = POSITIONS[spec.sampling](count, num_frames)
            targets = [times_inside[position] for position in positions]
        elif spec.sampling == "second_pairs":
            pair_times = second_pairs(
                times_inside, float(source.rate), num_frames, float(end - start)
            )
            targets = sorted(set(pair_times))
            order: list[int | None] = [bisect_left(targets, time) for time in pair_times]
            return WindowPlan(window, start, end, targets, order, [True] * num_frames, step)
        elif count < num_frames and spec.short != "repeat":
            targets = times_inside
        if targets is not None and len(targets) < num_frames and spec.short == "spread":
            targets = [times_inside[index] for index in evenly_spaced(count, num_frames)]
    if targets is None and window is not None and step:
        targets = _stepped_times(source, spec, window, span, step)
    if targets is None:
        targets = uniform_targets(start, end, spec.num_frames, source.tick)
    frame_indices, mask = fill_frames(len(targets), spec.num_frames, spec.short)
    return WindowPlan(window, start, end, targets, frame_indices, mask, step)


def _stepped_times(
    source: VideoSource,
    spec: FrameSpec,
    window: Window,
    span: tuple[Fraction, Fraction],
    step: float,
) -> list[int] | None:
    """Return times that are ``step`` seconds apart; None if the window is too short."""
    ticks = Fraction(step) / source.tick
    if span[1] - span[0] + BORDER_TOLERANCE / source.tick < spec.num_frames * ticks:
        return None
    # Based on the requested window, not the clipped one, so that neighbouring windows share times.
    first, last = (source.zero + Fraction(second) / source.tick for second in window)
    return stepped_targets(first, last, spec.num_frames, ticks, source.tick)


def clip_window(source: VideoSource, window: Window) -> tuple[Fraction, Fraction]:
    """Convert a window to ticks and clip it to the video."""
    start, end = source.span()
    if not window[0] < window[1]:
        raise UsageError(
            f"window {window}: the start must be before the end (seconds from the file's start)"
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


def frames_within(
    source: VideoSource, times: Sequence[int], start: Fraction, end: Fraction
) -> list[int]:
    """Return the times of the frame shown at ``start`` and all later ones before ``end``."""
    tolerance = BORDER_TOLERANCE / source.tick
    first = max(bisect_right(times, start + tolerance) - 1, 0)
    last = bisect_left(times, end - tolerance)
    return list(times[first : max(last, first + 1)])
