"""Access checks (host name, origin, token) and security headers."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglenet.serve.limits import MAX_CLIENTS, ServiceMetrics, TokenBuckets, client_of
from eaglenet.serve.problems import Problem, error_response
from eaglenet.serve.settings import Settings

logger = logging.getLogger(__name__)

COOKIE = "eaglenet_session"
LOCAL_HOST = re.compile(r"(localhost\.?|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
MAX_HEADERS, MAX_HEADER_BYTES = 100, 32 * 1024
SINGLE_HEADERS = (
    *(b"host", b"content-length", b"transfer-encoding", b"authorization", b"cookie", b"origin"),
)
"""Headers that may occur only once: twice, they would be ambiguous."""
OPEN_PATHS = frozenset({"/", "/health", "/login", "/favicon.ico"})
"""Paths that need no token; ``/`` shows the login page."""
GUESSES_PER_SECOND, GUESS_BURST = 0.5, 10.0
"""Rate and burst of wrong tokens per client."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class TokenCheck:
    """Check of tokens, in constant time and with a limit on guesses.

    A client that exceeds the limit is refused even with the right token, so that it cannot learn
    which one is right. Browsers get a cookie of random characters instead of the token. The cookie
    cannot be guessed, so the right one is always accepted: a browser is not slowed down by others
    with the same address. Instances behind one load balancer share the cookie (``session``).
    """

    def __init__(
        self, token: str, session: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token = token.encode()
        self.session = session or secrets.token_urlsafe(32)
        self._guesses = TokenBuckets(GUESSES_PER_SECOND, GUESS_BURST, clock)
        self._last_digests: OrderedDict[str, bytes] = OrderedDict()

    def seconds_to_wait(self, client: str, token: str, right: str | None = None) -> float | None:
        """Return None if ``token`` is right (or equals ``right``), else the seconds to wait.

        Repeating a wrong token is not a new guess, because a page with an old cookie requests
        hundreds of thumbnails.
        """
        token_bytes = token.encode("utf-8", "surrogateescape")
        wait = self._guesses.wait(client)
        if wait:
            return wait
        if hmac.compare_digest(token_bytes, self._token if right is None else right.encode()):
            return None
        digest = hashlib.sha256(token_bytes).digest()
        if self._last_digests.get(client) != digest:
            self._guesses.take(client)
            self._last_digests[client] = digest
            self._last_digests.move_to_end(client)
            if len(self._last_digests) > MAX_CLIENTS:
                self._last_digests.popitem(last=False)
        return 0.0

    def check(self, headers: Headers, client: str) -> bool:
        """Return whether the headers contain the token or the cookie.

        Raise a ``Problem`` with status 429 for a client that has to wait.
        """
        cookie = _cookie(headers)
        if cookie is not None and hmac.compare_digest(cookie.encode(), self.session.encode()):
            return True
        if "authorization" in headers:
            scheme, _, token = headers["authorization"].partition(" ")
            if scheme.lower() != "bearer":
                return False
            return self.is_right(client, token.strip())
        if cookie is not None:
            self.is_right(client, cookie, self.session)
        return False

    def is_right(self, client: str, token: str, right: str | None = None) -> bool:
        wait = self.seconds_to_wait(client, token, right)
        if wait:
            retry = {"Retry-After": str(math.ceil(wait))}
            raise Problem(429, "too many wrong tokens", headers=retry)
        return wait is None


def _cookie(headers: Headers) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None


def is_local_name(host: str) -> bool:
    """Return whether a Host header names this machine.

    >>> is_local_name("LocalHost:8000"), is_local_name("[::1].evil.com")
    (True, False)
    """
    return LOCAL_HOST.fullmatch(host) is not None


def is_from_another_site(headers: Headers, path: str) -> bool:
    """Return whether the browser marks a request as coming from another site."""
    if headers.get("sec-fetch-site") == "cross-site":
        return True
    origin = headers.get("origin")
    # A page without a referrer, such as the login form, sends the origin "null".
    if origin is None or (origin == "null" and path == "/login"):
        return False
    host = headers.get("host", "").lower()
    return origin.lower() not in (f"http://{host}", f"https://{host}")


def framing_problem(scope: Scope) -> tuple[int, str] | None:
    """Return the status and message for ambiguous or oversized headers; None if they are fine."""
    names = [name for name, _ in scope["headers"]]
    if len(names) > MAX_HEADERS:
        return 431, f"more than {MAX_HEADERS} headers"
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        return 431, f"headers of more than {MAX_HEADER_BYTES} bytes"
    if b"transfer-encoding" in names and b"content-length" in names:
        return 400, "a body has Content-Length or Transfer-Encoding, not both"
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            return 400, f"the header {name.decode()} is repeated"
    return None


class GuardMiddleware:
    """Middleware that refuses requests from other sites, for other hosts, or without the token.

    A page on another site can make a browser send requests to this machine. It cannot read the
    responses unless its own name resolves here (DNS rebinding), which the Host header reveals.
    """

    def __init__(self, app: ASGIApp, settings: Settings, tokens: TokenCheck | None) -> None:
        self.app = app
        self.local = settings.local
        self.tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            answer = self._refusal(scope) or self.app
        except Problem as problem:
            answer = error_response(problem.status_code, problem.detail, headers=problem.headers)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        framing = framing_problem(scope)
        if framing is not None:
            return error_response(*framing, headers={"Connection": "close"})
        headers = Headers(scope=scope)
        if self.local and not is_local_name(headers.get("host", "")):
            return error_response(421, "this service answers only to localhost")
        path = scope["path"]
        if is_from_another_site(headers, path) and path != "/":
            return error_response(403, "the request comes from another site")
        if self.tokens is None or path in OPEN_PATHS or path.startswith("/static/"):
            return None
        if self.tokens.check(headers, client_of(scope)):
            return None
        return error_response(
            401, "a token is needed", headers={"WWW-Authenticate": 'Bearer realm="eaglenet"'}
        )


class ObserveMiddleware:
    """Outermost middleware: security headers, metrics, and a response for internal errors."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            if status:
                raise  # Too late for an error response; close the connection.
            logger.exception("%s failed", scope["path"])
            response = error_response(500, "internal error")
            await response(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            # Unknown methods share one label, so that they cannot fill the registry.
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.metrics.requests.labels(method, route, str(status or 499)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - start)
