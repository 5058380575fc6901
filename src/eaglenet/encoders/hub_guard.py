"""Checks on the responses of a model hub, which may be hostile (``HF_ENDPOINT``, plain HTTP).

The hub's library uses the ``ETag`` of a response as a file name in its cache, and resumes a
download for as long as some bytes arrive. Hooks on its HTTP client refuse tags that are not plain
names, bodies that are too slow, and downloads that are resumed too often.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eaglenet.core.errors import EagleNetError

SLOW_SECONDS = 30.0
"""Seconds after which the speed of a download is checked."""
MIN_BYTES_PER_SECOND = 4096
MAX_RESPONSES = 24
"""Responses to one download: checks of the file, redirects, and resumed bodies."""
NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
"""Tags are hashes: SHA-1 or SHA-256 at the hub, others at mirrors."""
NAME_HEADERS = ("x-linked-etag", "etag", "x-repo-commit")


class HostileHubError(EagleNetError):
    """A hub's response that must not be used."""


class ResponseGuard:
    """Response hook of an HTTP client (httpx)."""

    def __init__(self) -> None:
        self.num_responses = 0

    def __call__(self, response: Any) -> None:
        self.num_responses += 1
        if self.num_responses > MAX_RESPONSES:
            raise HostileHubError("the download was interrupted too often")
        check_names(response.headers)
        response.stream = watch_speed(response.stream)


def check_names(headers: Any) -> None:
    """Raise ``HostileHubError`` for a header that becomes a file name and is not a plain one."""
    for header in NAME_HEADERS:
        value = headers.get(header)
        if value is None:
            continue
        name = value.removeprefix("W/").strip('"')
        # Content networks add the number of parts.
        if not NAME.fullmatch(name):
            raise HostileHubError(f"the hub sent a {header} that is not a hash: {value[:80]!r}")


def watch_speed(stream: Any) -> Any:
    """Return a stream that fails if it is slower than ``MIN_BYTES_PER_SECOND``."""
    # The client checks for its own base class, which differs between versions.
    base = next(each for each in type(stream).__mro__ if each.__name__ == "SyncByteStream")

    def iterate(self: Any) -> Iterator[bytes]:
        began, size = time.monotonic(), 0
        for chunk in stream:
            size += len(chunk)
            seconds = time.monotonic() - began
            if seconds > SLOW_SECONDS and size < MIN_BYTES_PER_SECOND * seconds:
                raise HostileHubError(f"the download is too slow ({size} bytes in {seconds:.0f} s)")
            yield chunk

    def close(self: Any) -> None:
        stream.close()

    return type("WatchedStream", (base,), {"__iter__": iterate, "close": close})()


@contextmanager
def guard_downloads() -> Iterator[None]:
    """Check all responses that the hub's library receives within the block."""
    from huggingface_hub.utils import get_session

    session, guard = get_session(), ResponseGuard()
    hooks = session.event_hooks
    before = list(hooks.get("response", []))
    session.event_hooks = {**hooks, "response": [*before, guard]}
    try:
        yield
    finally:
        session.event_hooks = {**hooks, "response": before}
