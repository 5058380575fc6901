"""Files of clips: open them safely, and send a range, or the MP4 of a sandboxed converter."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import anyio.to_thread
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglenet.core.platform import (
    descriptor_to_handle,
    inheriting,
    is_below,
    kill_process,
    open_beneath,
    read_at,
    split_below,
)
from eaglenet.core.process import child_command, clean_environment
from eaglenet.core.untrusted import parse_json
from eaglenet.search.engine import Engine
from eaglenet.serve.problems import Problem
from eaglenet.video.input_file import MAX_TIME_DIFFERENCE

CHUNK = 256 * 1024
MAX_CACHED_HASHES = 1024
MAX_COMPARING = 16
"""Files that may wait to be compared with the indexed hash."""
COMPARE_TIMEOUT = 2.0
"""Seconds that a request waits for the comparison before it is refused with 503."""
RETRY = {"Retry-After": "5"}
_Version = tuple[int, int, int, int, int]

TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/quicktime",
    ".mkv": "video/x-matroska",
    ".webm": "video/webm",
    ".avi": "video/x-msvideo",
    ".mpg": "video/mpeg",
    ".mpeg": "video/mpeg",
    ".ts": "video/mp2t",
    ".mts": "video/mp2t",
    ".m2ts": "video/mp2t",
    ".wmv": "video/x-ms-wmv",
    ".flv": "video/x-flv",
    ".3gp": "video/3gpp",
    ".ogv": "video/ogg",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
}


@dataclass(frozen=True)
class OpenVideo:
    """Indexed file, checked and opened. The receiver must close ``descriptor``."""

    descriptor: int
    size: int
    content: str
    """Hash of all bytes, as in the store."""
    media_type: str


@dataclass(frozen=True)
class _TouchedVideo:
    """Open file whose modification time has changed, so that its content must be compared."""

    video: OpenVideo
    status: os.stat_result


class VideoFiles:
    """Opens the files of clips.

    Clips are addressed by id, never by path. The stored path is resolved, must be inside the
    indexed folders, and is opened component by component without following links, so that no
    component can be replaced meanwhile. The file must be regular, and have either the indexed size
    and modification time or the indexed hash.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._hashes: OrderedDict[_Version, Future[str]] = OrderedDict()
        # A separate thread, because comparing a long video may take minutes.
        self._comparing = ThreadPoolExecutor(1, thread_name_prefix="compare")
        self._is_open = True

    def close(self) -> None:
        self._is_open = False
        self._comparing.shutdown(wait=True, cancel_futures=True)

    async def open(self, clip_id: str) -> OpenVideo:
        """Open the file of a clip; raise 409 if it has changed, 410 if it is missing."""
        candidates = await run_in_threadpool(self._find, clip_id)
        if isinstance(candidates, OpenVideo):
            return candidates
        try:
            for candidate in candidates:
                if await self._digest(candidate) == candidate.video.content:
                    candidates.remove(candidate)
                    return candidate.video
        finally:
            for candidate in candidates:
                os.close(candidate.video.descriptor)
        raise Problem(409, "the file has changed since it was indexed")

    def _find(self, clip_id: str) -> OpenVideo | list[_TouchedVideo]:
        clip, files = self.engine.clip(clip_id)
        roots = _resolve_roots(self.engine.manifest.roots)
        size, modification_time = files.sizes[0], float(files.modification_times[0])
        candidates: list[_TouchedVideo] = []
        has_changed = False
        for path in files.paths[0]:
            descriptor = _open_inside(path, roots)
            if descriptor is None:
                continue
            status = os.fstat(descriptor)
            kind = TYPES.get(Path(path).suffix.lower(), "application/octet-stream")
            video = OpenVideo(descriptor, status.st_size, clip.content, kind)
            if size != status.st_size:
                os.close(descriptor)
                has_changed = True
            elif abs(status.st_mtime_ns / 1e9 - modification_time) >= MAX_TIME_DIFFERENCE:
                candidates.append(_TouchedVideo(video, status))
            else:
                for candidate in candidates:
                    os.close(candidate.video.descriptor)
                return video
        if has_changed and not candidates:
            raise Problem(409, "the file has changed since it was indexed")
        if not candidates:
            raise Problem(410, "the file is no longer in the indexed folders")
        return candidates

    async def _digest(self, candidate: _TouchedVideo) -> str:
        """Return the hash of an open file, from the cache if the file has not changed."""
        status = candidate.status
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if key not in self._hashes:
            if sum(not each.done() for each in self._hashes.values()) >= MAX_COMPARING:
                raise Problem(503, "too many files are being compared", headers=RETRY)
            copy = os.dup(candidate.video.descriptor)
            self._hashes[key] = self._comparing.submit(self._compare, copy)
            if len(self._hashes) > MAX_CACHED_HASHES:
                self._hashes.popitem(last=False)
        digest = asyncio.wrap_future(self._hashes[key])
        try:
            return await asyncio.wait_for(asyncio.shield(digest), COMPARE_TIMEOUT)
        except TimeoutError:
            message = (
                "the modification time has changed since indexing; the content is being compared"
            )
            raise Problem(503, message, code="comparing", headers=RETRY) from None
        except OSError as error:
            self._hashes.pop(key, None)
            raise Problem(410, "the file cannot be read") from error

    def _compare(self, descriptor: int) -> str:
        with os.fdopen(descriptor, "rb") as stream:
            return content_digest(stream, lambda: self._is_open)


