"""Conversion of files that browsers cannot play, on the fly."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eaglenet.core.platform import descriptor_to_handle, inheriting, kill_process
from eaglenet.core.process import child_command, clean_environment
from eaglenet.core.untrusted import parse_json
from eaglenet.serve.media import CHUNK, OpenVideo
from eaglenet.serve.problems import Problem

MODULE = "eaglenet.video.streaming"
MAX_LINE = 4096
MAX_REASON = 300
MAX_START = 1e9  # seconds
RETRY = {"Retry-After": "5"}


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

    def answer(self, conversion: Conversion, method: str) -> Response:
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
                # A process that was taken over may send nothing, and keep its place for ever.
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
