"""``VideoSource``: an open video with the times of its frames."""

from __future__ import annotations

import contextlib
import functools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import pixels
from eaglenet.video.containers import pyav
from eaglenet.video.input_file import file_size
from eaglenet.video.limits import MAX_PACKETS
from eaglenet.video.reader import (
    OPEN_FILES,
    DecodedRun,
    Identity,
    VideoReader,
    decode_through,
    identity_of,
)

MIN_READABLE_FRACTION = 0.25
"""Minimum fraction of a damaged file's declared length that must be readable."""


class PacketTable(NamedTuple):
    """Times in ticks, read from the packets of a file without decoding them."""

    times: list[int]
    keyframes: list[int]
    end: int
    keyframe_offsets: dict[int, int | None]
    """Byte offset of each keyframe by time; of several with the same time, the first. Empty if
    packets have no times."""


def read_table(source: VideoSource) -> PacketTable:
    """Read the packets of a stream from the current position to the end."""
    times: list[int] = []
    keyframes: list[int] = []
    keyframe_offsets: dict[int, int | None] = {}
    end = 0
    is_timed = True
    for count, packet in enumerate(source.packets()):
        if count >= MAX_PACKETS:
            raise VideoDecodeError(source.path, f"has more than {MAX_PACKETS} packets")
        # In AVI, decoding order differs from display order, but the number of frames is the same.
        time = packet.pts if source.has_times else packet.dts
        is_timed = is_timed and time is not None
        if time is None or packet.is_discard:
            continue
        times.append(time)
        end = max(end, time + (packet.duration or 0))
        if packet.is_keyframe:
            keyframes.append(time)
            keyframe_offsets.setdefault(time, packet.pos)
    if not is_timed:
        times = keyframes = [time for time, _ in decode_through(source)]
        keyframe_offsets = {}
        end = 0
    if not times:
        raise VideoDecodeError(source.path, "no frame could be read from it")
    times = sorted(times)
    # Assume that the last frame is shown as long as the previous one.
    last = max(times[-1] - times[-2], 1) if len(times) > 1 else 1
    return PacketTable(times, sorted(keyframes), max(end, times[-1] + last), keyframe_offsets)


def check_readable_fraction(source: VideoSource, table: PacketTable) -> None:
    """Refuse a damaged file that is mostly unreadable; accept truncated files."""
    declared_length = source.declared_seconds()
    readable_length = float((table.end - table.times[0]) * source.tick)
    if (
        declared_length is not None
        and readable_length < MIN_READABLE_FRACTION * declared_length
        and not source.is_cut_short
    ):
        raise VideoDecodeError(
            source.path,
            f"damaged: only {readable_length:.1f} of {declared_length:.1f} seconds are readable",
        )


SCAN_BYTES = 256 * 2**20
"""Maximum size of files without an index that are scanned for frame times."""

LONG_GAP = 300.0
"""Seconds without a frame at which a video is divided into two spans, since its times jump."""

LONG_GROUP = 2000
"""Maximum packets after the last keyframe that are read for the exact end of a video."""

MIN_BYTES_PER_SECOND = 50

LIKELY_GROUP = 10
"""Assumed seconds between keyframes while they are unknown."""


