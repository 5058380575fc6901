"""Which moments of a video are looked at. Pure arithmetic on ticks; knows nothing of files.

A tick is the unit of a container's clock. All sums are exact fractions, so that a moment that
falls on the border of two frames goes to the later one on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from eaglenet.frame_spec import ShortVideo

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
