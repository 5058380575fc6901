"""Find frames in a stream while decoding as little of it as possible.

Three ways, over a ``PacketSource`` (see ``source.VideoSource``):

- ``windows.pick_exact``: the frame shown at each time.
- ``pick_keyframes``: the keyframe nearest to each time; decodes one packet per frame.
- ``decode_through``: every undamaged frame in order, for damaged files and files without
  timestamps; a ``DecodedRun`` picks from these.

Times are ticks of the stream's clock. A frame is identified by its time (``pts``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol


class PacketSource(Protocol):
    """The operations on an open stream that picking needs."""

    tick: Fraction
    errors: int

    @property
    def has_times(self) -> bool:
        """Whether packets say when their frames are shown."""

    @property
    def is_pickable(self) -> bool:
        """Whether a frame can be found without decoding all frames before it."""

    def packets(self) -> Iterator[Any]:
        """Yield packets from the current position on, in decoding order."""

    def send(self, packet: Any, *, keep: bool = True) -> list[Any]:
        """Decode a packet; with ``keep=False`` an unreferenced frame may be dropped."""

    def reset(self) -> None:
        """Flush the decoder, so that it can start at another keyframe."""

    def seek(self, time: int) -> None:
        """Seek to a keyframe at or before ``time``, as far as the container knows."""

    def rewind(self) -> None:
        """Seek to the first packet."""

    def keyframe_before(self, time: int) -> int | None:
        """Return the approximate time of the last keyframe before ``time``, if seekable."""

    def has_landed(self, packet: Any, target: int) -> bool:
        """Return whether reading from a keyframe gives the same frames as from the start."""

    def is_expected(self, packet: Any) -> bool:
        """Return whether a packet after a seek has the time it has when read from the start."""


class UntimedPacketError(Exception):
    """A packet has no time; only decoding all frames tells what is shown when."""


class DecodedRun:
    """Frames of ``decode_through`` from the start, decoded as far as needed.

    Later requests continue where earlier ones stopped, with the same frames as from the start.
    """

    def __init__(self, source: PacketSource) -> None:
        self._frames = decode_through(source)
        self._shown: Any | None = None
        self._following: tuple[int, Any] | None = None
        self.passed: int | None = None
        """Latest time at which the shown frame changed."""

    def can_show(self, target: int) -> bool:
        """Return whether the frame shown at ``target`` can still be returned."""
        return self.passed is None or target >= self.passed

    def pick(self, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
        """Yield the position of each sorted target and the frame shown at that time."""
        position = 0
        while position < len(targets):
            self._following = self._following or next(self._frames, None)
            if self._following is None:
                yield position, self._shown
                position += 1
                continue
            time, frame = self._following
            if self._shown is not None:
                if time > targets[position]:
                    yield position, self._shown
                    position += 1
                    continue
                self.passed = time if self.passed is None else max(self.passed, time)
            self._shown, self._following = frame, None


def pick_keyframes(
    source: PacketSource, targets: Sequence[int], keyframes: Sequence[int] | None
) -> Iterator[tuple[int, Any | None]]:
    """Yield the position of each target and the frame of the nearest keyframe.

    ``keyframes`` are the times of all keyframes; without them, the one a seek finds is taken.
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


def _keyframe_near(source: PacketSource, time: int, is_keyframe: bool) -> Any | None:
    """Return the packet of the keyframe at ``time`` if there is one, else of the last before it."""
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


def decode_through(source: PacketSource, start: int | None = None) -> Iterator[tuple[int, Any]]:
    """Yield every undamaged frame and its time, from the keyframe before ``start`` on.

    After a packet fails, frames up to the next keyframe are skipped: they refer to it and show
    leftovers in memory. A frame without a time follows the previous one by one frame duration; such
    frames are skipped until a keyframe is decoded.
    """
    if start is None:
        source.rewind()
    else:
        source.seek(start)
    source.reset()
    damaged_times: set[int] = set()
    is_clean = True
    is_lost = False  # a frame without a time failed, and no keyframe was decoded since
    clock: int | None = None
    for packet in itertools.chain(source.packets(), (None,)):
        is_clean = is_clean or (packet is not None and packet.is_keyframe)
        errors = source.errors
        frames = source.send(packet)
        is_clean = is_clean and source.errors == errors
        if not is_clean and packet is not None:
            if source.has_times and packet.pts is not None:
                damaged_times.add(packet.pts)
            else:
                is_lost = True
        for frame in frames:
            clock = frame.pts = _time_of(frame, clock, source.has_times)
            is_lost = is_lost and not (is_clean and frame.key_frame)
            if not (frame.is_corrupt or is_lost or clock in damaged_times):
                yield clock, frame


def _time_of(frame: Any, previous: int | None, has_times: bool) -> int:
    if frame.pts is not None and has_times:
        return int(frame.pts)
    if previous is None:
        return 0
    return previous + max(int(frame.duration or 1), 1)