class VideoSource(VideoReader):
    """An open video stream, with the times of its frames and their positions in the file."""

    def __init__(self, path: str | Path, *, threads: int = 0, keep_open: bool = False) -> None:
        super().__init__(path, threads=threads, keep_open=keep_open)
        self._table: PacketTable | None = None
        self._span: tuple[int, int] | None = None
        self.is_decoded_through = False
        """True if the times of frames are known only after decoding all from the start."""
        self._is_listed = self._lists_most()
        self._index_keyframes = self._listed_keyframes()
        # The full index of an AVI is better than reading, which skips unreadable packets.
        self._is_fully_listed = self.container.format.name == "avi" and (
            len(self.stream.index_entries) == self.stream.frames
        )
        self.tick = Fraction(self.stream.time_base)
        self.aspect = pixels.pixel_aspect(self.stream)
        self.reformatter = pyav().video.reformatter.VideoReformatter()

    def reopen(self, threads: int = 1) -> VideoSource:
        """Open the file again. With one thread, an error belongs to the packet just sent."""
        return VideoSource(self.path, threads=threads, keep_open=self.is_kept_open)

    @property
    def zero(self) -> int:
        """Tick of the start of the container, which players show as 0:00."""
        if self.container.format.name == "avi":
            # AVI has no times, and some decoders are one frame late.
            return self.span()[0]
        start = Fraction(self.container.start_time or 0, 10**6) / self.tick
        own = self.stream.start_time
        # The container's start is truncated to microseconds; the stream's is exact.
        if own is not None and abs(own - start) * self.tick < Fraction(1, 10**5):
            return int(own)
        return round(start)

    @property
    def rate(self) -> Fraction:
        """Frames per second on average; 1 if unknown."""
        return Fraction(self.stream.average_rate or self.stream.guessed_rate or 1)

    @property
    def is_pickable(self) -> bool:
        """True if frames are picked individually.

        In an AVI without an index, every seek reads from the start. Decoding all frames, continued
        from chunk to chunk, is faster.
        """
        return self.has_times and (self.container.format.name != "avi" or self._is_listed)

    def _lists_most(self) -> bool:
        """Return whether opening the file found an index; reading packets adds entries to it."""
        return bool(10 * len(self.stream.index_entries) >= 9 * self.stream.frames)

    def _listed_keyframes(self) -> list[tuple[int, int]]:
        """Return the times and offsets of keyframes in an AVI's original index."""
        if self.container.format.name != "avi" or self.is_large:
            return []
        entries = self.stream.index_entries
        return [(entry.timestamp, entry.pos) for entry in entries if entry.is_keyframe]

    @functools.cached_property
    def is_miscounted(self) -> bool:
        """True if an AVI's index and reading from its start give different times.

        Both count frames, and either may miss damaged ones. Large files are not scanned and not
        checked: in them, a damaged window may depend on the previous one.
        """
        if not self._index_keyframes or not self.is_pickable:
            return False
        offsets = self.table().keyframe_offsets
        scanned_keyframes = [
            (time, offset) for time, offset in offsets.items() if offset is not None
        ]
        if len(scanned_keyframes) != len(self._index_keyframes):
            return True
        shifts = {
            (time - listed_time, offset - listed_offset)
            for (time, offset), (listed_time, listed_offset) in zip(
                scanned_keyframes, self._index_keyframes, strict=True
            )
        }
        return len(shifts) > 1

    def declared_seconds(self) -> float | None:
        """Return the length that the video stream declares, if any."""
        if self.stream.duration:
            return float(self.stream.duration * self.tick)
        # Matroska has a tag for each stream, such as 00:01:02.345000000.
        fields = self.stream.metadata.get("DURATION", "").split(":")
        with contextlib.suppress(ValueError):
            hours, minutes, seconds = (float(field) for field in fields)
            return hours * 3600 + minutes * 60 + seconds
        return None

    @property
    def is_large(self) -> bool:
        return file_size(self.path) > SCAN_BYTES

    @property
    def _index_shift(self) -> int:
        """Ticks from the decoding times of keyframes, as in the index, to their display times."""
        first = self.stream.index_entries[0].timestamp
        return max(int(self.stream.start_time or 0) - int(first), 0)

    def span(self) -> tuple[int, int]:
        """Return the start of the first frame and the end of the last one, in ticks."""
        if self._span is None:
            self._span = self._find_span()
        return self._span

    def spans(self) -> tuple[tuple[float, float], ...]:
        """Return the time spans with frames, in seconds."""
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
        spans = tuple((start, max(end, start + 0.001)) for start, end in pairs)
        # At impossibly large times, neighbouring floating-point numbers are far apart.
        return tuple(span for span in spans if math.ulp(span[1]) < 0.001) or spans[:1]

    @property
    def _frame_ticks(self) -> int:
        """Assumed display time of a frame before a gap."""
        return max(1, round(Fraction(1, 25) / self.tick))

    def _sparse_times(self, length: float) -> list[int]:
        """Return the times of all frames if they are so few that gaps are possible, else none."""
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
            # Even a static scene takes a few bytes per second.
            max_duration = file_size(self.path) * 10**6 // MIN_BYTES_PER_SECOND
            end = Fraction(start + min(self.container.duration, max_duration), 10**6) / self.tick
            return int(self.stream.start_time), round(end)
        table = self.table()
        return table.times[0], table.end

    def _end_of_index(self) -> int:
        """Return the end of the last packets; reordered streams declare wrong lengths."""
        entries = self.stream.index_entries
        start, last = self.stream.start_time or 0, len(entries) - 1
        declared_end = int(start + self.stream.duration)
        keyframe = entries.search_timestamp(entries[last].timestamp)
        if keyframe < 0 or last - keyframe > LONG_GROUP:
            return declared_end
        self.seek(entries[keyframe].timestamp + self._index_shift)
        ends = [
            packet.pts + (packet.duration or 0)
            for packet in self.packets()
            if packet.pts is not None and not packet.is_discard
        ]
        self.seek(start)
        return max(ends, default=declared_end)

    def table(self) -> PacketTable:
        """Scan the file for the times of all frames; refuse a mostly unreadable file."""
        table = self._read_through()
        check_readable_fraction(self, table)
        return table

    def _read_through(self) -> PacketTable:
        if self._table is None:
            key = identity_of(self.path)
            table = _TABLES.get(key)  # Not looked up again: another thread may remove it.
            if table is None:
                with contextlib.closing(self.reopen()) as scanner:
                    table = read_table(scanner)
                _TABLES[key] = table
                for other in list(_TABLES)[:-MAX_TABLES]:
                    _TABLES.pop(other, None)
            self._table = table
        return self._table

    def keyframes(self) -> list[int] | None:
        """Return the times of all keyframes; None if that means scanning a large file."""
        if self.is_indexed:
            shift = self._index_shift
            entries = self.stream.index_entries
            return [entry.timestamp + shift for entry in entries if entry.is_keyframe]
        return None if self.is_large else self.table().keyframes

    def keyframe_before(self, time: int) -> int | None:
        """Return the approximate time of the last keyframe before ``time``; None if unknown."""
        landmarks = self._landmarks
        if landmarks is not None:
            position = bisect_right(landmarks.keyframes, time) - 1
            return None if position < 0 else landmarks.keyframes[position]
        if not self.is_indexed and "matroska" in self.container.format.name:
            # The index is at the end of the file; the first seek reads it.
            return time - round(LIKELY_GROUP / self.tick)
        entries = self.stream.index_entries
        if not len(entries):
            return None
        position = entries.search_timestamp(time - self._index_shift)
        return None if position < 0 else int(entries[position].timestamp)

    @property
    def _is_worth_keeping(self) -> bool:
        # Seeks find fragments of a damaged MP4 that reading misses; large files are not scanned.
        return super()._is_worth_keeping and not (
            self.is_large and "mp4" in self.container.format.name
        )

    @property
    def _landmarks(self) -> PacketTable | None:
        """Table of a file without an index, if the file stays open and is scanned only once."""
        if self.is_indexed or self._is_fully_listed:
            return None
        if self._table is None and not self._is_worth_keeping:
            return None
        table = self._read_through()
        return table if table.keyframe_offsets else None

    def has_landed(self, packet: Any, target: int) -> bool:
        """Return whether reading from a keyframe gives the same frames as from the file's start."""
        if packet.pts is None or packet.pts > target:
            return False
        # In files whose times restart, a seek may land in another part than reading on.
        landmarks = self._landmarks
        return landmarks is None or landmarks.keyframe_offsets.get(packet.pts) == packet.pos

    def is_expected(self, packet: Any) -> bool:
        """Return whether a packet after a seek has the same time as when read from the start."""
        landmarks = self._landmarks
        if packet.pts is None or packet.is_discard or landmarks is None:
            return packet.pts is not None
        position = bisect_left(landmarks.times, packet.pts)
        return landmarks.times[position : position + 1] == [packet.pts]

    @contextlib.contextmanager
    def decoded_run(self, target: int) -> Iterator[DecodedRun]:
        """Yield a run of decoded frames that has not passed the tick ``target``.

        If files are kept open, it may continue the run of an earlier chunk.
        """
        if self._identity is None:
            yield DecodedRun(self)
            return
        run = OPEN_FILES.take_run(self._identity, target)
        if run is None:
            run = DecodedRun(VideoSource(self.path, threads=1))
        is_unchanged = False
        try:
            yield run
            is_unchanged = self._identity_now() == self._identity
        finally:
            if is_unchanged:
                OPEN_FILES.put_run(self._identity, run)
            else:
                run.source.close()

    def seconds(self, time: int) -> float:
        return float((time - self.zero) * self.tick)

    def square_pixels(self, frame: Any, spec: FrameSpec) -> pixels.Pixels:
        aspect = Fraction(1) if spec.square_pixels else self.aspect
        return pixels.to_square(frame, spec.size, spec.resize, self.reformatter, aspect)

    def scaled_pixels(self, frame: Any, short_side: int) -> pixels.Pixels:
        return pixels.to_short_side(frame, short_side, self.reformatter, self.aspect)


