"""Which file may be sent for a clip, and sending the part of it that is asked for."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglenet.search.engine import Engine
from eaglenet.serve.problems import Problem

CHUNK = 256 * 1024
SAME_TIME = 1e-5
"""Seconds; the store keeps times as 64-bit floats, which are exact to less than a microsecond."""
MAX_REMEMBERED = 1024

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
}


@dataclass(frozen=True)
class OpenVideo:
    """An indexed file that was checked and opened; whoever gets it closes ``descriptor``."""

    descriptor: int
    size: int
    content: str
    """Hash of all bytes, as the store knows it."""
    media_type: str


class VideoFiles:
    """Opens the file of a clip, and no other.

    Clips are named by id, never by path. The path the store has for one is resolved, must lie in
    the folders that were indexed, and what is opened must be a regular file whose content is the
    indexed one: unchanged time, or else the same hash. The checks are made on the open file, so
    nothing can be swapped in between.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._hashes: OrderedDict[tuple[int, ...], str] = OrderedDict()

    def open(self, clip_id: str) -> OpenVideo:
        snapshot = self.engine.snapshot
        file = int(snapshot.columns["file_number"][snapshot.row(clip_id)])
        roots = [os.path.realpath(root) for root in self.engine.manifest.roots]
        content, modified = snapshot.files.contents[file], float(snapshot.files.modified[file])
        changed = False
        for path in snapshot.files.paths[file]:
            descriptor = _open_inside(path, roots)
            if descriptor is None:
                continue
            try:
                status = os.fstat(descriptor)
                same = abs(status.st_mtime_ns / 1e9 - modified) < SAME_TIME
                if same or self._hash(descriptor, status) == content:
                    kind = TYPES.get(Path(path).suffix.lower(), "application/octet-stream")
                    return OpenVideo(descriptor, status.st_size, content, kind)
            except OSError:
                os.close(descriptor)
                continue
            os.close(descriptor)
            changed = True
        if changed:
            raise Problem(409, "the file has changed since it was indexed")
        raise Problem(410, "the file is no longer in the indexed folders")

    def _hash(self, descriptor: int, status: os.stat_result) -> str:
        """Hash of an open file, remembered while the file stays as it is."""
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        # One at a time: hashing a film takes seconds, and many may ask for the same one.
        with self._lock:
            if key not in self._hashes:
                with os.fdopen(os.dup(descriptor), "rb") as stream:
                    digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
                self._hashes[key] = digest.hexdigest()
                if len(self._hashes) > MAX_REMEMBERED:
                    self._hashes.popitem(last=False)
            return self._hashes[key]


def _open_inside(path: str, roots: list[str]) -> int | None:
    """A descriptor of the regular file at ``path`` if it really lies in one of ``roots``."""
    try:
        real = os.path.realpath(path, strict=True)
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
            return None
        # Not blocking: opening a fifo would wait for a writer.
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


_RANGE = re.compile(r"bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.IGNORECASE | re.ASCII)


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last-plus-one byte; None for the whole file.

    What is no single byte range is ignored, as RFC 9110 allows; one outside the file is refused.

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
    """The answer to a request for an open file; the descriptor is closed with it."""
    try:
        tag = f'"{video.content}"'
        fixed = {
            "Accept-Ranges": "bytes",
            "ETag": tag,
            "Cache-Control": "private, no-cache",
            "Content-Disposition": "inline",
        }
        known = headers.get("if-none-match", "").split(",")
        if tag in (name.strip().removeprefix("W/") for name in known):
            os.close(video.descriptor)
            return Response(status_code=304, headers=fixed)
        wanted = headers.get("range")
        if "if-range" in headers and headers["if-range"].strip() != tag:
            wanted = None
        span = parse_range(wanted, video.size)
        start, end = span or (0, video.size)
        fixed["Content-Length"] = str(end - start)
        if span is not None:
            fixed["Content-Range"] = f"bytes {start}-{end - 1}/{video.size}"
        if method == "HEAD":
            end = start
        return _FileResponse(video, start, end, 200 if span is None else 206, fixed)
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
            chunk = await anyio.to_thread.run_sync(os.pread, self.video.descriptor, size, start)
            if not chunk:
                raise OSError("the file became shorter while it was sent")
            start += len(chunk)
            yield chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.video.descriptor)
