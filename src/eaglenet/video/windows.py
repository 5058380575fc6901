"""Decode the frames of one or many windows of an open video, and repair damaged ones.

As little as possible is decoded: ``pick_exact`` finds the frame shown at each time,
``pick_keyframes`` the nearest keyframe, with one packet per frame. Files that are damaged or have
no times are decoded from the start (``reader.decode_through``).
"""

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
from eaglenet.video.pixels import Pixels
from eaglenet.video.reader import decode_through
from eaglenet.video.sampling import (
    BORDER_TOLERANCE,
    PickedFrame,
    Window,
    WindowPlan,
    frames_within,
    plan_targets,
    plan_window,
)

if TYPE_CHECKING:
    from torch import Tensor

    from eaglenet.video.source import VideoSource


SEEK_GAP_SECONDS = 2
"""Nearer keyframes are reached by reading on, which takes a few microseconds per packet."""

BUFFER_BYTES = 64 * 2**20
"""Maximum bytes of packets to read ahead of the decoder; beyond it, packets are decoded."""

STEPS_BACK = (0, 1, 10, 60, None)
"""Seconds before a target at which to look for a keyframe; None is the start of the file."""

MIN_SKIPPED_PACKETS = 4
"""Packets from which on draining the decoder to skip them is faster than decoding them."""


class UntimedPacketError(Exception):
    """A packet has no time; the times are known only after decoding all frames."""


class _AstrayError(Exception):
    """Packets after a seek differ from those read from the start."""


