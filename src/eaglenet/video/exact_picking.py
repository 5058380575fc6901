"""The frame on show at each of many times, while decoding as little as possible.

Only packets between a keyframe and the wanted frame are decoded, frames that nothing refers to are
dropped undecoded, and the file is sought only where reading on would pass over more packets than a
seek is worth.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from eaglenet.errors import VideoDecodeError
from eaglenet.video.picking import PacketSource, UntimedPacketError, decode_through
from eaglenet.video.sampling import BORDER_TOLERANCE

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource

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
