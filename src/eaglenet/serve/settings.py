"""Settings of the service: limits, token and session."""

from __future__ import annotations

import ipaddress
import re
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import EagleNetError, UsageError, cause_of
from eaglenet.core.settings import from_plain
from eaglenet.search.chat import ChatServer

MAX_QUERY_CHARACTERS = 1000
MAX_RESULTS = 200
MAX_QUERIES = 32
"""Maximum queries per request."""
MAX_NEGATIVES = 8
MAX_TAGS = 16
MAX_FILTER_CHARACTERS = 300
MIN_SESSION_CHARACTERS = 32
SHORTLIST = 100
"""Clips that are ranked exactly, unless more results are requested."""


@dataclass(frozen=True)
class Settings:
    """Settings of one service. Times are in seconds, rates in requests per second and client."""

    token: str | None = None
    """If set, required for every request except the health check."""
    session: str | None = None
    """Random text of the cookie; must be equal in all instances behind one load balancer.
    None: each process generates its own."""
    local: bool = True
    """True if only this machine can reach the service; other Host headers are refused."""
    max_body_bytes: int = 256 * 1024
    search_rate: float = 100.0
    media_rate: float = 400.0
    """Rate for thumbnails and ranges of videos; a page of results requests hundreds at once."""
    burst_seconds: float = 2.0
    """Seconds of its rate that a client may use at once."""
    max_searches: int = 256
    """Maximum searches in progress or waiting; further ones are refused."""
    max_streams: int = 64
    max_streams_per_client: int = 24
    """Less than ``max_streams``, so that one client cannot block all others."""
    max_conversions: int = 2
    """Simultaneous conversions of videos; each uses one core."""
    max_other: int = 64
    max_connections: int = 1024
    max_connections_per_client: int = 256
    header_timeout: float = 10.0
    """Time limit for all headers of a request to arrive."""
    body_timeout: float = 10.0
    """Time limit between two chunks of a body."""
    timeout: float = 30.0
    stall_timeout: float = 120.0
    """Time after which a stalled download is closed."""
    workers: int = 1
    """Threads that search; on a CPU, one per core has the highest throughput."""
    batch_window: float = 0.003
    max_batch: int = 8
    """Queries per batch; larger batches cost more latency than they save."""
    allow_uploads: bool = False
    max_upload_bytes: int = 64 * 2**20
    agents: bool = False
    """Answer assistants at ``/mcp``."""
    save_folder: Path | None = None
    """Folder into which assistants may save clips."""
    judge: str | None = None
    """Address of the chat server that rates the first hits; requests cannot set it."""

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)
        if self.session is not None:
            check_session(self.session)
        if self.judge is not None:
            ChatServer(self.judge)  # Refuses a wrong address before anything is served.
        if not self.local and self.token is None:
            raise UsageError(
                "anyone who can reach this machine could watch the indexed videos; set a "
                "token in EAGLENET_TOKEN or with --token-file FILE, or listen on 127.0.0.1"
            )


FILE_SETTINGS = (
    "max_body_bytes", "media_rate", "burst_seconds", "max_searches", "max_streams",
    "max_streams_per_client", "max_conversions", "max_other", "max_connections",
    "max_connections_per_client", "header_timeout", "body_timeout", "stall_timeout", "batch_window",
    "max_batch", "max_upload_bytes",
)  # fmt: skip
"""Settings that a file may contain (``serve --settings``); all others are command options."""


def read_settings(path: Path) -> dict[str, Any]:
    """Read settings from a TOML file; raise ``UsageError`` for an unknown name or a wrong value."""
    try:
        values = tomllib.loads(untrusted.read_text(path))
        for name in values:
            if name not in FILE_SETTINGS:
                raise UsageError(f"no setting {name!r}; known: {', '.join(FILE_SETTINGS)}")
        settings = from_plain(Settings, values)
        limits = {name: getattr(settings, name) for name in values}
        for name, limit in limits.items():
            if not 0 < limit < float("inf"):
                raise UsageError(f"{name} is {limit}; expected a number above 0")
    except (OSError, ValueError, RecursionError, EagleNetError) as error:
        raise UsageError(f"--settings {path}: {cause_of(error)}") from error
    return limits


def check_token(token: str) -> None:
    """Raise ``UsageError`` if a token cannot be sent in a header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            "the token must be visible ASCII characters without spaces; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )


def check_session(session: str) -> None:
    """Raise ``UsageError`` if a text is invalid in a cookie, or too short to be unguessable.

    >>> check_session("0123456789-0123456789_0123456789-0123456789")
    """
    if re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_SESSION_CHARACTERS},}}", session) is None:
        raise UsageError(
            f"EAGLENET_SESSION must be {MIN_SESSION_CHARACTERS} or more random letters, digits, - "
            "or _; make it with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


def is_local_host(host: str) -> bool:
    """Return whether only this machine can reach a service that listens on ``host``.

    >>> is_local_host("127.0.0.1"), is_local_host("0.0.0.0"), is_local_host("::1")
    (True, False, True)
    """
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(
            f"--host {host!r} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    # A scoped IPv6 address has its interface after a percent sign.
    addresses = [str(entry[4][0]).split("%")[0] for entry in entries]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
