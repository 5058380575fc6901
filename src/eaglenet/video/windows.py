"""Frames of one or many windows of an opened video: pick what is planned, arrange, repair."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.errors import VideoDecodeError
from eaglenet.frame_spec import FrameSpec
from eaglenet.video import pixels
from eaglenet.video.exact_picking import pick_exact
from eaglenet.video.held_frames import HeldFrames
from eaglenet.video.picking import (
    UntimedPacketError,
    decode_through,
    pick_keyframes,
)
from eaglenet.video.pixels import Pixels
from eaglenet.video.planning import Picked, Window, WindowPlan, plan_of, plan_window, shown_within

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource

ENOUGH_CLEAN = 0.5
"""Share of a damaged window's frames that must decode for them to stand for the window."""

FROM_THE_BEGINNING = 120
"""Seconds up to which a damaged window is decoded from the start of the file."""

RUN_UP_SECONDS = 10
"""How far before a damaged window decoding starts."""


@dataclass(frozen=True)
class DecodedVideo(HeldFrames):
    """Frames of one window, uint8 [frames, 3, size, size].

    ``mask`` tells which places hold a frame of the video, ``seconds`` when it is shown, counted as
    players do from the file's start. ``largest_error`` is the largest distance in seconds from a
    moment asked for to the frame taken: 0 where frames are exact, more with ``FrameSpec.fast`` or
    next to a damaged part.
    """

    pixels: Pixels
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]
    largest_error: float
    window: Window | None = None
    picture: Pixels | None = None
    """The whole of the middle frame, [3, height, width], where a size was asked for."""


def decode_windows(
    source: VideoSource,
    spec: FrameSpec,
    windows: Sequence[Window | None],
    skip_damaged: bool = False,
    picture_size: int = 0,
    step: float = 0.0,
) -> Iterator[DecodedVideo]:
    """One pass over the file; a window is given as soon as it and those before it are complete.

    A window's frames are those of the file and the window alone: as soon as the pass has met
    damage, each window is looked at by itself, for what fails in decoding one frame is told of
    others that happen to be decoded with it, and reading on may find other times than seeking.
    ``picture_size``: the shorter side of the whole middle frame of each; 0: none is made.
    ``step``: seconds between the frames of windows that are long enough for it.
    """
    plans = sorted(
        (plan_window(source, spec, window, step) for window in windows), key=lambda p: p.start
    )
    order = sorted(
        (target, number, slot)
        for number, plan in enumerate(plans)
        for slot, target in enumerate(plan.targets)
    )
    for plan in plans:
        plan.open_targets = len(plan.targets)
    next_plan = 0
    middles = {
        position
        for position, (_, number, slot) in enumerate(order)
        if picture_size and slot == len(plans[number].targets) // 2
    }
    targets = [target for target, _, _ in order]
    for position, frame, picked in _pick(source, spec, targets):
        _, number, slot = order[position]
        if picked is not None and position in middles:
            picked = picked._replace(whole=source.picture(frame, picture_size))
        plan = plans[number]
        plan.open_targets -= 1
        if picked is None:
            plan.is_damaged = True
        else:
            plan.picked[slot] = picked
        while next_plan < len(plans) and plans[next_plan].open_targets == 0:
            complete = plans[next_plan]
            if len(plans) > 1 and _may_differ_alone(source, complete):
                complete = _picked_alone(source, spec, complete, picture_size)
            # The pass goes on after this window, so a damaged one is repaired on its own.
            finished = _finish(source, spec, complete, skip_damaged, picture_size)
            plans[next_plan].picked = {}
            next_plan += 1
            if finished is not None:
                yield finished


def _may_differ_alone(source: VideoSource, plan: WindowPlan) -> bool:
    """Whether a window of several could be another one by itself; decoded from the start, none."""
    if source.is_decoded_through:
        return False
    return plan.is_damaged or source.errors > 0 or source.is_miscounted


def _picked_alone(
    source: VideoSource, spec: FrameSpec, plan: WindowPlan, picture_size: int
) -> WindowPlan:
    """The same window as if nothing else had been asked for."""
    with contextlib.closing(source.reopened(source.threads)) as own:
        alone = plan_window(own, spec, plan.window, plan.step)
        for slot, frame, picked in _pick(own, spec, alone.targets):
            if picked is None:
                alone.is_damaged = True
                continue
            if picture_size and slot == len(alone.targets) // 2:
                picked = picked._replace(whole=own.picture(frame, picture_size))
            alone.picked[slot] = picked
    return alone