class _ExactPicker:
    """State of ``pick_exact``: the packets read, the packets sent, and the pending frames."""

    def __init__(self, source: VideoSource) -> None:
        self.source = source
        self.stream = source.packets()
        self.unsent: deque[Any] = deque()
        self.unsent_bytes = 0
        self.times: list[int] = []
        """Sorted times of packets that may still be needed."""
        self.frames: dict[int, Any] = {}
        """Decoded frames that are pending or later than all pending ones."""
        self.positions_by_time: dict[int, list[int]] = {}
        """Positions of the targets of each pending frame."""
        self.read_to: int | None = None
        """Unread packets are shown no earlier than this tick."""
        self.is_decoding = False
        self.last_requested = 0
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
        # A packet is shown no earlier than decoded. Matroska omits the dts of the first packets.
        if packet.dts is not None and (self.read_to is None or packet.dts > self.read_to):
            self.read_to = packet.dts
        # Packets removed by an edit list are needed as references but never shown.
        if not packet.is_discard:
            insort(self.times, packet.pts)
        self.unsent.append(packet)
        self.unsent_bytes += packet.size

    def read_up_to(self, target: int) -> None:
        """Read until no later packet can be shown at ``target``."""
        while self.read_to is None or self.read_to <= target or not self.times:
            if not self.read():
                return
            if self.unsent_bytes > BUFFER_BYTES:
                self.decode_first()

    def shown_at(self, target: int) -> int | None:
        """Return the time of the frame shown at ``target``, or of the first frame."""
        if not self.times:
            return None
        return self.times[max(bisect_right(self.times, target) - 1, 0)]

    def jump(self, target: int, steps_back: Sequence[int | None] = STEPS_BACK) -> None:
        """Seek to a keyframe at or before ``target``; step back if the seek lands after it."""
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
            # In MPEG-TS a seek lands anywhere; packets before a keyframe cannot be decoded.
            packets = (packet for packet in self.stream if back is None or packet.is_keyframe)
            packet = next(packets, None)
            if packet and (back is None or self.source.has_landed(packet, target)):
                self.accept(packet)
                return

    def start_of(self, time: int) -> int:
        """Return the position in ``unsent`` of the keyframe for ``time``; 0 if none."""
        start = 0
        for position, packet in enumerate(self.unsent):
            if packet.is_keyframe and packet.pts <= time:
                start = position
            if packet.pts == time:
                # Draining the decoder costs about as much as decoding a few packets.
                return start if start >= MIN_SKIPPED_PACKETS or not self.is_decoding else 0
        return 0

    def decode_first(self) -> None:
        packet = self.unsent.popleft()
        self.unsent_bytes -= packet.size
        if not self.is_decoding:
            self.is_decoding = True
            self.run_start = packet.pts
        # Packets shown before the keyframe refer to skipped ones.
        if packet.pts >= self.run_start:
            self.collect(self.source.send(packet, keep=packet.pts in self.positions_by_time))

    def collect(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            # Decoded frames are large, so those between two pending ones are dropped.
            time = frame.pts
            if time is not None and (time in self.positions_by_time or time >= self.last_requested):
                self.frames[time] = frame

    def ready_frames(self) -> Iterator[tuple[int, Any]]:
        for time in [time for time in self.positions_by_time if time in self.frames]:
            for position in self.positions_by_time.pop(time):
                yield position, self.frames[time]

    def finish(self) -> Iterator[tuple[int, Any | None]]:
        """Drain the decoder; yield None for pending frames that did not decode."""
        if self.is_decoding:
            self.collect(self.source.send(None))
            self.source.reset()
            self.is_decoding = False
        is_damaged = self.source.errors > self.errors_at_start
        self.errors_at_start = self.source.errors
        if not is_damaged:
            yield from self.ready_frames()
        for positions in self.positions_by_time.values():
            for position in positions:
                yield position, None
        self.positions_by_time.clear()
        self.frames.clear()

    def is_far_ahead(self, target: int) -> bool:
        gap = math.ceil(SEEK_GAP_SECONDS / self.source.tick)
        horizon = (self.read_to if self.read_to is not None else 0) + gap
        # Finding keyframes may scan the whole file, so it comes last.
        if not self.may_jump or target <= horizon:
            return False
        keyframe = self.source.keyframe_before(target)
        return keyframe is not None and keyframe > horizon

    def pick(self, target: int, position: int) -> Iterator[tuple[int, Any | None]]:
        if self.is_far_ahead(target):
            yield from self.finish()
            self.jump(target)
        try:
            self.read_up_to(target)
        except _AstrayError:
            yield from self.finish()
            self.may_jump = False
            self.jump(target, steps_back=(None,))
            self.read_up_to(target)
        time = self.shown_at(target)
        if time is None:
            yield position, None
            return
        start = self.start_of(time)
        if start > 0:
            yield from self.finish()
            for _ in range(start):
                self.unsent_bytes -= self.unsent.popleft().size
        self.positions_by_time.setdefault(time, []).append(position)
        self.last_requested = time
        del self.times[: bisect_right(self.times, time) - 1]
        self.frames = {
            other: frame
            for other, frame in self.frames.items()
            if other in self.positions_by_time or other >= time
        }
        if any(packet.pts == time for packet in self.unsent):
            while self.unsent[0].pts != time:
                self.decode_first()
            self.decode_first()
        if self.source.errors == self.errors_at_start:
            yield from self.ready_frames()


def pick_exact(source: VideoSource, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
    """Yield the position of each sorted target and the frame shown at that time.

    Frames come in decoding order; None means that a frame did not decode. Raises
    ``UntimedPacketError`` if packets have no times or cannot be found by time.
    """
    if not source.is_pickable:
        raise UntimedPacketError
    picker = _ExactPicker(source)
    for position, target in enumerate(targets):
        yield from picker.pick(target, position)
    yield from picker.finish()


def pick_keyframes(
    source: VideoSource, targets: Sequence[int], keyframes: Sequence[int] | None
) -> Iterator[tuple[int, Any | None]]:
    """Yield the position of each target and the frame of the nearest keyframe.

    ``keyframes`` are the times of all keyframes; if None, the keyframe that a seek finds is used.
    """
    positions_of: dict[int, list[int]] = {}
    packets: dict[int, Any] = {}
    for position, target in enumerate(targets):
        time = target
        if keyframes:
            after = bisect_right(keyframes, target)
            neighbours = keyframes[max(after - 1, 0) : after + 1]
            time = min(neighbours, key=lambda keyframe: abs(keyframe - target))
        if time not in packets:
            packet = _keyframe_near(source, time, bool(keyframes))
            if packet is None:
                yield position, None
                continue
            time = packet.pts
            packets.setdefault(time, packet)
        positions_of.setdefault(time, []).append(position)
    source.reset()
    frames = [frame for packet in packets.values() for frame in source.send(packet)]
    for frame in frames + source.send(None):
        for position in positions_of.pop(frame.pts, ()):
            yield position, frame
    source.reset()
    for positions in positions_of.values():
        for position in positions:
            yield position, None


def _keyframe_near(source: VideoSource, time: int, is_keyframe: bool) -> Any | None:
    """Return the packet of the keyframe at ``time``, or of the last one before it."""
    nearest = None
    for back in (0, math.ceil(1 / source.tick), None):
        if back is None:
            source.rewind()
        else:
            source.seek(time - back)
        for packet in source.packets():
            if not packet.is_keyframe or packet.pts is None:
                continue
            if packet.pts > time:
                break
            nearest = packet
            if packet.pts == time or not is_keyframe:
                return nearest
        if nearest is not None:
            return nearest
    return None


def frame_at(source: VideoSource, seconds: float) -> Any:
    """Return the frame shown at ``seconds``; past the end, the last one."""
    moment = max(Fraction(seconds), Fraction(0)) + BORDER_TOLERANCE
    target = source.zero + int(moment / source.tick)
    # An earlier call has read past its frame.
    source.rewind()
    source.reset()
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


class FrameArrays:
    """Frames as arrays, and as tensors that share their memory.

    Decoder processes create the arrays without importing torch.
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


MIN_CLEAN_FRACTION = 0.5
"""Minimum fraction of the frames of a damaged window that must decode."""

FROM_START_SECONDS = 120
"""Damaged windows within these first seconds of a file are decoded from its start."""

RUN_UP_SECONDS = 10
"""Seconds before a damaged window at which decoding starts."""


@dataclass(frozen=True)
class DecodedVideo(FrameArrays):
    """Frames of one window, uint8 [frames, 3, size, size].

    mask: True for frames of the video, False for padding.
    seconds: time of each frame from the start of the file, as in players.
    largest_error: largest distance in seconds between a sampled time and its frame: 0 for exact
        frames, more with ``FrameSpec.fast`` or near damage.
    """

    pixels: Pixels
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]
    largest_error: float
    window: Window | None = None
    thumbnail: Pixels | None = None
    """The uncropped middle frame, [3, height, width], if it was requested."""


def decode_windows(
    source: VideoSource,
    spec: FrameSpec,
    windows: Sequence[Window | None],
    skip_damaged: bool = False,
    thumbnail_size: int = 0,
    step: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode windows in one pass; yield each as soon as it and all earlier ones are complete.

    The frames of a window depend only on the file and the window. After damage, each window is
    therefore decoded alone: errors in one frame affect frames decoded together with it, and
    reading on may give other times than seeking. For the options, see
    :func:`eaglenet.video.decoding.decode_windows`.
    """
    plans = sorted(
        (plan_window(source, spec, window, step) for window in windows), key=lambda p: p.start
    )
    for plan in _pick_plans(source, spec, plans, thumbnail_size):
        own_plan = plan
        if len(plans) > 1 and _may_differ_alone(source, plan):
            with contextlib.closing(source.reopen(source.threads)) as own_source:
                own_plan = plan_window(own_source, spec, plan.window, plan.step)
                (own_plan,) = _pick_plans(own_source, spec, [own_plan], thumbnail_size)
        # A damaged window is repaired with another reader, so that this pass can continue.
        video = _finish(source, spec, own_plan, skip_damaged, thumbnail_size)
        plan.frames = {}
        if video is not None:
            yield video


def _pick_plans(
    source: VideoSource, spec: FrameSpec, plans: Sequence[WindowPlan], thumbnail_size: int
) -> Iterator[WindowPlan]:
    """Pick the frames of sorted plans in one pass; yield the plans in order once complete."""
    order = sorted(
        (target, number, index)
        for number, plan in enumerate(plans)
        for index, target in enumerate(plan.targets)
    )
    for plan in plans:
        plan.open_targets = len(plan.targets)
    next_plan = 0
    for position, frame, picked_frame in _pick(source, spec, [target for target, _, _ in order]):
        _, number, index = order[position]
        plan = plans[number]
        plan.open_targets -= 1
        if picked_frame is None:
            plan.is_damaged = True
        else:
            if thumbnail_size and index == len(plan.targets) // 2:
                thumbnail = source.scaled_pixels(frame, thumbnail_size)
                picked_frame = picked_frame._replace(thumbnail=thumbnail)
            plan.frames[index] = picked_frame
        while next_plan < len(plans) and plans[next_plan].open_targets == 0:
            yield plans[next_plan]
            next_plan += 1


def _may_differ_alone(source: VideoSource, plan: WindowPlan) -> bool:
    """Return whether decoding the window alone could give other frames."""
    if source.is_decoded_through:
        return False
    return plan.is_damaged or source.errors > 0 or source.is_miscounted


def _pick(
    source: VideoSource, spec: FrameSpec, targets: Sequence[int]
) -> Iterator[tuple[int, Any, PickedFrame | None]]:
    """Yield position, frame and pixels of each target; None and None if it did not decode."""
    latest: PickedFrame | None = None
    for position, frame in _frames(source, spec, targets):
        if frame is None:
            yield position, None, None
            continue
        # Neighbouring targets often share a frame; scale it once.
        if latest is None or frame.pts != latest.time:
            latest = PickedFrame(frame.pts, source.square_pixels(frame, spec))
        yield position, frame, latest


def _frames(
    source: VideoSource, spec: FrameSpec, targets: Sequence[int]
) -> Iterator[tuple[int, Any | None]]:
    if spec.fast and source.has_times:
        yield from pick_keyframes(source, targets, source.keyframes())
        return
    targets_by_position = dict(enumerate(targets))
    try:
        for position, frame in pick_exact(source, targets):
            del targets_by_position[position]
            yield position, frame
    except UntimedPacketError:
        positions, remaining_targets = list(targets_by_position), list(targets_by_position.values())
        source.is_decoded_through = len(remaining_targets) == len(targets)
        if not remaining_targets:
            return
        with source.decoded_run(remaining_targets[0]) as run:
            for index, frame in run.pick(remaining_targets):
                yield positions[index], frame


def _finish(
    source: VideoSource, spec: FrameSpec, plan: WindowPlan, skip_damaged: bool, thumbnail_size: int
) -> DecodedVideo | None:
    if not plan.is_damaged:
        error = 0.0
        if spec.fast:
            distances = (abs(plan.frames[index].time - t) for index, t in enumerate(plan.targets))
            error = float(max(distances) * source.tick)
        return _arrange(source, spec, plan, error)
    try:
        return _repair(source, spec, plan, thumbnail_size)
    except VideoDecodeError:
        if skip_damaged:
            return None
        raise


def _repair(
    source: VideoSource, spec: FrameSpec, plan: WindowPlan, thumbnail_size: int
) -> DecodedVideo:
    """Decode all frames of a window and sample from the undamaged ones."""
    with contextlib.closing(source.reopen()) as reader:
        table = reader.table()
        whole_span = (Fraction(table.times[0]), Fraction(table.end))
        span = whole_span if plan.window is None else (plan.start, min(plan.end, whole_span[1]))
        expected_times = (
            table.times if plan.window is None else frames_within(source, table.times, *span)
        )
        # Streams with gradual refresh need a run-up; some can start at the first frame only.
        one_second = math.ceil(1 / source.tick)
        run_up = int(plan.start) - RUN_UP_SECONDS * one_second
        # Decode from the start of the file only if it is near, to keep the total cost linear.
        starts: list[int | None] = [run_up] if run_up > table.times[0] else []
        if run_up <= table.times[0] + FROM_START_SECONDS * one_second:
            starts.append(None)
        for start in starts:
            frames = _until(decode_through(reader, start), expected_times[-1] + one_second)
            clean_times = sorted(
                time for time, _ in frames if expected_times[0] <= time <= expected_times[-1]
            )
            if len(clean_times) == len(expected_times):
                break
        if len(clean_times) < MIN_CLEAN_FRACTION * len(expected_times) or not clean_times:
            raise VideoDecodeError(
                source.path,
                f"only {len(clean_times)} of {len(expected_times)} frames could be decoded",
            )
        new_plan = plan_targets(reader, spec, plan.window, span, clean_times, plan.step)
        times = [clean_times[max(bisect_right(clean_times, t) - 1, 0)] for t in new_plan.targets]
        exact_times = [
            expected_times[max(bisect_right(expected_times, t) - 1, 0)] for t in new_plan.targets
        ]
        frames_by_time: dict[int, PickedFrame] = {}
        missing_times = set(times)
        for time, frame in decode_through(reader, start):
            if time in missing_times:
                thumbnail = reader.scaled_pixels(frame, thumbnail_size) if thumbnail_size else None
                frames_by_time[time] = PickedFrame(
                    time, reader.square_pixels(frame, spec), thumbnail
                )
                missing_times.remove(time)
            if not missing_times:
                break
        new_plan.frames = {index: frames_by_time[time] for index, time in enumerate(times)}
        error = max(abs(a - b) for a, b in zip(times, exact_times, strict=True))
        return _arrange(reader, spec, new_plan, float(error * reader.tick))


def _until(frames: Iterator[tuple[int, Any]], last: int) -> Iterator[tuple[int, Any]]:
    """Yield frames up to the first one after ``last``; they come almost in display order."""
    for time, frame in frames:
        if time > last:
            return
        yield time, frame


def _arrange(source: VideoSource, spec: FrameSpec, plan: WindowPlan, error: float) -> DecodedVideo:
    color = np.array(pixels.BLANK, np.uint8)[:, None, None]
    blank = np.broadcast_to(color, (3, spec.size, spec.size))
    last = plan.frames[len(plan.targets) - 1]
    frames = [
        PickedFrame(last.time, blank) if index is None else plan.frames[index]
        for index in plan.frame_indices
    ]
    return DecodedVideo(
        pixels=np.stack([frame.square for frame in frames]),
        is_real=np.array(plan.mask),
        times=np.array([source.seconds(frame.time) for frame in frames], np.float32),
        largest_error=error,
        window=plan.window,
        thumbnail=plan.frames[len(plan.targets) // 2].thumbnail,
    )
