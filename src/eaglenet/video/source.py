"""When the frames of an opened file are shown: what reads frames is handed a ``VideoSource``."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import pixels
from eaglenet.video.containers import pyav
from eaglenet.video.limits import MAX_PACKETS
from eaglenet.video.picking import DecodedRun, PacketSource, decode_through
from eaglenet.video.reader import KEPT, KeptRun, OpenedVideo

# When the frames of a file are shown, found by reading its packets without decoding them.

READABLE_PART = 0.25
"""Share of a damaged file's declared length that must be readable."""


class PacketTable(NamedTuple):
    """Times (ticks) found by reading a file's packets without decoding them."""

    times: list[int]
    keyframes: list[int]
    end: int
    places: dict[int, int | None]
    """Byte at which each keyframe lies; the first where several have one time. Empty where packets
    have no times of their own."""


class FileSource(PacketSource, Protocol):
    """What a table is made from: an opened stream that knows its file."""

    path: Path

    @property
    def is_cut_short(self) -> bool:
        """Whether the container lists packets that lie past the end of the file."""

    def declared_seconds(self) -> float | None:
        """How long the video stream says it is, where it says so."""


def read_table(source: FileSource) -> PacketTable:
    """Read a stream from where it is to its end."""
    times: list[int] = []
    keyframes: list[int] = []
    places: dict[int, int | None] = {}
    end = 0
    is_timed = True
    for count, packet in enumerate(source.packets()):
        if count >= MAX_PACKETS:
            raise VideoDecodeError(source.path, f"has more than {MAX_PACKETS} packets")
        # In AVI the n-th frame to be decoded is not the n-th shown, but there are as many.
        time = packet.pts if source.has_times else packet.dts
        is_timed = is_timed and time is not None
        if time is None or packet.is_discard:
            continue
        times.append(time)
        end = max(end, time + (packet.duration or 0))
        if packet.is_keyframe:
            keyframes.append(time)
            places.setdefault(time, packet.pos)
    if not is_timed:
        times = keyframes = [time for time, _ in decode_through(source)]
        places = {}
        end = 0
    if not times:
        raise VideoDecodeError(source.path, "no frame could be read from it")
    times = sorted(times)
    # The last frame is shown as long as the one before it, where nothing else is known.
    last = max(times[-1] - times[-2], 1) if len(times) > 1 else 1
    return PacketTable(times, sorted(keyframes), max(end, times[-1] + last), places)


def check_readable_part(source: FileSource, table: PacketTable) -> None:
    """A file cut short stands for its readable part; one of which little is left does not."""
    declared = source.declared_seconds()
    readable = float((table.end - table.times[0]) * source.tick)
    if declared is not None and readable < READABLE_PART * declared and not source.is_cut_short:
        raise VideoDecodeError(
            source.path, f"damaged: only {readable:.1f} of its {declared:.1f} seconds can be read"
        )


SCAN_BYTES = 256 * 2**20
"""Files without an index are read whole to learn their frame times only up to this size."""

LONG_GAP = 300.0
"""Seconds without a frame that split a video in two: its times jump, nothing is shown meanwhile."""

LONG_GROUP = 2000
"""Packets after the last keyframe that are worth reading to learn where the video ends."""

LEAST_BYTES_A_SECOND = 50

LIKELY_GROUP = 10
"""Seconds from one keyframe to the next, where only a seek would tell."""


