"""Read packets of a video file from any position, and decode them.

Times are ticks of the stream's clock, and identify frames (``pts``). Files without an index are
kept open for reuse (``OPEN_FILES``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eaglenet.core.errors import VideoDecodeError
from eaglenet.video import gpu
from eaglenet.video.containers import open_container, pyav, video_stream
from eaglenet.video.input_file import file_identity, file_size
from eaglenet.video.limits import MAX_PIXELS

MAX_OPEN = 2
"""Maximum containers kept open: one decodes a chunk, another repairs its damaged clips. Also the
maximum of decoded runs, which cannot go back: overlapping chunks continue two runs by turns."""

Identity = tuple[str, int, int, int, int, int]
"""A path and the identity of the file there."""


class OpenFiles(threading.local):
    """Cache of unused open containers and decoded runs, of one file at a time.

    Each thread has its own: with a common one, it could get the container of another file.
    """

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._containers: list[Any] = []
        self._runs: list[DecodedRun] = []

    def take(self, identity: Identity) -> Any | None:
        """Remove and return a container of the file, at any position; None if there is none."""
        if identity != self._identity:
            self.close()
        return self._containers.pop() if self._containers else None

    def put(self, identity: Identity, container: Any) -> None:
        """Add a container; close those of other files."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        if len(self._containers) < MAX_OPEN:
            self._containers.append(container)
        else:
            container.close()

    def take_run(self, identity: Identity, target: int) -> DecodedRun | None:
        """Remove and return the run nearest to, but not past, the tick ``target``."""
        if identity != self._identity:
            self.close()
        usable_runs = [run for run in self._runs if run.can_show(target)]
        if not usable_runs:
            return None
        run = max(usable_runs, key=lambda run: run.time_of_frame or 0)
        self._runs.remove(run)
        return run

    def put_run(self, identity: Identity, run: DecodedRun) -> None:
        """Add a run; close the least recently used one if there are too many."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        self._runs.append(run)
        while len(self._runs) > MAX_OPEN:
            self._runs.pop(0).source.close()

    def close(self) -> None:
        """Close all files."""
        while self._containers:
            self._containers.pop().close()
        while self._runs:
            self._runs.pop().source.close()
        self._identity = None


OPEN_FILES = OpenFiles()
"""Files that :class:`VideoReader` keeps open."""


def identity_of(path: Path) -> Identity:
    return (str(path), *file_identity(path))


MAX_EXCESS_FRAMES = 1.02
"""Maximum frames that the header of an AVI may list, as a multiple of those in its duration."""
SAFE_TO_DROP = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
"""Codecs in which skipping unreferenced frames does not change other frames. In HEVC this holds for
streams with one temporal layer; in VP9 it does not, since entropy contexts adapt."""


def has_one_layer(extradata: bytes | None) -> bool:
    """Return whether an HEVC stream declares a single temporal layer.

    MP4 and Matroska declare it in ``hvcC``; MPEG-TS streams do not.
    """
    if extradata is None or len(extradata) < 23 or extradata[0] != 1:
        return False
    return extradata[21] >> 3 & 7 == 1


class VideoReader:
    """An open video stream whose packets can be read and decoded.

    threads: decoder threads; 0 uses every core, 1 is best for many files in parallel.
    keep_open: with one thread, keep a file without an index in ``OPEN_FILES`` after closing.
    """

    def __init__(self, path: str | Path, *, threads: int = 0, keep_open: bool = False) -> None:
        self.path = Path(path)
        self.errors = 0
        self.threads = threads
        self._error_type = pyav().FFmpegError
        self._identity = self._identity_now() if keep_open and threads == 1 else None
        container = None if self._identity is None else OPEN_FILES.take(self._identity)
        self._indexed_container: Any = None
        """Container that has collected an index, while another one reads from the start."""
        self._is_positioned = container is None
        if container is None:
            self._open()
            self.is_indexed = self._has_index()
        else:
            self._use(container)
            self.is_indexed = False

    def _open(self) -> None:
        container = open_container(self.path, gpu.accelerator())
        try:
            self._use(container)
        except BaseException:
            container.close()
            raise
        context = self._context
        if context.width * context.height > MAX_PIXELS:
            self.container.close()
            raise VideoDecodeError(
                self.path, f"claims {context.width} x {context.height} pixels; at most {MAX_PIXELS}"
            )
        context.thread_type = "NONE" if self.threads == 1 else "AUTO"
        context.thread_count = self.threads
        # Report damaged slices instead of concealing them.
        context.options = {"err_detect": "explode", "max_pixels": str(MAX_PIXELS)}

    def _use(self, container: Any) -> None:
        self.stream = video_stream(self.path, container)
        self.container = container
        self._context = self.stream.codec_context
        name = self._context.name
        self._can_drop = name in SAFE_TO_DROP or (
            name == "hevc" and has_one_layer(self._context.extradata)
        )

    def close(self, *, is_reusable: bool = True) -> None:
        """Close the file, or keep it open for the next reader if it is reusable."""
        self._return_to_indexed()
        identity = self._identity_now() if self._is_worth_keeping else None
        if is_reusable and identity is not None and identity == self._identity:
            OPEN_FILES.put(identity, self.container)
            return
        self.container.close()
        if not is_reusable and self.is_kept_open:
            OPEN_FILES.close()

    def _identity_now(self) -> Identity | None:
        try:
            return identity_of(self.path)
        except OSError:
            return None

    @property
    def is_kept_open(self) -> bool:
        return self._identity is not None

    @property
    def _is_worth_keeping(self) -> bool:
        # AVI times are frame counts: after lost frames, reading on and seeking differ.
        is_counted = self.container.format.name == "avi"
        return self.is_kept_open and not self.is_indexed and not is_counted

    def _has_index(self) -> bool:
        """Return whether the container lists all its packets, and all lie in the file."""
        if self.container.format.name == "avi":
            return False
        entries = self.stream.index_entries
        count = len(entries)
        if count == 0 or count != self.stream.frames or self.stream.duration is None:
            return False
        return not self.is_cut_short

    @property
    def is_cut_short(self) -> bool:
        """True if the container lists packets past the end of the file."""
        if self.container.format.name == "avi":
            # The index, at the end, is lost; FFmpeg shortens the duration to the remaining frames.
            frames, duration = self.stream.frames, self.stream.duration
            return bool(frames and duration and frames > MAX_EXCESS_FRAMES * duration)
        entries = self.stream.index_entries
        if not len(entries):
            return False
        last = entries[len(entries) - 1]
        return bool(last.pos + last.size > file_size(self.path))

    @property
    def has_times(self) -> bool:
        """True if packets have display times; those of an AVI with reordered frames have none."""
        return not (self.container.format.name == "avi" and self._context.has_b_frames)

    def packets(self) -> Iterator[Any]:
        """Yield packets from the current position on, in decoding order."""
        if not self._is_positioned:
            self.rewind()
        failures = 0
        while failures < 20:
            try:
                for packet in self.container.demux(self.stream):
                    if packet.size == 0 and packet.dts is None:
                        return
                    yield packet
                return
            except self._error_type:
                # After a broken block the demuxer resumes at the next one it finds.
                failures += 1
                self.errors += 1

    def send(self, packet: Any, *, keep: bool = True) -> list[Any]:
        """Decode a packet; with ``keep=False``, an unreferenced frame may be dropped."""
        if self._can_drop:
            self._context.skip_frame = "DEFAULT" if keep else "NONREF"
        try:
            return list(self._context.decode(packet))
        except self._error_type:
            self.errors += 1
            return []

    def reset(self) -> None:
        """Flush the decoder, so that it can start at another keyframe."""
        self._context.flush_buffers()

    def seek(self, time: int) -> None:
        """Seek to a keyframe at or before ``time``; some containers land elsewhere."""
        self._return_to_indexed()
        self._is_positioned = True
        try:
            self.container.seek(time, stream=self.stream)
        except (self._error_type, OverflowError):  # A damaged file may claim any time.
            self.rewind()

    def rewind(self) -> None:
        """Seek to the first packet."""
        # Reopening is the only way to the first packet that works with every container.
        previous = self.container
        is_worth_keeping = self._is_worth_keeping and self._indexed_container is None
        if not is_worth_keeping:
            previous.close()
        self._open()
        self._is_positioned = True
        if is_worth_keeping:
            self._indexed_container = previous

    def _return_to_indexed(self) -> None:
        if self._indexed_container is not None:
            self.container.close()
            self._use(self._indexed_container)
            self._indexed_container = None


def decode_through(source: VideoReader, start: int | None = None) -> Iterator[tuple[int, Any]]:
    """Yield every undamaged frame and its time, from the keyframe before ``start`` on.

    After a packet fails, frames up to the next keyframe are skipped, since they refer to it. A
    frame without a time follows the previous one by the duration of a frame; after a failed packet
    without a time, frames are skipped until a keyframe is decoded.
    """
    if start is None:
        source.rewind()
    else:
        source.seek(start)
    source.reset()
    damaged_times: set[int] = set()
    is_clean = True
    is_lost = False  # A packet without a time failed, and no keyframe was decoded since.
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


class DecodedRun:
    """Frames of ``decode_through`` from the start, decoded as far as needed.

    Later requests continue where earlier ones stopped, with the same frames as from the start.
    """

    def __init__(self, source: VideoReader) -> None:
        self.source = source
        self._frames = decode_through(source)
        self._frame: Any | None = None
        self._following: tuple[int, Any] | None = None
        self.time_of_frame: int | None = None
        """Latest time at which the current frame changed."""

    def can_show(self, target: int) -> bool:
        """Return whether the run has not passed the frame shown at ``target``."""
        return self.time_of_frame is None or target >= self.time_of_frame

    def pick(self, targets: Sequence[int]) -> Iterator[tuple[int, Any | None]]:
        """Yield the position of each sorted target and the frame shown at that time."""
        position = 0
        while position < len(targets):
            self._following = self._following or next(self._frames, None)
            if self._following is None:
                yield position, self._frame
                position += 1
                continue
            time, frame = self._following
            if self._frame is not None:
                if time > targets[position]:
                    yield position, self._frame
                    position += 1
                    continue
                self.time_of_frame = (
                    time if self.time_of_frame is None else max(self.time_of_frame, time)
                )
            self._frame, self._following = frame, None