def content_digest(stream: IO[bytes], is_open: Callable[[], bool]) -> str:
    """Return the content hash of a stream; raises ``OSError`` once ``is_open()`` is false."""
    digest = hashlib.blake2b(digest_size=16)
    while chunk := stream.read(CHUNK):
        if not is_open():
            raise OSError("the service is shutting down")
        digest.update(chunk)
    return digest.hexdigest()


def _resolve_roots(roots: Sequence[str]) -> list[str]:
    """Return the real paths of the outermost roots.

    Inner roots are left out, because a link inside an outer root could replace them.
    """
    outermost = [root for root in roots if not any(is_below(root, other) for other in roots)]
    return [os.path.realpath(root) for root in outermost]


def _open_inside(path: str, roots: Sequence[str]) -> int | None:
    """Return a descriptor of the regular file at ``path``, or None if it is not below ``roots``."""
    try:
        real = os.path.realpath(path, strict=True)
        root = next(root for root in roots if real == root or is_below(real, root))
        descriptor = open_beneath(root, split_below(real, root))
    except (OSError, ValueError, StopIteration):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


_RANGE = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.IGNORECASE | re.ASCII)


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the byte after the last; None for the whole file.

    Anything but a single byte range is ignored (RFC 9110); a range outside the file raises 416.

    >>> parse_range("bytes=2-", 10), parse_range("bytes=-3", 10), parse_range("lines=1-2", 10)
    ((2, 10), (7, 10), None)
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = (int(digits) if digits else None for digits in match.groups())
    if first is not None and last is not None and last < first:
        return None
    if first is None:
        start, end = max(0, size - (last or 0)), size
    else:
        start, end = first, size if last is None else min(size, last + 1)
    if start >= end:
        raise Problem(
            416,
            f"the file has {size} bytes, none of them in this range",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, end


def video_response(video: OpenVideo, headers: Headers, method: str) -> Response:
    """Return the response for an open file; it closes the descriptor."""
    try:
        tag = f'"{video.content}"'
        response_headers = {
            "Accept-Ranges": "bytes",
            "ETag": tag,
            "Cache-Control": "private, no-cache",
            "Content-Disposition": "inline",
        }
        tags = headers.get("if-none-match", "").split(",")
        if tag in (name.strip().removeprefix("W/") for name in tags):
            os.close(video.descriptor)
            return Response(status_code=304, headers=response_headers)
        range_header = headers.get("range")
        if "if-range" in headers and headers["if-range"].strip() != tag:
            range_header = None
        span = parse_range(range_header, video.size)
        start, end = span or (0, video.size)
        response_headers["Content-Length"] = str(end - start)
        if span is not None:
            response_headers["Content-Range"] = f"bytes {start}-{end - 1}/{video.size}"
        if method == "HEAD":
            end = start
        return _FileResponse(video, start, end, 200 if span is None else 206, response_headers)
    except Problem:
        os.close(video.descriptor)
        raise


class _FileResponse(StreamingResponse):
    def __init__(
        self, video: OpenVideo, start: int, end: int, status: int, headers: dict[str, str]
    ) -> None:
        self.video = video
        super().__init__(self._chunks(start, end), status, headers, video.media_type)

    async def _chunks(self, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            size = min(CHUNK, end - start)
            chunk = await anyio.to_thread.run_sync(read_at, self.video.descriptor, size, start)
            if not chunk:
                raise OSError("the file was truncated while it was sent")
            start += len(chunk)
            yield chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.video.descriptor)


MODULE = "eaglenet.video.streaming"
MAX_LINE = 4096
MAX_REASON = 300
MAX_START = 1e9  # seconds


@dataclass(frozen=True)
class Conversion:
    """Process that writes an MP4, beginning at second ``start`` of the file."""

    process: asyncio.subprocess.Process
    how: str
    start: float

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Eaglenet-How": self.how,
            "Eaglenet-Start": f"{self.start:.3f}",
            "Cache-Control": "no-store",
            "Accept-Ranges": "none",
            "Content-Disposition": "inline",
        }


