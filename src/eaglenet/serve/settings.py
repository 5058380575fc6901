"""What a service allows, and where it may listen."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from eaglenet.core.chat import ChatServer
from eaglenet.core.errors import UsageError

MAX_QUERY_CHARACTERS = 1000
MAX_RESULTS = 200
MAX_QUERIES = 32
"""Sentences in one request."""
MAX_NEGATIVES = 8
MAX_TAGS = 16
MAX_FILTER_CHARACTERS = 300
SHORTEST_SESSION = 32
SHORTLIST = 100
"""Clips that are ranked exactly; as many as are asked for where that is more."""


@dataclass(frozen=True)
class Settings:
    """Limits of one service. Times in seconds, rates in requests a second and client."""

    token: str | None = None
    """Asked for on every request but the health check where it is given."""
    session: str | None = None
    """Random text that browsers get for the token, the same in all copies of one service that
    share their visitors; None: each process makes its own."""
    local: bool = True
    """Bound to this machine alone: then only local Host headers are answered."""
    max_body_bytes: int = 256 * 1024
    search_rate: float = 100.0
    media_rate: float = 400.0
    """Thumbnails and pieces of video: a page of results asks for hundreds at once."""
    burst_seconds: float = 2.0
    """A client may save up this much of its rate."""
    max_searches: int = 256
    """Requests that may wait for or run on the engine; more are turned away."""
    max_streams: int = 64
    max_streams_a_client: int = 24
    """Fewer than all: readers that are slow on purpose leave room for the others."""
    max_conversions: int = 2
    """Videos that are made playable at once; each takes a core."""
    max_other: int = 64
    max_connections: int = 1024
    max_connections_a_client: int = 256
    header_timeout: float = 10.0
    """For a request's headers to come whole."""
    body_timeout: float = 10.0
    """Between two pieces of a body."""
    timeout: float = 30.0
    stall_timeout: float = 120.0
    """A video's reader that takes nothing for this long is hung up on."""
    workers: int = 1
    """Threads that search; on a CPU as many as there are cores serve most queries a second."""
    batch_window: float = 0.003
    max_batch: int = 8
    """More wait for each other longer than it saves."""
    allow_uploads: bool = False
    max_upload_bytes: int = 64 * 2**20
    judge: str | None = None
    """Address of the chat server that orders the first hits; set here alone, never by a request."""

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)
        if self.session is not None:
            check_session(self.session)
        if self.judge is not None:
            ChatServer(self.judge)  # Refuses a wrong address before anything is served.
        if not self.local and self.token is None:
            raise UsageError(
                "anyone who can reach this machine could watch the indexed videos: give "
                "a token in EAGLENET_TOKEN or with --token-file FILE, or listen on 127.0.0.1"
            )


def check_token(token: str) -> None:
    """Refuse what cannot be sent in a header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            "the token must be visible ASCII characters without spaces; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )


def check_session(session: str) -> None:
    """Refuse what could be guessed, as no one waits between two tries, or is not fit for a cookie.

    >>> check_session("0123456789-0123456789_0123456789-0123456789")
    """
    if re.fullmatch(rf"[A-Za-z0-9_-]{{{SHORTEST_SESSION},}}", session) is None:
        raise UsageError(
            f"EAGLENET_SESSION must be {SHORTEST_SESSION} or more random letters, digits, - or _; "
            "make it with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


def is_local_host(host: str) -> bool:
    """Whether listening on ``host`` reaches this machine alone.

    >>> is_local_host("127.0.0.1"), is_local_host("0.0.0.0"), is_local_host("::1")
    (True, False, True)
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(
            f"--host {host!r} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    # A scoped IPv6 address carries its interface after a percent sign.
    addresses = [str(entry[4][0]).split("%")[0] for entry in found]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