class VideoSource(OpenedVideo):
    """An opened video stream that knows when its frames are shown, and where they lie."""

    def __init__(self, path: str | Path, *, threads: int = 0, keep_open: bool = False) -> None:
        super().__init__(path, threads=threads, keep_open=keep_open)
        self._table: PacketTable | None = None
        self._span: tuple[int, int] | None = None
        self.is_decoded_through = False
        """Whether all frames were found by decoding from the start, as only that tells times."""
        self._is_listed = self._lists_most()
        self._listed = self._listed_keyframes()
        # A whole index of an AVI knows better than reading, which passes over what it cannot read.
        self._is_fully_listed = self.container.format.name == "avi" and (
            len(self.stream.index_entries) == self.stream.frames
        )
        self.tick = Fraction(self.stream.time_base)
        self.aspect = pixels.pixel_aspect(self.stream)
        self.reformatter = pyav().video.reformatter.VideoReformatter()

    def reopened(self, threads: int = 1) -> VideoSource:
        """The same file from its start; decoded without threads, errors tell which packet."""
        return VideoSource(self.path, threads=threads, keep_open=self.is_kept_open)

    @property
    def zero(self) -> int:
        """Tick of second 0: where the container starts, which is what players show as 0:00."""
        if self.container.format.name == "avi":
            # Without times of its own, and a frame late by the clock of some decoders.
            return self.span()[0]
        start = Fraction(self.container.start_time or 0, 10**6) / self.tick
        own = self.stream.start_time
        # The container's time is cut to microseconds; the stream's own is exact.
        if own is not None and abs(own - start) * self.tick < Fraction(1, 10**5):
            return int(own)
        return round(start)

    @property
    def rate(self) -> int:
        """Whole frames a second, as OpenCV tells them; 1 where the file does not say."""
        return max(int(self.stream.average_rate or self.stream.guessed_rate or 1), 1)

    @property
    def has_times(self) -> bool:
        """AVI holds no times of show: where frames are reordered, only decoding tells."""
        return not (self.container.format.name == "avi" and self._context.has_b_frames)

    @property
    def is_pickable(self) -> bool:
        """Whether frames are picked one by one.

        In an AVI whose index was cut off every seek reads from the start: what is decoded through
        goes on from piece to piece instead.
        """
        return self.has_times and (self.container.format.name != "avi" or self._is_listed)

    def _lists_most(self) -> bool:
        """Whether an index was found in opening; more of it is gathered while reading."""
        return bool(10 * len(self.stream.index_entries) >= 9 * self.stream.frames)

    def _listed_keyframes(self) -> list[tuple[int, int]]:
        """Times and places of an AVI's keyframes by its index, before reading adds to that."""
        if self.container.format.name != "avi" or self.is_large:
            return []
        entries = self.stream.index_entries
        return [(entry.timestamp, entry.pos) for entry in entries if entry.is_keyframe]

    @functools.cached_property
    def is_miscounted(self) -> bool:
        """Whether an AVI's index has other times than reading it from the start.

        It has none but by counting, and either may miss frames that are damaged. Not known of large
        files, which are not read whole: in these a damaged window may depend on the one before.
        """
        if not self._listed or not self.is_pickable:
            return False
        read = [(time, place) for time, place in self.table().places.items() if place is not None]
        if len(read) != len(self._listed):
            return True
        shifts = {
            (time - listed, place - at)
            for (time, place), (listed, at) in zip(read, self._listed, strict=True)
        }
        return len(shifts) > 1

    def declared_seconds(self) -> float | None:
        """How long the video stream says it is, where it says so."""
        if self.stream.duration:
            return float(self.stream.duration * self.tick)
        # Matroska writers leave the length of each stream in a tag: 00:01:02.345000000
        parts = self.stream.metadata.get("DURATION", "").split(":")
        with contextlib.suppress(ValueError):
            hours, minutes, seconds = (float(part) for part in parts)
            return hours * 3600 + minutes * 60 + seconds
        return None

    @property
    def is_large(self) -> bool:
        return os.path.getsize(self.path) > SCAN_BYTES

    @property
    def _index_shift(self) -> int:
        """Indexes hold decoding times; a keyframe is shown this many ticks later."""
        first = self.stream.index_entries[0].timestamp
        return max(int(self.stream.start_time or 0) - int(first), 0)

    def span(self) -> tuple[int, int]:
        """Ticks from the first frame's start to the last one's end."""
        if self._span is None:
            self._span = self._find_span()
        return self._span

    def stretches(self) -> tuple[tuple[float, float], ...]:
        """Seconds in which frames are shown: times are believed only as far as the data goes."""
        first, last = self.span()
        times = self._sparse_times(float((last - first) * self.tick))
        gap = LONG_GAP / self.tick
        edges = [first]
        for time, following in pairwise(times):
            if following - time > gap:
                edges += [time + self._frame_ticks, following]
        edges.append(last if not times or last - times[-1] <= gap else times[-1])
        zero = min(first, self.zero)
        seconds = [float((edge - zero) * self.tick) for edge in edges]
        pairs = zip(seconds[::2], seconds[1::2], strict=True)
        found = tuple((start, max(end, start + 0.001)) for start, end in pairs)
        # Absurd times are so large that numbers nearby are all the same.
        return tuple(each for each in found if math.ulp(each[1]) < 0.001) or found[:1]

    @property
    def _frame_ticks(self) -> int:
        """How long a frame is shown where the next one does not tell."""
        return max(1, round(Fraction(1, 25) / self.tick))

    def _sparse_times(self, length: float) -> list[int]:
        """Times of all frames, where these are so few for the length that there may be gaps."""
        if self.is_indexed:
            entries = self.stream.index_entries
            if length <= len(entries):
                return []
            shift = self._index_shift
            return sorted(entry.timestamp + shift for entry in entries)
        if self.is_large:
            return []
        times = self.table().times
        return [] if length <= len(times) else times

    def _find_span(self) -> tuple[int, int]:
        if self.is_indexed:
            start = int(self.stream.start_time or 0)
            return start, max(self._end_of_index(), start + 1)
        if self.is_large and self.container.duration and self.stream.start_time is not None:
            start = self.container.start_time or 0
            # Even a still picture takes a few bytes a second.
            most = os.path.getsize(self.path) * 10**6 // LEAST_BYTES_A_SECOND
            end = Fraction(start + min(self.container.duration, most), 10**6) / self.tick
            return int(self.stream.start_time), round(end)
        table = self.table()
        return table.times[0], table.end

    def _end_of_index(self) -> int:
        """Writers get the length of reordered, uneven streams wrong: the last packets tell it."""
        entries = self.stream.index_entries
        start, last = self.stream.start_time or 0, len(entries) - 1
        declared = int(start + self.stream.duration)
        keyframe = entries.search_timestamp(entries[last].timestamp)
        if keyframe < 0 or last - keyframe > LONG_GROUP:
            return declared
        self.seek(entries[keyframe].timestamp + self._index_shift)
        ends = [
            packet.pts + (packet.duration or 0)
            for packet in self.packets()
            if packet.pts is not None and not packet.is_discard
        ]
        self.seek(start)
        return max(ends, default=declared)

    def table(self) -> PacketTable:
        """Times of all frames, by reading the file once; damaged beyond use, it is refused."""
        table = self._read_through()
        check_readable_part(self, table)
        return table

    def _read_through(self) -> PacketTable:
        if self._table is None:
            status = os.stat(self.path)
            key = (str(self.path), status.st_ino, status.st_size, status.st_mtime_ns)
            if key not in _TABLES:
                with contextlib.closing(self.reopened()) as scanner:
                    _TABLES[key] = read_table(scanner)
                while len(_TABLES) > KEPT_TABLES:
                    _TABLES.pop(next(iter(_TABLES)), None)
            self._table = _TABLES[key]
        return self._table

    def keyframes(self) -> list[int] | None:
        """Times of all keyframes; None where only reading a very large file could tell."""
        if self.is_indexed:
            shift = self._index_shift
            entries = self.stream.index_entries
            return [entry.timestamp + shift for entry in entries if entry.is_keyframe]
        return None if self.is_large else self.table().keyframes

    def keyframe_before(self, time: int) -> int | None:
        landmarks = self._landmarks
        if landmarks is not None:
            position = bisect_right(landmarks.keyframes, time) - 1
            return None if position < 0 else landmarks.keyframes[position]
        if not self.is_indexed and "matroska" in self.container.format.name:
            # Its index lies at the end, and is read by the first seek.
            return time - round(LIKELY_GROUP / self.tick)
        entries = self.stream.index_entries
        if not len(entries):
            return None
        position = entries.search_timestamp(time - self._index_shift)
        return None if position < 0 else int(entries[position].timestamp)

    @property
    def _is_worth_keeping(self) -> bool:
        # Seeks find fragments of a damaged MP4 that reading does not: large ones are not read.
        return super()._is_worth_keeping and not (
            self.is_large and "mp4" in self.container.format.name
        )

    @property
    def _landmarks(self) -> PacketTable | None:
        """What a file without an index holds where: it is read once, if that is not once a look."""
        if self.is_indexed or self._is_fully_listed:
            return None
        if self._table is None and not self._is_worth_keeping:
            return None
        table = self._read_through()
        return table if table.places else None

    def has_landed(self, packet: Any, target: int) -> bool:
        if packet.pts is None or packet.pts > target:
            return False
        # In files whose times start anew a seek may land in another part than reading on would.
        landmarks = self._landmarks
        return landmarks is None or landmarks.places.get(packet.pts) == packet.pos

    def is_expected(self, packet: Any) -> bool:
        landmarks = self._landmarks
        if packet.pts is None or packet.is_discard or landmarks is None:
            return packet.pts is not None
        position = bisect_left(landmarks.times, packet.pts)
        return landmarks.times[position : position + 1] == [packet.pts]

    @contextlib.contextmanager
    def decoded_run(self, target: int) -> Iterator[DecodedRun]:
        """Frames decoded from the start on, ``target`` (a tick) among them.

        Where files are kept open, a run goes on that was begun for an earlier piece.
        """
        if self._identity is None:
            yield DecodedRun(self)
            return
        run = KEPT.take_run(self._identity, target)
        if run is None:
            own = VideoSource(self.path, threads=1)
            run = KeptRun(DecodedRun(own), own)
        is_well = False
        try:
            yield run.frames
            is_well = self._identity_now() == self._identity
        finally:
            if is_well:
                KEPT.put_run(self._identity, run)
            else:
                run.source.close()

    def seconds(self, time: int) -> float:
        return float((time - self.zero) * self.tick)

    def square(self, frame: Any, spec: FrameSpec) -> pixels.Pixels:
        aspect = Fraction(1) if spec.square_pixels else self.aspect
        return pixels.to_square(frame, spec.size, spec.resize, self.reformatter, aspect)

    def picture(self, frame: Any, short_side: int) -> pixels.Pixels:
        return pixels.to_picture(frame, short_side, self.reformatter, self.aspect)


KEPT_TABLES = 2
_TABLES: dict[tuple[str, int, int, int], PacketTable] = {}
"""Of the files read last: the pieces of a damaged film would each read it whole."""


@contextlib.contextmanager
def open_video(
    path: str | Path, *, threads: int = 0, keep_open: bool = False
) -> Iterator[VideoSource]:
    """Open a file's video stream; anything that goes wrong is a ``VideoDecodeError``."""
    source = VideoSource(path, threads=threads, keep_open=keep_open)
    is_well = False
    try:
        yield source
        is_well = True
    except pyav().FFmpegError as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"decoding failed ({cause})") from error
    finally:
        source.close(is_well=is_well)
