"""Limits per client and in total: rate, concurrency, size, time; and metrics of a service.

The page, its files, thumbnails and the health check are limited by the number of connections only,
so that they are still answered while searches queue. A request that is refused because too many are
in progress is answered after a pause, so that clients that retry at once do not keep the service
busy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Literal

import h11
import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from eaglenet.core.platform import raise_descriptor_limit
from eaglenet.serve.problems import Problem, error_response
from eaglenet.serve.settings import Settings

Kind = Literal["search", "stream", "page", "other"]
MAX_CLIENTS = 4096
"""Maximum clients whose budget is stored; the least recently active one is removed first."""
REFUSAL_SECONDS = 1.0
"""Pause in seconds before a refusal."""

_SEARCH = re.compile(r"/api/(search|similar)(/|$)")
_STREAM = re.compile(r"/api/clips/[^/]+/(video|stream)$")
_CHEAP = re.compile(r"/(api/clips/[^/]+/(video|thumbnail)|static/.*)$")
_PAGE = re.compile(r"/$|/favicon\.ico$|/static/.*$|/api/clips/[^/]+/thumbnail$")
_UPLOAD = re.compile(r"/api/search/(image|video)$")


class TokenBuckets:
    """Budget per client: ``rate`` requests per second, in bursts of at most ``burst``."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self.clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def remaining(self, client: str) -> float:
        """Return the number of requests that a client may send now."""
        now = self.clock()
        budget, last_time = self._buckets.get(client, (self.burst, now))
        return min(self.burst, budget + (now - last_time) * self.rate)

    def wait(self, client: str) -> float:
        """Return the seconds until a client may send a request; 0 if it may now."""
        budget = self.remaining(client)
        return 0.0 if budget >= 1 else (1 - budget) / self.rate

    def take(self, client: str) -> float:
        """Spend one request. Return 0, or the seconds to wait if the budget is used up."""
        now, budget, wait = self.clock(), self.remaining(client), self.wait(client)
        self._buckets.pop(client, None)
        self._buckets[client] = (budget - 1 if wait == 0 else budget, now)
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return wait


