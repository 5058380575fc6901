"""Sandboxed readers of a service: frames of indexed files, timelines, and uploaded files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread

from eaglenet.core.errors import UsageError
from eaglenet.core.files import try_lock
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.platform import is_own_file, open_for_locking
from eaglenet.search.hit import Hit
from eaglenet.search.timelines import (
    Media,
    check_media_values,
    format_timeline,
    make_cuts,
    read_media_values,
)
from eaglenet.serve.media import VideoFiles
from eaglenet.serve.problems import Problem
from eaglenet.video.decoding import DecodedVideo, QueryRequest, check_query, decode_query
from eaglenet.video.frame_images import FramesRequest, check_frame_images, read_frame_images
from eaglenet.video.images import pixels_to_jpeg
from eaglenet.video.input_file import SharedFile, share_file
from eaglenet.video.worker import IsolatedProcess

DECODERS = 2
"""Simultaneous decoders; each uses one core."""
MEMORY = 2 * 2**30
"""Bytes per process."""
MAX_WAITING = 32
"""Maximum thumbnails that wait for a decoder; further requests are refused with 503."""
CACHE_BYTES = 64 * 2**20
RETRY = {"Retry-After": "5"}


class FrameDecoders:
    """Sandboxed processes that decode frames; started on demand, at most :data:`DECODERS`."""

    def __init__(self, videos: VideoFiles, timeout: float) -> None:
        self.videos, self.timeout = videos, timeout
        self._decoders: list[IsolatedProcess] = []
        self._free = anyio.Semaphore(DECODERS)
        self._num_waiting = 0
        self._cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def read(
        self, clip_id: str, suffix: str, seconds: tuple[float, ...], side: int
    ) -> list[bytes]:
        """Return JPEG frames of the file of a clip.

        suffix: file extension, with its dot. seconds: times in the file. side: longer side of the
        frames in pixels. Cancelling the call stops the decoder.
        """
        async with self._free:
            video = await self.videos.open(clip_id)
            shared_file = SharedFile(f"{clip_id}{suffix}", video.descriptor)
            decoder = (
                self._decoders.pop()
                if self._decoders
                else IsolatedProcess(read_frame_images, MEMORY, self.timeout, check_frame_images)
            )
            request = FramesRequest(shared_file.path, seconds, side)
            try:
                frames = await anyio.to_thread.run_sync(
                    decoder, request, shared_file, abandon_on_cancel=True
                )
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(decoder.close)
                raise
            finally:
                shared_file.close()
            self._decoders.append(decoder)
        return [pixels_to_jpeg(frame) for frame in frames]

    async def thumbnail(self, clip_id: str, suffix: str, second: float, side: int) -> bytes:
        """Return one JPEG frame of a clip, from the cache if it was decoded before."""
        key = clip_id, side
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        if self._num_waiting >= MAX_WAITING:
            message = f"{MAX_WAITING} frames are already waiting for a decoder, which is the limit"
            raise Problem(503, message, headers=RETRY)
        self._num_waiting += 1
        try:
            (frame,) = await self.read(clip_id, suffix, (second,), side)
        except UsageError as error:
            # The message contains the clip id instead of the path.
            raise Problem(415, str(error), code="unplayable") from None
        finally:
            self._num_waiting -= 1
        if key not in self._cache:
            self._cache[key] = frame
            self._cached_bytes += len(frame)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        return frame

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        while self._decoders:
            self._decoders.pop().close()


MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "edl": "text/plain; charset=utf-8",
    "fcpxml": "application/xml",
    "xml": "application/xml",
    "otio": "application/json",
    "m3u8": "application/vnd.apple.mpegurl",
    "srt": "application/x-subrip",
}
"""Media type by format; the format is also the file extension."""


class TimelineExports:
    """Writes timelines; one sandboxed process reads frame rates and timecodes."""

    def __init__(self, videos: VideoFiles, timeout: float) -> None:
        self.videos, self.timeout = videos, timeout
        self._reader: IsolatedProcess | None = None
        self._lock = anyio.Lock()

    async def write(self, hits: Sequence[Hit], title: str, kind: str) -> bytes:
        """Return a timeline in UTF-8 that refers to files by the paths of ``hits``."""
        sources: dict[str, Media] = {}
        for hit in hits:
            if hit.duration and hit.path not in sources:
                sources[hit.path] = await self._read(hit)
        cuts = make_cuts(hits, title, read=lambda hit: sources[hit.path])
        # Lone surrogates, as in some file names, become "?".
        return format_timeline(cuts, title, kind).encode("utf-8", errors="replace")

    async def _read(self, hit: Hit) -> Media:
        async with self._lock:
            try:
                video = await self.videos.open(hit.clip_id)
            except Problem as problem:
                # A client cannot tell which of its moments has no file.
                problem.detail = f"{Path(hit.path).name}: {problem.detail}"
                raise
            shared_file = SharedFile(f"{hit.clip_id}{Path(hit.path).suffix}", video.descriptor)
            try:
                if self._reader is None:
                    self._reader = IsolatedProcess(
                        read_media_values, MEMORY, self.timeout, check_media_values
                    )
                values = await anyio.to_thread.run_sync(self._reader, shared_file.path, shared_file)
            except UsageError as error:
                # The message contains the clip id instead of the path.
                raise Problem(415, str(error), code="unplayable") from None
            finally:
                shared_file.close()
        return values.media(hit.path)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process; a later export starts a new one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


PREFIX = "eaglenet-uploads-"
LOCK = "lock"
MAX_UPLOADS = 4
"""Simultaneous uploads, each with its own decoder process."""
MAX_UPLOADS_PER_CLIENT = 2
"""Less than ``MAX_UPLOADS``, so that one client cannot use all decoders."""


@dataclass(frozen=True)
class Upload:
    """Temporary file of an upload, and the process that decodes it."""

    file: IO[bytes]
    path: str
    decoder: IsolatedProcess

    def decode(self, spec: FrameSpec, *, is_image: bool) -> DecodedVideo:
        """Decode the received file; raise ``UsageError`` if that is not possible."""
        shared_file = share_file(self.path)
        try:
            video: DecodedVideo = self.decoder(QueryRequest(self.path, spec, is_image), shared_file)
        finally:
            shared_file.close()
        return video


class UploadFolder:
    """Folder for the uploads of one running service; removes those of services that crashed."""

    def __init__(self, seconds: float, parent: Path | None = None) -> None:
        self.parent = parent or Path(tempfile.gettempdir())
        _remove_stale_folders(self.parent)
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self.parent))
            self._lock = open_for_locking(self.folder / LOCK, mode=0o600)
            is_locked = try_lock(self._lock) is not False
            if is_locked and (self.folder / LOCK).exists():
                break
            # Another service that starts found it unlocked, and removes it.
            os.close(self._lock)
        self.is_stopping = False
        self._decoders = [
            IsolatedProcess(decode_query, MEMORY, seconds, check_query) for _ in range(MAX_UPLOADS)
        ]
        self._free_decoders = list(self._decoders)
        self._num_of_client: Counter[str] = Counter()

    def start(self) -> None:
        """Start the first decoder, before its first request."""
        self._free_decoders[-1].start()

    @contextmanager
    def receive(self, client: str = "") -> Iterator[Upload]:
        """Yield a temporary file and a decoder; the file is removed after the block."""
        if not self._free_decoders or self._num_of_client[client] >= MAX_UPLOADS_PER_CLIENT:
            raise Problem(503, "too many uploads at once", headers=RETRY)
        # The most recently used one: its process is already running.
        decoder = self._free_decoders.pop()
        self._num_of_client[client] += 1
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder) as file:
                yield Upload(file.file, file.name, decoder)
        finally:
            self._free_decoders.append(decoder)
            self._num_of_client[client] -= 1
            if not self._num_of_client[client]:
                del self._num_of_client[client]

    def stop(self) -> None:
        """End all decoding immediately; uploads in progress fail."""
        self.is_stopping = True
        for decoder in self._decoders:
            decoder.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _remove_stale_folders(parent: Path) -> None:
    """Remove the folders of services that crashed: those whose lock is free."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not is_own_file(folder.stat()):
                continue
            descriptor = open_for_locking(folder / LOCK, create=False)
        except OSError:
            continue
        if try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