def _pick(
    source: VideoSource, spec: FrameSpec, targets: Sequence[int]
) -> Iterator[tuple[int, Any, Picked | None]]:
    """Position, decoded frame and its square; None and None where it did not decode."""
    latest: Picked | None = None
    for position, frame in _frames(source, spec, targets):
        if frame is None:
            yield position, None, None
            continue
        # Neighbouring targets often share a frame; it is scaled once.
        if latest is None or frame.pts != latest.time:
            latest = Picked(frame.pts, source.square(frame, spec))
        yield position, frame, latest


def _frames(
    source: VideoSource, spec: FrameSpec, targets: Sequence[int]
) -> Iterator[tuple[int, Any | None]]:
    if spec.fast and source.has_times:
        yield from pick_keyframes(source, targets, source.keyframes())
        return
    pending = dict(enumerate(targets))
    try:
        for position, frame in pick_exact(source, targets):
            del pending[position]
            yield position, frame
    except UntimedPacketError:
        positions, rest = list(pending), list(pending.values())
        source.is_decoded_through = len(rest) == len(targets)
        if not rest:
            return
        with source.decoded_run(rest[0]) as run:
            for place, frame in run.pick(rest):
                yield positions[place], frame


def _finish(
    source: VideoSource, spec: FrameSpec, plan: WindowPlan, skip_damaged: bool, picture_size: int
) -> DecodedVideo | None:
    if not plan.is_damaged:
        error = 0.0
        if spec.fast:
            distances = (abs(plan.picked[slot].time - t) for slot, t in enumerate(plan.targets))
            error = float(max(distances) * source.tick)
        return _arrange(source, spec, plan, error)
    try:
        return _repair(source, spec, plan, picture_size)
    except VideoDecodeError:
        if skip_damaged:
            return None
        raise


def _repair(
    source: VideoSource, spec: FrameSpec, plan: WindowPlan, picture_size: int
) -> DecodedVideo:
    """Decode the window through and sample from the frames that come out clean."""
    with contextlib.closing(source.reopened()) as repaired:
        table = repaired.table()
        whole = (Fraction(table.times[0]), Fraction(table.end))
        span = whole if plan.window is None else (plan.start, min(plan.end, whole[1]))
        expected = table.times if plan.window is None else shown_within(source, table.times, *span)
        # Streams that refresh gradually need a run-up; some have no other start than the first.
        one_second = math.ceil(1 / source.tick)
        near = int(plan.start) - RUN_UP_SECONDS * one_second
        # From the beginning only where that is near: over all clips of a film it would be a square.
        starts: list[int | None] = [near] if near > table.times[0] else []
        if near <= table.times[0] + FROM_THE_BEGINNING * one_second:
            starts.append(None)
        for start in starts:
            found = _until(decode_through(repaired, start), expected[-1] + one_second)
            clean = sorted(time for time, _ in found if expected[0] <= time <= expected[-1])
            if len(clean) == len(expected):
                break
        if len(clean) < ENOUGH_CLEAN * len(expected) or not clean:
            raise VideoDecodeError(
                source.path, f"only {len(clean)} of {len(expected)} frames could be decoded"
            )
        again = plan_of(repaired, spec, plan.window, span, clean, plan.step)
        chosen = [clean[max(bisect_right(clean, t) - 1, 0)] for t in again.targets]
        exact = [expected[max(bisect_right(expected, t) - 1, 0)] for t in again.targets]
        pictures: dict[int, Picked] = {}
        missing = set(chosen)
        for time, frame in decode_through(repaired, start):
            if time in missing:
                uncut = repaired.picture(frame, picture_size) if picture_size else None
                pictures[time] = Picked(time, repaired.square(frame, spec), uncut)
                missing.remove(time)
            if not missing:
                break
        again.picked = {slot: pictures[time] for slot, time in enumerate(chosen)}
        error = max(abs(a - b) for a, b in zip(chosen, exact, strict=True))
        return _arrange(repaired, spec, again, float(error * repaired.tick))


def _until(frames: Iterator[tuple[int, Any]], last: int) -> Iterator[tuple[int, Any]]:
    """Frames come about in order of show, so what follows ``last`` need not be decoded."""
    for time, frame in frames:
        if time > last:
            return
        yield time, frame


def _arrange(source: VideoSource, spec: FrameSpec, plan: WindowPlan, error: float) -> DecodedVideo:
    color = np.array(pixels.BLANK, np.uint8)[:, None, None]
    blank = np.broadcast_to(color, (3, spec.size, spec.size))
    last = plan.picked[len(plan.targets) - 1]
    shown = [Picked(last.time, blank) if p is None else plan.picked[p] for p in plan.places]
    return DecodedVideo(
        pixels=np.stack([one.picture for one in shown]),
        is_real=np.array(plan.mask),
        times=np.array([source.seconds(one.time) for one in shown], np.float32),
        largest_error=error,
        window=plan.window,
        picture=plan.picked[len(plan.targets) // 2].whole,
    )
