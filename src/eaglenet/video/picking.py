"""Takes wanted frames out of a stream while decoding as little of it as possible.

Ways to do so, over a ``PacketSource`` (see ``source.VideoSource``):

- ``exact_picking.pick_exact``: the frame on show at each time.
- ``pick_keyframes``: the nearest keyframe to each time; decodes one packet a frame.
- ``decode_through``: every clean frame in order, for damaged files and files without timestamps;
  a ``DecodedRun`` picks from these, which needs no times of packets.

Times are ticks of the stream's clock throughout. A frame is known by its time (``pts``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol


class PacketSource(Protocol):
    """What picking needs of an opened stream."""

    tick: Fraction
    errors: int

    @property
    def has_times(self) -> bool:
        """Whether packets say when their frames are shown."""

    @property
    def is_pickable(self) -> bool:
        """Whether single frames can be found without decoding all before them."""

    def packets(self) -> Iterator[Any]:
        """Packets from the present position on, in decoding order."""

    def send(self, packet: Any, *, keep: bool = True) -> list[Any]:
        """Decode; ``keep=False`` allows to drop the frame if no other refers to it."""

    def reset(self) -> None:
        """Make the decoder ready for another keyframe."""

    def seek(self, time: int) -> None:
        """Go to a keyframe at or before ``time`` as far as the container knows."""

    def rewind(self) -> None:
        """Go to the first packet."""

    def keyframe_before(self, time: int) -> int | None:
        """About where the last keyframe before ``time`` is, if a seek can find it."""

    def has_landed(self, packet: Any, target: int) -> bool:
        """Whether reading on from a keyframe gives what reading from the start would."""

    def is_expected(self, packet: Any) -> bool:
        """Whether a packet after a seek has a time that it has when read from the start."""


class UntimedPacketError(Exception):
    """A packet without a time: only decoding through can tell what is shown when."""


class DecodedRun:
    """The frames of ``decode_through`` from the start, as far as somebody has wanted them.

    Whoever wants later ones reads on, and gets what reading from the start would give.
    """

    def __init__(self, source: PacketSource) -> None:
        self._frames = decode_through(source)
        self._shown: Any | None = None
        self._following: tuple[int, Any] | None = None
        self.passed: int | None = None
        """The latest time at which another frame has taken the place of the one on show."""

    def can_show(self, target: int) -> bool:
        """Whether what is shown at ``target`` has not been passed yet."""
        return self.passed is None or target >= self.passed

    def pick(self, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
        """For each of the sorted ``targets`` its position and the frame on show then."""
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
    """For each target its position and the nearest of the ``keyframes`` (their times).

    Without a list of keyframes, the one that a seek lands on.
    """
    chosen: dict[int, list[int]] = {}
    packets: dict[int, Any] = {}
    for position, target in enumerate(targets):
        place = target
        if keyframes:
            after = bisect_right(keyframes, target)
            near = keyframes[max(after - 1, 0) : after + 1]
            place = min(near, key=lambda time: abs(time - target))
        if place not in packets:
            packet = _keyframe_near(source, place, bool(keyframes))
            if packet is None:
                yield position, None
                continue
            place = packet.pts
            packets.setdefault(place, packet)
        chosen.setdefault(place, []).append(position)
    source.reset()
    frames = [frame for packet in packets.values() for frame in source.send(packet)]
    for frame in frames + source.send(None):
        for position in chosen.pop(frame.pts, ()):
            yield position, frame
    source.reset()
    for positions in chosen.values():
        for position in positions:
            yield position, None


def _keyframe_near(source: PacketSource, place: int, is_known: bool) -> Any | None:
    """The keyframe shown at ``place`` if that is known to be one, else the last before it."""
    nearest = None
    for back in (0, math.ceil(1 / source.tick), None):
        if back is None:
            source.rewind()
        else:
            source.seek(place - back)
        for packet in source.packets():
            if not packet.is_keyframe or packet.pts is None:
                continue
            if packet.pts > place:
                break
            nearest = packet
            if packet.pts == place or not is_known:
                return nearest
        if nearest is not None:
            return nearest
    return None


def decode_through(source: PacketSource, start: int | None = None) -> Iterator[tuple[int, Any]]:
    """Every clean frame and its time, from the keyframe before ``start`` on.

    After a packet that fails, frames are distrusted until the next keyframe: they refer to it, and
    show what happened to lie in memory. Frames without a time follow the one before by one frame
    duration; of these, all are distrusted until a keyframe comes out.
    """
    if start is None:
        source.rewind()
    else:
        source.seek(start)
    source.reset()
    distrusted: set[int] = set()
    is_clean = True
    is_lost = False  # a frame without a time failed, and no keyframe has come out since
    clock: int | None = None
    for packet in itertools.chain(source.packets(), (None,)):
        is_clean = is_clean or (packet is not None and packet.is_keyframe)
        errors = source.errors
        frames = source.send(packet)
        is_clean = is_clean and source.errors == errors
        if not is_clean and packet is not None:
            if source.has_times and packet.pts is not None:
                distrusted.add(packet.pts)
            else:
                is_lost = True
        for frame in frames:
            clock = frame.pts = _time_of(frame, clock, source.has_times)
            is_lost = is_lost and not (is_clean and frame.key_frame)
            if not (frame.is_corrupt or is_lost or clock in distrusted):
                yield clock, frame


def _time_of(frame: Any, previous: int | None, has_times: bool) -> int:
    if frame.pts is not None and has_times:
        return int(frame.pts)
    if previous is None:
        return 0
    return previous + max(int(frame.duration or 1), 1)
