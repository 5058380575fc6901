"""An opened video file: its packets from any place on, and what they decode to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eaglenet.core.errors import VideoDecodeError
from eaglenet.video.containers import open_container, pyav, video_stream
from eaglenet.video.limits import MAX_PIXELS
from eaglenet.video.picking import DecodedRun

# Opened files that are kept for the next piece of the same film.

MOST = 2
"""One that goes through a piece, and one that repairs its damaged clips meanwhile. Of runs, which
cannot go back: where pieces overlap, the next but one goes on with the same run."""

Identity = tuple[str, int, int, int, int, int]


class KeptRun(NamedTuple):
    """A run that somebody may go on with, and the source that it alone reads from."""

    frames: DecodedRun
    source: Any


class KeptFiles:
    """Opened containers and runs of one file at a time; nobody uses them while they lie here."""

    def __init__(self) -> None:
        self._identity: Identity | None = None
        self._containers: list[Any] = []
        self._runs: list[KeptRun] = []

    def take(self, identity: Identity) -> Any | None:
        """A container of this very file, if there is one. Its position may be anywhere."""
        if identity != self._identity:
            self.close()
        return self._containers.pop() if self._containers else None

    def put(self, identity: Identity, container: Any) -> None:
        """Keep a container; those of any other file are closed."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        if len(self._containers) < MOST:
            self._containers.append(container)
        else:
            container.close()

    def take_run(self, identity: Identity, target: int) -> KeptRun | None:
        """The run that has come furthest without passing ``target`` (a tick)."""
        if identity != self._identity:
            self.close()
        found = [run for run in self._runs if run.frames.can_show(target)]
        if not found:
            return None
        furthest = max(found, key=lambda run: run.frames.passed or 0)
        self._runs.remove(furthest)
        return furthest

    def put_run(self, identity: Identity, run: KeptRun) -> None:
        """Keep a run; the one that was used longest ago makes room for it."""
        if identity != self._identity:
            self.close()
            self._identity = identity
        self._runs.append(run)
        while len(self._runs) > MOST:
            self._runs.pop(0).source.close()

    def close(self) -> None:
        """Let go of every file."""
        while self._containers:
            self._containers.pop().close()
        while self._runs:
            self._runs.pop().source.close()
        self._identity = None


KEPT = KeptFiles()
"""Of this process, which decodes in one thread where it keeps files open."""


def identity_of(path: Path) -> Identity:
    """Tells a file from every other and from its own earlier content."""
    status = os.stat(path)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (str(path), status.st_dev, status.st_ino, status.st_size, *times)


SAFE_TO_DROP = ("h264", "mpeg4", "mpeg2video", "mpeg1video")
"""Codecs in which an unreferenced frame can be dropped undecoded without changing any other. So in
HEVC where a stream has one temporal layer, within which alone its mark holds; not in VP9, whose
entropy contexts adapt."""


def has_one_layer(extradata: bytes | None) -> bool:
    """Whether an HEVC stream's description (``hvcC`` of MP4 and Matroska) says that it is not
    divided in temporal layers; streams without one (MPEG-TS) do not say."""
    if extradata is None or len(extradata) < 23 or extradata[0] != 1:
        return False
    return extradata[21] >> 3 & 7 == 1


class OpenedVideo:
    """One opened video stream, by which everything else reads packets and decodes them.

    ``threads`` 0 uses every core; 1 is best where many files are decoded side by side.
    ``keep_open``, with one thread: a file without an index stays open for whoever reads it next
    (``kept``).
    """

    def __init__(self, path: str | Path, *, threads: int = 0, keep_open: bool = False) -> None:
        self.path = Path(path)
        self.errors = 0
        self.threads = threads
        self._error_type = pyav().FFmpegError
        self._identity = self._identity_now() if keep_open and threads == 1 else None
        kept = None if self._identity is None else KEPT.take(self._identity)
        self._aside: Any = None
        """The container that has gathered an index, while another one reads from the start."""
        self._is_placed = kept is None
        if kept is None:
            self._open()
            self.is_indexed = self._has_index()
        else:
            self._use(kept)
            self.is_indexed = False

    def _open(self) -> None:
        container = open_container(self.path)
        try:
            self._use(container)
        except BaseException:
            container.close()
            raise
        context = self._context
        if context.width * context.height > MAX_PIXELS:
            self.container.close()
            raise VideoDecodeError(
                self.path, f"claims {context.width} x {context.height} pixels, which no video has"
            )
        context.thread_type = "NONE" if self.threads == 1 else "AUTO"
        context.thread_count = self.threads
        # Damaged slices are reported instead of painted over with guesses.
        context.options = {"err_detect": "explode", "max_pixels": str(MAX_PIXELS)}

    def _use(self, container: Any) -> None:
        self.stream = video_stream(self.path, container)
        self.container = container
        self._context = self.stream.codec_context
        name = self._context.name
        self._can_drop = name in SAFE_TO_DROP or (
            name == "hevc" and has_one_layer(self._context.extradata)
        )

    def close(self, *, is_well: bool = True) -> None:
        """Let go of the file, or keep it for the next one who opens it, if all is well."""
        self._return_to_aside()
        identity = self._identity_now() if self._is_worth_keeping else None
        if is_well and identity is not None and identity == self._identity:
            KEPT.put(identity, self.container)
            return
        self.container.close()
        if not is_well and self.is_kept_open:
            KEPT.close()

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
        # An AVI tells times by counting frames: where some are lost, reading on and seeking differ.
        is_counted = self.container.format.name == "avi"
        return self.is_kept_open and not self.is_indexed and not is_counted

    def _has_index(self) -> bool:
        """Whether the container lists all its packets, and they all lie within the file."""
        if self.container.format.name == "avi":
            return False
        entries = self.stream.index_entries
        count = len(entries)
        if count == 0 or count != self.stream.frames or self.stream.duration is None:
            return False
        return not self.is_cut_short

    @property
    def is_cut_short(self) -> bool:
        """Whether the container lists packets that lie past the end of the file."""
        entries = self.stream.index_entries
        if not len(entries):
            return False
        last = entries[len(entries) - 1]
        return bool(last.pos + last.size > os.path.getsize(self.path))

    def packets(self) -> Iterator[Any]:
        if not self._is_placed:
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
                # A broken block; the demuxer resumes at the next one it can find.
                failures += 1
                self.errors += 1

    def send(self, packet: Any, *, keep: bool = True) -> list[Any]:
        if self._can_drop:
            self._context.skip_frame = "DEFAULT" if keep else "NONREF"
        try:
            return list(self._context.decode(packet))
        except self._error_type:
            self.errors += 1
            return []

    def reset(self) -> None:
        self._context.flush_buffers()

    def seek(self, time: int) -> None:
        self._return_to_aside()
        self._is_placed = True
        try:
            self.container.seek(time, stream=self.stream)
        except self._error_type:
            self.rewind()

    def rewind(self) -> None:
        # Opening anew is the one way to the first packet that every container understands.
        before = self.container
        is_worth_keeping = self._is_worth_keeping and self._aside is None
        if not is_worth_keeping:
            before.close()
        self._open()
        self._is_placed = True
        if is_worth_keeping:
            self._aside = before

    def _return_to_aside(self) -> None:
        if self._aside is not None:
            self.container.close()
            self._use(self._aside)
            self._aside = None
