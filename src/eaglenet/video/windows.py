"""Frames of one or many windows of an opened video: pick what is planned, arrange, repair."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import pixels
from eaglenet.video.picking import PacketSource, UntimedPacketError, decode_through, pick_keyframes
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import (
    BORDER_TOLERANCE,
    Picked,
    Window,
    WindowPlan,
    plan_of,
    plan_window,
    shown_within,
)

if TYPE_CHECKING:
    from torch import Tensor

    from eaglenet.video.source import VideoSource


# The frame on show at each of many times, while decoding as little as possible.

SEEK_GAP_SECONDS = 2
"""Reading on costs some microseconds a packet; nearer keyframes than this are read up to."""

BUFFER_BYTES = 64 * 2**20
"""Packets read ahead of the decoder, at most; past it they are decoded rather than kept."""

STEPS_BACK = (0, 1, 10, 60, None)
"""Seconds before a moment at which a keyframe is looked for; then all is read from the start."""

WORTH_DRAINING = 4
"""Packets to be passed over for which it pays to drain the decoder and start at a keyframe."""


class _AstrayError(Exception):
    """Packets after a seek are not those that reading from the start gives."""


class _ExactPicker:
    """State of one ``pick_exact``: where reading is, what was sent, what is still to come."""

    def __init__(self, source: PacketSource) -> None:
        self.source = source
        self.stream = source.packets()
        self.unsent: deque[Any] = deque()
        self.unsent_bytes = 0
        self.times: list[int] = []  # sorted times of the packets read and still of interest
        self.frames: dict[int, Any] = {}  # decoded and waited for, or after all that is wanted
        self.waiting: dict[int, list[int]] = {}  # wanted time -> positions of its targets
        self.read_to: int | None = None  # no packet still to be read is shown before this
        self.decoding = False
        self.last_wanted = 0
        self.run_start = 0
        self.errors_at_start = source.errors
        self.has_jumped = False
        self.may_jump = True

    def read(self) -> bool:
        packet = next(self.stream, None)
        if packet is None:
            return False
        if self.has_jumped and not self.source.is_expected(packet):
            raise _AstrayError
        self.accept(packet)
        return True

    def accept(self, packet: Any) -> None:
        if packet.pts is None:
            raise UntimedPacketError
        # A packet is shown no earlier than it is decoded. Matroska leaves the first ones' dts open.
        if packet.dts is not None and (self.read_to is None or packet.dts > self.read_to):
            self.read_to = packet.dts
        # Packets that an edit list cuts away are needed as references and never shown.
        if not packet.is_discard:
            insort(self.times, packet.pts)
        self.unsent.append(packet)
        self.unsent_bytes += packet.size

    def read_up_to(self, target: int) -> None:
        """Read until no later packet can be the one on show at ``target``."""
        while self.read_to is None or self.read_to <= target or not self.times:
            if not self.read():
                return
            if self.unsent_bytes > BUFFER_BYTES:
                self.decode_first()

    def on_show(self, target: int) -> int | None:
        """Time of the frame on show at ``target``; the first one where none is yet."""
        if not self.times:
            return None
        return self.times[max(bisect_right(self.times, target) - 1, 0)]

    def jump(self, target: int, steps_back: Sequence[int | None] = STEPS_BACK) -> None:
        """Seek to a keyframe shown by ``target``; step back where a container overshoots."""
        per_second = math.ceil(1 / self.source.tick)
        for back in steps_back:
            self.has_jumped = back is not None
            if back is None:
                self.source.rewind()
            else:
                self.source.seek(target - back * per_second)
            self.stream = self.source.packets()
            self.unsent.clear()
            self.unsent_bytes = 0
            self.times.clear()
            self.read_to = None
            # Some containers (MPEG-TS) land anywhere: what precedes a keyframe cannot be decoded.
            packets = (packet for packet in self.stream if back is None or packet.is_keyframe)
            packet = next(packets, None)
            if packet and (back is None or self.source.has_landed(packet, target)):
                self.accept(packet)
                return

    def start_of(self, wanted: int) -> int:
        """Position in ``unsent`` of the keyframe from which to decode ``wanted``; 0 if none."""
        start = 0
        for position, packet in enumerate(self.unsent):
            if packet.is_keyframe and packet.pts <= wanted:
                start = position
            if packet.pts == wanted:
                # A drained decoder costs about as much as decoding on over a few packets.
                return start if start >= WORTH_DRAINING or not self.decoding else 0
        return 0

    def decode_first(self) -> None:
        packet = self.unsent.popleft()
        self.unsent_bytes -= packet.size
        if not self.decoding:
            self.decoding = True
            self.run_start = packet.pts
        # What precedes its keyframe in order of show refers to packets that were passed over.
        if packet.pts >= self.run_start:
            self.collect(self.source.send(packet, keep=packet.pts in self.waiting))

    def collect(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            # Decoded frames are large; one between two that are wanted is never asked for again.
            time = frame.pts
            if time is not None and (time in self.waiting or time >= self.last_wanted):
                self.frames[time] = frame

    def delivered(self) -> Iterator[tuple[int, Any]]:
        for time in [time for time in self.waiting if time in self.frames]:
            for position in self.waiting.pop(time):
                yield position, self.frames[time]

    def finish(self) -> Iterator[tuple[int, Any | None]]:
        """Drain the decoder; what was waited for and did not come is given as ``None``."""
        if self.decoding:
            self.collect(self.source.send(None))
            self.source.reset()
            self.decoding = False
        damaged = self.source.errors > self.errors_at_start
        self.errors_at_start = self.source.errors
        if not damaged:
            yield from self.delivered()
        for positions in self.waiting.values():
            for position in positions:
                yield position, None
        self.waiting.clear()
        self.frames.clear()

    def far_ahead(self, target: int) -> bool:
        gap = math.ceil(SEEK_GAP_SECONDS / self.source.tick)
        near = (self.read_to if self.read_to is not None else 0) + gap
        # Asking where keyframes are may read the whole file.
        if not self.may_jump or target <= near:
            return False
        keyframe = self.source.keyframe_before(target)
        return keyframe is not None and keyframe > near

    def want(self, target: int, position: int) -> Iterator[tuple[int, Any | None]]:
        if self.far_ahead(target):
            yield from self.finish()
            self.jump(target)
        try:
            self.read_up_to(target)
        except _AstrayError:
            yield from self.finish()
            self.may_jump = False
            self.jump(target, steps_back=(None,))
            self.read_up_to(target)
        wanted = self.on_show(target)
        if wanted is None:
            yield position, None
            return
        start = self.start_of(wanted)
        if start > 0:
            yield from self.finish()
            for _ in range(start):
                self.unsent_bytes -= self.unsent.popleft().size
        self.waiting.setdefault(wanted, []).append(position)
        self.last_wanted = wanted
        del self.times[: bisect_right(self.times, wanted) - 1]
        self.frames = {
            time: frame
            for time, frame in self.frames.items()
            if time in self.waiting or time >= wanted
        }
        if any(packet.pts == wanted for packet in self.unsent):
            while self.unsent[0].pts != wanted:
                self.decode_first()
            self.decode_first()
        if self.source.errors == self.errors_at_start:
            yield from self.delivered()


def pick_exact(source: PacketSource, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
    """For each of the sorted ``targets`` its position and the frame on show then.

    Frames come as the decoder gives them, so not always in order; ``None`` stands for a frame that
    did not decode. Raises ``UntimedPacketError`` where packets carry no times, or cannot
    be sought by them.
    """
    if not source.is_pickable:
        raise UntimedPacketError
    picker = _ExactPicker(source)
    for position, target in enumerate(targets):
        yield from picker.want(target, position)
    yield from picker.finish()


def frame_at(source: VideoSource, seconds: float) -> Any:
    """The frame on show at ``seconds``; the last one past the end."""
    moment = max(Fraction(seconds), Fraction(0)) + BORDER_TOLERANCE
    target = source.zero + int(moment / source.tick)
    try:
        for _, frame in pick_exact(source, [target]):
            if frame is not None:
                return frame
    except UntimedPacketError:
        pass
    best = None
    for time, frame in decode_through(source):
        if best is not None and time > target:
            break
        best = frame
    if best is None:
        raise VideoDecodeError(source.path, "no frame could be decoded from it")
    return best


# What decoded frames are held in: arrays, which a process that only decodes can make.


class HeldFrames:
    """Frames held as arrays and seen as tensors of the same memory.

    A process that only decodes does not import torch.
    """

    pixels: Pixels
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]

    @property
    def frames(self) -> Tensor:
        return _as_tensor(self.pixels)

    @property
    def mask(self) -> Tensor:
        return _as_tensor(self.is_real)

    @property
    def seconds(self) -> Tensor:
        return _as_tensor(self.times)


def _as_tensor(array: NDArray[Any]) -> Tensor:
    import torch

    return torch.from_numpy(array)


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
