"""Connections at the level of sockets: time for a request to come, and how many a client may hold.

uvicorn waits for a request's headers for ever. Here a request has ``header_timeout`` seconds to
come whole, and where a client (or all together) hold too many connections, the oldest on which
nothing is being answered makes room for a new one. So half-sent requests lock nobody out.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from eaglenet.serve.limits import client_of
from eaglenet.serve.service_settings import Settings

OTHER_FILES = 256
"""Descriptors kept for videos, uploads and the store."""


class Connections:
    """All open connections, oldest first."""

    def __init__(self, most: int, most_a_client: int) -> None:
        self.most = most
        self.most_a_client = most_a_client
        self._open: dict[GuardedProtocol, str] = {}
        self._of_client: Counter[str] = Counter()

    def admit(self, connection: GuardedProtocol, client: str) -> bool:
        """Take a connection in, in the place of an idle one where there are too many."""
        if self._of_client[client] >= self.most_a_client and not self._drop_idle(client):
            return False
        if len(self._open) >= self.most and not self._drop_idle(None):
            return False
        self._open[connection] = client
        self._of_client[client] += 1
        return True

    def forget(self, connection: GuardedProtocol) -> None:
        client = self._open.pop(connection, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def _drop_idle(self, client: str | None) -> bool:
        """Hang up on the oldest connection (of a client) on which no answer is being made."""
        for connection, owner in self._open.items():
            if client in (None, owner) and connection.is_idle:
                self.forget(connection)
                connection.transport.abort()
                return True
        return False


class GuardedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1 with a deadline for everything that the client has to send."""

    registry: Connections
    header_timeout: float
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered: none came yet, or the last one is done."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.registry.admit(self, client_of({"client": self.client})):
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.forget(self)
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Start the clock where the client owes bytes: headers, or a body that nobody waits for."""
        is_waiting = self.conn.their_state is h11.IDLE or (
            self.conn.their_state is h11.SEND_BODY and self.is_idle
        )
        if not is_waiting:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def protocol_for(settings: Settings) -> type[GuardedProtocol]:
    """A protocol class whose connections share one count."""
    most = min(settings.max_connections, _most_descriptors() - OTHER_FILES)

    class Protocol(GuardedProtocol):
        registry = Connections(max(1, most), settings.max_connections_a_client)
        header_timeout = settings.header_timeout

    return Protocol


def _most_descriptors() -> int:
    """Descriptors this process may have, raised to what the system allows without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return 65_536 if soft == resource.RLIM_INFINITY else soft
