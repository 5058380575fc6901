"""Takes wanted frames out of a stream while decoding as little of it as possible.

Ways to do so, over a ``PacketSource`` (see ``source.VideoSource``):

- ``pick_exact``: the frame on show at each time. Only packets between a keyframe and the wanted
  frame are decoded, frames that nothing refers to are dropped undecoded, and the file is sought
  only where reading on would pass over more packets than a seek is worth.
- ``pick_keyframes``: the nearest keyframe to each time; decodes one packet a frame.
- ``decode_through``: every clean frame in order, for damaged files and files without timestamps;
  ``pick_decoded`` picks from these.

Times are ticks of the stream's clock throughout. A frame is known by its time (``pts``).
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol

SEEK_GAP_SECONDS = 2
"""Reading on costs some microseconds a packet; nearer keyframes than this are read up to."""

BUFFER_BYTES = 64 * 2**20
"""Packets read ahead of the decoder, at most; past it they are decoded rather than kept."""


WORTH_DRAINING = 4
"""Packets to be passed over for which it pays to drain the decoder and start at a keyframe."""


class PacketSource(Protocol):
    """What picking needs of an opened stream."""

    tick: Fraction
    errors: int

    @property
    def has_times(self) -> bool:
        """Whether packets say when their frames are shown."""

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
        """Decoding time of the last indexed keyframe before ``time``, if there is an index."""


class UntimedPacketError(Exception):
    """A packet without a time: only decoding through can tell what is shown when."""


class _ExactPicker:
    """State of one ``pick_exact``: where reading is, what was sent, what is still to come."""

    def __init__(self, source: PacketSource) -> None:
        self.source = source
        self.stream = source.packets()
        self.unsent: deque[Any] = deque()
        self.unsent_bytes = 0
        self.times: list[int] = []  # sorted times of the packets read and still of interest
        self.frames: dict[int, Any] = {}  # decoded, at or after the last wanted time
        self.waiting: dict[int, list[int]] = {}  # wanted time -> positions of its targets
        self.read_to: int | None = None  # no packet still to be read is shown before this
        self.decoding = False
        self.oldest_wanted = 0
        self.run_start = 0
        self.errors_at_start = source.errors

    def read(self) -> bool:
        packet = next(self.stream, None)
        if packet is None:
            return False
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
        return True

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

    def jump(self, target: int) -> None:
        """Seek to a keyframe shown by ``target``; step back where a container overshoots."""
        per_second = math.ceil(1 / self.source.tick)
        for back in (0, 1, 10, 60, None):
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
            while self.read() and back is not None and not self.unsent[-1].is_keyframe:
                self.unsent.clear()
                self.unsent_bytes = 0
                self.times.clear()
            if self.unsent and self.unsent[-1].pts <= target:
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
            if frame.pts is not None and frame.pts >= self.oldest_wanted:
                self.frames[frame.pts] = frame

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
        keyframe = self.source.keyframe_before(target)
        if keyframe is None:
            return False
        gap = math.ceil(SEEK_GAP_SECONDS / self.source.tick)
        return keyframe > (self.read_to if self.read_to is not None else 0) + gap

    def want(self, target: int, position: int) -> Iterator[tuple[int, Any | None]]:
        if self.far_ahead(target):
            yield from self.finish()
            self.jump(target)
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
        self.oldest_wanted = min(self.waiting)
        del self.times[: bisect_right(self.times, wanted) - 1]
        self.frames = {t: frame for t, frame in self.frames.items() if t >= self.oldest_wanted}
        if any(packet.pts == wanted for packet in self.unsent):
            while self.unsent[0].pts != wanted:
                self.decode_first()
            self.decode_first()
        if self.source.errors == self.errors_at_start:
            yield from self.delivered()


def pick_exact(source: PacketSource, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
    """For each of the sorted ``targets`` its position and the frame on show then.

    Frames come as the decoder gives them, so not always in order; ``None`` stands for a frame that
    did not decode. Raises ``UntimedPacketError`` where packets carry no times.
    """
    if not source.has_times:
        raise UntimedPacketError
    picker = _ExactPicker(source)
    for position, target in enumerate(targets):
        yield from picker.want(target, position)
    yield from picker.finish()


def pick_decoded(source: PacketSource, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
    """As ``pick_exact`` by decoding everything, which needs no times of packets."""
    shown = None
    position = 0
    for time, frame in decode_through(source):
        while position < len(targets) and shown is not None and time > targets[position]:
            yield position, shown
            position += 1
        if position == len(targets):
            return
        shown = frame
    for rest in range(position, len(targets)):
        yield rest, shown


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

    After a packet that fails, frames are distrusted until the next keyframe: they refer to it.
    Frames without a time follow the one before by one frame duration.
    """
    if start is None:
        source.rewind()
    else:
        source.seek(start)
    source.reset()
    distrusted: set[int] = set()
    is_clean = True
    clock: int | None = None
    for packet in source.packets():
        is_clean = is_clean or packet.is_keyframe
        errors = source.errors
        frames = source.send(packet)
        is_clean = is_clean and source.errors == errors
        if not is_clean and packet.pts is not None:
            distrusted.add(packet.pts)
        for frame in frames:
            clock = frame.pts = _time_of(frame, clock, source.has_times)
            if not frame.is_corrupt and clock not in distrusted:
                yield clock, frame
    for frame in source.send(None):
        clock = frame.pts = _time_of(frame, clock, source.has_times)
        if not frame.is_corrupt and clock not in distrusted:
            yield clock, frame


def _time_of(frame: Any, previous: int | None, has_times: bool) -> int:
    if frame.pts is not None and has_times:
        return int(frame.pts)
    if previous is None:
        return 0
    return previous + max(int(frame.duration or 1), 1)