class Streams:
    """Conversion processes, up to a limit."""

    def __init__(self, limit: int, timeout: float) -> None:
        self.limit = limit
        self.timeout = timeout
        self._processes: set[asyncio.subprocess.Process] = set()
        self._num_starting = 0

    async def begin(self, video: OpenVideo, start: float) -> Conversion:
        """Start converting an open file, and close its descriptor."""
        try:
            if len(self._processes) + self._num_starting >= self.limit:
                message = f"already converting {self.limit} videos, which is the limit"
                raise Problem(503, message, headers=RETRY)
            # Counted before the first await, so that concurrent requests see it.
            self._num_starting += 1
            try:
                process = await self._start(video.descriptor, start)
                self._processes.add(process)
            finally:
                self._num_starting -= 1
        finally:
            os.close(video.descriptor)
        try:
            return _make_conversion(process, await self._read_header(process))
        except BaseException:
            await self.end(process)
            raise

    async def _start(self, descriptor: int, start: float) -> asyncio.subprocess.Process:
        handle = descriptor_to_handle(descriptor)
        arguments = (str(handle), str(start), str(os.getpid()))
        return await asyncio.create_subprocess_exec(
            *child_command(MODULE, *arguments),
            env=clean_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=CHUNK,
            **inheriting([handle]),
        )

    async def _read_header(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """Read and check the line before the MP4; the process is not trusted."""
        if process.stdout is None:
            raise RuntimeError("the process has no output pipe")
        try:
            async with asyncio.timeout(self.timeout):
                line = await process.stdout.readuntil(b"\n")
            values = parse_json(line[:MAX_LINE])
        except TimeoutError:
            raise Problem(504, f"the conversion did not start within {self.timeout:g} s") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            raise _unplayable("the decoder crashed") from None
        if not isinstance(values, dict):
            raise _unplayable("the decoder crashed")
        return values

    async def end(self, process: asyncio.subprocess.Process) -> None:
        self._processes.discard(process)
        if process.returncode is None:
            # Not through Popen, which would reap the process before asyncio does.
            kill_process(process.pid)
        await process.wait()

    async def close(self) -> None:
        for process in list(self._processes):
            await self.end(process)

    def make_response(self, conversion: Conversion, method: str) -> Response:
        """Return the response with the MP4; without a body for HEAD."""
        return _StreamResponse(self, conversion, method == "HEAD")


class _StreamResponse(StreamingResponse):
    def __init__(self, streams: Streams, conversion: Conversion, is_head: bool) -> None:
        self.streams, self.conversion = streams, conversion
        content = iter(()) if is_head else self._chunks()
        super().__init__(content, 200, conversion.headers, "video/mp4")

    async def _chunks(self) -> AsyncIterator[bytes]:
        # If the client reads slowly, the pipe fills and the process waits.
        output = self.conversion.process.stdout
        while output is not None:
            try:
                # A process that a hostile file took over may send nothing and never end.
                chunk = await asyncio.wait_for(output.read(CHUNK), self.streams.timeout)
            except TimeoutError:
                raise OSError("the conversion has stopped") from None
            if not chunk:
                return
            yield chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(self.streams.end(self.conversion.process))


def _make_conversion(process: asyncio.subprocess.Process, values: dict[str, Any]) -> Conversion:
    if "error" in values:
        raise _unplayable(str(values["error"])[:MAX_REASON])
    how, start = values.get("how"), values.get("start")
    # Both become headers of the response.
    if how not in ("copy", "convert") or not isinstance(start, int | float):
        raise _unplayable("the decoder crashed")
    if not 0 <= start < MAX_START:
        raise _unplayable("the decoder crashed")
    return Conversion(process, str(how), float(start))


def _unplayable(reason: str) -> Problem:
    return Problem(
        415,
        f"the video cannot be converted: {reason}",
        code="unplayable",
        hint="download the file and play it elsewhere",
    )
