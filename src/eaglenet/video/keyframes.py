"""Decode windows from keyframes alone, in one pass that decodes nothing else.

A keyframe refers to no other frame, so decoding it takes one packet. A window is represented by
the keyframes nearest to a few times in it. Windows without a keyframe in or near them, or whose
keyframes do not decode, are left out: :func:`eaglenet.video.windows.decode_windows` decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglenet.core.frame_spec import FrameSpec, ShortVideo
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import Window, clip_window, fill_frames, uniform_targets
from eaglenet.video.windows import DecodedVideo

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource

FRAMES_PER_KEYFRAME = 3
"""A window of 6 frames gets 2 keyframes, one of 12 gets 4."""
REACH = 0.5
"""Distance from its window at which a keyframe may lie, as a fraction of the window's length. With
250 frames between keyframes, the default of x264, some windows of a film hold none."""
STEPS_BACK = (0, 1, 10, 60)
"""Seconds before the first time at which to look for a keyframe."""


@dataclass
class _Target:
    """A time, the range of keyframes that may represent it, and the best one so far."""

    time: int
    window: tuple[Fraction, Fraction]
    reach: tuple[Fraction, Fraction]
    packet: Any = None

    def offer(self, packet: Any) -> bool:
        """Take a keyframe if it is better; False if no later one can be."""
        if packet.pts > self.reach[1]:
            return False
        if packet.pts < self.reach[0]:
            return True
        if self.packet is None or self._cost(packet) < self._cost(self.packet):
            self.packet = packet
            return True
        return bool(packet.pts <= self.time)

    @property
    def time_of_packet(self) -> int:
        return self.time if self.packet is None else int(self.packet.pts)

    def _cost(self, packet: Any) -> tuple[bool, int]:
        is_outside = not self.window[0] <= packet.pts < self.window[1]
        return is_outside, abs(packet.pts - self.time)


@dataclass
class _Plan:
    """Keyframes of one window."""

    window: Window
    targets: list[_Target]
    frames: dict[int, Pixels] = field(default_factory=dict)
    """Pixels by time."""
    thumbnail: Pixels | None = None
    num_open: int = 0
    """Targets for which a better keyframe may follow."""


def num_keyframes(num_frames: int) -> int:
    """Return the number of keyframes that represent the frames of a window.

    >>> num_keyframes(6), num_keyframes(12), num_keyframes(1)
    (2, 4, 1)
    """
    return max(1, num_frames // FRAMES_PER_KEYFRAME)


def decode_keyframes(
    source: VideoSource,
    spec: FrameSpec,
    windows: Sequence[Window],
    thumbnail_size: int = 0,
    overlap: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode the keyframes of windows, in the order of their starts; some may be left out.

    Windows that overlap by ``overlap`` seconds share the keyframe there.
    """
    if not source.is_pickable:
        return  # Frame times are known only after decoding everything.
    plans = [_plan(source, spec, window, overlap) for window in sorted(windows)]
    open_targets = [(target, plan) for plan in plans for target in plan.targets]
    decoder = _Decoder(source, spec, thumbnail_size)
    first = min(target.time for target, _ in open_targets)
    last = max(target.reach[1] for target, _ in open_targets)
    next_plan = 0
    for packet in _keyframe_packets(source, first, last):
        still_open = []
        for target, plan in open_targets:
            if target.offer(packet):
                still_open.append((target, plan))
            else:
                decoder.decode(target, plan)
        open_targets = still_open
        decoder.forget_before(min((target.time_of_packet for target, _ in open_targets), default=0))
        while next_plan < len(plans) and not plans[next_plan].num_open:
            yield from _finish(source, spec, plans[next_plan])
            next_plan += 1
        if not open_targets:
            return
    for target, plan in open_targets:
        decoder.decode(target, plan)
    for plan in plans[next_plan:]:
        yield from _finish(source, spec, plan)


def _plan(source: VideoSource, spec: FrameSpec, window: Window, overlap: float) -> _Plan:
    """Choose times in the middle of overlaps and between, so that neighbours share keyframes."""
    start, end = clip_window(source, window)
    count = num_keyframes(spec.num_frames)
    inset = Fraction(overlap / 2) / source.tick
    if overlap and count > 1 and end - start > 2 * inset:
        distance = (end - start - 2 * inset) / (count - 1)
        times = [math.floor(start + inset + index * distance) for index in range(count)]
    else:
        times = uniform_targets(start, end, count, source.tick)
    beyond = Fraction(REACH) * (end - start)
    reach = (start - beyond, end + beyond)
    targets = [_Target(time, (start, end), reach) for time in times]
    return _Plan(window, targets, num_open=len(targets))


def _keyframe_packets(source: VideoSource, first: int, last: Fraction) -> Iterator[Any]:
    """Yield the packets of keyframes from before ``first`` on, up to the time ``last``."""
    second = math.ceil(1 / source.tick)
    for back in STEPS_BACK:
        source.seek(first - back * second)
        has_landed = False
        for packet in source.packets():
            if packet.pts is None or (packet.dts is not None and packet.dts > last):
                break
            if packet.is_keyframe and not packet.is_discard:
                if not has_landed and not source.has_landed(packet, first):
                    break
                has_landed = True
                yield packet
                if packet.pts > last:
                    break
        if has_landed:
            return


class _Decoder:
    """Decodes keyframes, each once even if several windows use it."""

    def __init__(self, source: VideoSource, spec: FrameSpec, thumbnail_size: int) -> None:
        self.source = source
        self.spec = spec
        self.thumbnail_size = thumbnail_size
        self._frames: dict[int, tuple[Any, Pixels] | None] = {}

    def decode(self, target: _Target, plan: _Plan) -> None:
        """Put the keyframe of a target into its plan, if there is one and it decodes."""
        plan.num_open -= 1
        packet = target.packet
        if packet is None:
            return
        if packet.pts not in self._frames:
            self._frames[packet.pts] = self._decode(packet)
        entry = self._frames[packet.pts]
        if entry is None:
            return
        frame, plan.frames[packet.pts] = entry
        if self.thumbnail_size and target is plan.targets[len(plan.targets) // 2]:
            plan.thumbnail = self.source.scaled_pixels(frame, self.thumbnail_size)

    def forget_before(self, time: int) -> None:
        """Free frames that no later window uses."""
        self._frames = {key: frame for key, frame in self._frames.items() if key >= time}

    def _decode(self, packet: Any) -> tuple[Any, Pixels] | None:
        source, errors = self.source, self.source.errors
        source.reset()
        frames = [*source.send(packet), *source.send(None)]
        source.reset()
        for frame in frames:
            if frame.pts == packet.pts and not frame.is_corrupt and source.errors == errors:
                return frame, source.square_pixels(frame, self.spec)
        return None


def _finish(source: VideoSource, spec: FrameSpec, plan: _Plan) -> Iterator[DecodedVideo]:
    """Yield the window if all of its keyframes were decoded."""
    if any(each.packet is None or each.packet.pts not in plan.frames for each in plan.targets):
        return
    times = sorted(plan.frames)
    # Blank frames would count as much as the few real ones.
    short: ShortVideo = "mask" if spec.short == "mask" else "repeat"
    indices, mask = fill_frames(len(times), spec.num_frames, short)
    frames = [times[index or 0] for index in indices]
    yield DecodedVideo(
        pixels=np.stack([plan.frames[time] for time in frames]),
        is_real=np.array(mask),
        times=np.array([source.seconds(time) for time in frames], np.float32),
        largest_error=0.0,
        window=plan.window,
        thumbnail=plan.thumbnail,
    )