MAX_TABLES = 2
_TABLES: dict[Identity, PacketTable] = {}
"""Tables of the latest files, so that a damaged video is not scanned for each of its chunks."""


@contextlib.contextmanager
def open_video(
    path: str | Path, *, threads: int = 0, keep_open: bool = False
) -> Iterator[VideoSource]:
    """Open the video stream of a file; decoding errors raise ``VideoDecodeError``."""
    source = VideoSource(path, threads=threads, keep_open=keep_open)
    is_reusable = False
    try:
        yield source
        is_reusable = True
    except pyav().FFmpegError as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"decoding failed ({cause})") from error
    finally:
        source.close(is_reusable=is_reusable)


SEEK_MARGINS = (0, 2, 10, 60)
"""Seconds before the start to seek to, tried in order; the start of the file comes last."""


def decode_from(source: VideoSource, start: Fraction | int) -> Iterator[tuple[int, Any]]:
    """Yield the frames of :func:`decode_through` from one at or before ``start`` on.

    Some files mark frames as keyframes that cannot be decoded without earlier ones, and in a
    transport stream a seek may land after its target.
    """
    for margin in SEEK_MARGINS:
        position = int(start - margin / source.tick)
        if position <= source.zero:
            break
        frames = decode_through(source, position)
        opening = next(frames, None)
        if opening is not None and opening[0] <= start:
            yield opening
            yield from frames
            return
    yield from decode_through(source)