def client_of(scope: Scope) -> str:
    """Return the key of a client: its IPv4 address or its /64 IPv6 network."""
    client = scope.get("client")
    if not client:
        return "local"
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return str(client[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class LimitMiddleware:
    """Middleware that refuses requests above the limits before they do any work."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: ServiceMetrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        burst = settings.burst_seconds
        self.searches = TokenBuckets(settings.search_rate, settings.search_rate * burst)
        self.media = TokenBuckets(settings.media_rate, settings.media_rate * burst)
        self.limit: dict[Kind, int] = {
            "search": settings.max_searches,
            "stream": settings.max_streams,
            "page": settings.max_connections,
            "other": settings.max_other,
        }
        self.active: dict[Kind, int] = dict.fromkeys(self.limit, 0)
        self.streams: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        buckets = self.media if _CHEAP.match(path) else self.searches
        wait = buckets.take(client_of(scope))
        if wait:
            await self._refuse(429, "rate", "too many requests", wait)(scope, receive, send)
            return
        kind: Kind = "other"
        if _SEARCH.match(path):
            kind = "search"
        elif _STREAM.match(path):
            kind = "stream"
        elif _PAGE.match(path):
            kind = "page"
        client = client_of(scope)
        is_greedy = (
            kind == "stream" and self.streams[client] >= self.settings.max_streams_per_client
        )
        if is_greedy or self.active[kind] >= self.limit[kind]:
            answer = self._refuse(503, "concurrency", "too many requests at once", 1)
            await asyncio.sleep(REFUSAL_SECONDS)
            await answer(scope, receive, send)
            return
        self._count(kind, client, 1)
        try:
            await self._run(kind, scope, receive, send)
        finally:
            self._count(kind, client, -1)

    def _count(self, kind: Kind, client: str, change: int) -> None:
        self.active[kind] += change
        self.metrics.active.labels(kind).set(self.active[kind])
        if kind == "stream":
            self.streams[client] += change
            if not self.streams[client]:
                del self.streams[client]

    def _refuse(self, status: int, reason: str, message: str, wait: float) -> ASGIApp:
        self.metrics.refused.labels(reason).inc()
        return error_response(status, message, headers={"Retry-After": str(math.ceil(wait))})

    async def _run(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        receive = self._limited_receive(scope, receive)
        if kind == "stream":
            await self.app(scope, receive, self._timed_send(send))
            return
        has_started = False

        async def send_first(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            async with asyncio.timeout(self.settings.timeout):
                await self.app(scope, receive, send_first)
        except TimeoutError:
            if has_started:
                raise
            self.metrics.refused.labels("timeout").inc()
            message = f"no answer within {self.settings.timeout:g} s"
            await error_response(504, message)(scope, receive, send)

    def _limited_receive(self, scope: Scope, receive: Receive) -> Receive:
        limit = self.settings.max_body_bytes
        if _UPLOAD.match(scope["path"]):
            limit = self.settings.max_upload_bytes
        num_bytes = 0
        is_whole = False

        async def receive_limited() -> Message:
            nonlocal num_bytes, is_whole
            try:
                # After the body, only a disconnect can arrive, at any time.
                async with asyncio.timeout(None if is_whole else self.settings.body_timeout):
                    message = await receive()
            except TimeoutError:
                self.metrics.refused.labels("timeout").inc()
                headers = {"Connection": "close"}
                raise Problem(408, "the body did not arrive in time", headers=headers) from None
            is_whole = not message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes > limit:
                self.metrics.refused.labels("size").inc()
                raise Problem(413, f"the body is larger than {limit} bytes")
            return message

        return receive_limited

    def _timed_send(self, send: Send) -> Send:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.settings.stall_timeout):
                await send(message)

        return send_in_time


RESERVED_DESCRIPTORS = 256
"""File descriptors reserved for videos, uploads and the store."""


class Connections:
    """Registry of the open connections, oldest first."""

    def __init__(self, limit: int, limit_per_client: int) -> None:
        self.limit = limit
        self.limit_per_client = limit_per_client
        self._open: dict[GuardedProtocol, str] = {}
        self._of_client: Counter[str] = Counter()

    def admit(self, connection: GuardedProtocol, client: str) -> bool:
        """Admit a connection, after closing an idle one if there are too many; False if refused."""
        if self._of_client[client] >= self.limit_per_client and not self._drop_idle(client):
            return False
        if len(self._open) >= self.limit and not self._drop_idle(None):
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
        """Close the oldest idle connection of a client, or of any (None); False if none is idle."""
        for connection, owner in self._open.items():
            if client in (None, owner) and connection.is_idle:
                self.forget(connection)
                connection.transport.abort()
                return True
        return False


class GuardedProtocol(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1 with a deadline for the headers of each request."""

    registry: Connections
    header_timeout: float
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True while no request is in progress."""
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
        """Start the deadline while the client has to send headers, or a body that is not read."""
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
    """Return a protocol class with a common registry for all its connections."""
    limit = min(settings.max_connections, raise_descriptor_limit() - RESERVED_DESCRIPTORS)

    class Protocol(GuardedProtocol):
        registry = Connections(max(1, limit), settings.max_connections_per_client)
        header_timeout = settings.header_timeout

    return Protocol


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServiceMetrics:
    """Prometheus metrics of one service. Each app has its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = prometheus_client.Counter(
            "eaglenet_requests", "Answered requests", labels, registry=registry
        )
        title = "Seconds until the end of the response"
        self.seconds = Histogram(
            "eaglenet_request_seconds", title, ("route",), buckets=SECONDS, registry=registry
        )
        title = "Queries answered in one call of the engine"
        self.batch_queries = Histogram(
            "eaglenet_batch_queries", title, buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.active = Gauge(
            "eaglenet_active_requests", "Requests being answered", ("kind",), registry=registry
        )
        self.refused = prometheus_client.Counter(
            "eaglenet_refused_requests",
            "Requests refused by a limit",
            ("reason",),
            registry=registry,
        )
        self.clips = Gauge("eaglenet_clips", "Clips in the store", registry=registry)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
