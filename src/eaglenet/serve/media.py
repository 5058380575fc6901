"""Files of clips: open them safely, and send the requested range."""

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
from typing import IO

import anyio.to_thread
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglenet.core.platform import is_below, open_beneath, read_at, split_below
from eaglenet.search.engine import Engine
from eaglenet.serve.problems import Problem
from eaglenet.video.input_file import MAX_TIME_DIFFERENCE

CHUNK = 256 * 1024
MAX_CACHED_HASHES = 1024
MAX_COMPARING = 16
"""Files that may wait to be compared with the indexed hash."""
COMPARE_TIMEOUT = 2.0
"""Seconds that a request waits for the comparison, before it gets 503."""
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
    """Open file with another modification time, so that its bytes must be compared."""

    video: OpenVideo
    status: os.stat_result


class VideoFiles:
    """Opener of the files of clips.

    Clips are addressed by id, never by path. The stored path is resolved, must be inside the
    indexed folders, and is opened component by component without following links, so that no
    component can be replaced meanwhile. The file must be regular and have the indexed size and
    modification time, or else the indexed hash.
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
        size, modified = files.sizes[0], float(files.modified[0])
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
            elif abs(status.st_mtime_ns / 1e9 - modified) >= MAX_TIME_DIFFERENCE:
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
