"""Who may ask: host names, other sites, the token; and the headers every answer carries."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import time
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglenet.serve.limits import TokenBuckets, client_of
from eaglenet.serve.metrics import Metrics
from eaglenet.serve.problems import error_response
from eaglenet.serve.settings import Settings

logger = logging.getLogger(__name__)

COOKIE = "eaglenet_session"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = frozenset({"/", "/health", "/login", "/favicon.ico"})
"""Answered without a token: the login page stands at ``/`` for those who have none."""
GUESSES_A_SECOND, GUESSES_AT_ONCE = 0.5, 10.0
"""Wrong tokens a client may send before it must wait."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
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
    """Compares tokens in constant time; browsers get a cookie that does not hold the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.cookie = hmac.new(self._token, b"eaglenet session", hashlib.sha256).hexdigest()
        self._guesses = TokenBuckets(GUESSES_A_SECOND, GUESSES_AT_ONCE)

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def is_allowed(self, headers: Headers) -> bool:
        """Whether the headers carry the token or the cookie that stands for it."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        # compare_digest takes text only where it is ASCII.
        value = morsel.value.encode("utf-8", "replace") if morsel is not None else b""
        return hmac.compare_digest(value, self.cookie.encode())

    def failed(self, client: str) -> float:
        """Count a wrong token; returns the seconds the client has to wait, or 0."""
        return self._guesses.take(client)


def local_host_name(host: str) -> str:
    """The name in a Host header, without its port.

    >>> local_host_name("LocalHost:8000"), local_host_name("[::1]:80")
    ('localhost', '[::1]')
    """
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].removesuffix(".")


def is_from_another_site(headers: Headers, path: str) -> bool:
    """Whether a browser says that a page of another site asks."""
    if headers.get("sec-fetch-site") == "cross-site":
        return True
    origin = headers.get("origin")
    # Forms of pages that name no referrer, as ours, come from "null"; the login form is one.
    if origin is None or (origin == "null" and path == "/login"):
        return False
    return origin.partition("://")[2].lower() != headers.get("host", "").strip().lower()


class GuardMiddleware:
    """Refuses requests by where they come from and whether they know the token.

    A page on another site can make a browser send requests to this machine. It cannot read the
    answers unless its own name resolves here (DNS rebinding), which the Host header gives away.
    """

    def __init__(self, app: ASGIApp, settings: Settings, tokens: TokenCheck | None) -> None:
        self.app = app
        self.local = settings.local
        self.tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = self._refusal(scope) or self.app
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self.local and local_host_name(headers.get("host", "")) not in LOCAL_NAMES:
            return error_response(421, "this service answers to localhost only")
        path = scope["path"]
        if is_from_another_site(headers, path) and path != "/":
            return error_response(403, "another site asked for this")
        if self.tokens is None or path in OPEN_PATHS or path.startswith("/static/"):
            return None
        if self.tokens.is_allowed(headers):
            return None
        if "authorization" in headers:
            wait = self.tokens.failed(client_of(scope))
            if wait:
                retry = {"Retry-After": str(math.ceil(wait))}
                return error_response(429, "too many wrong tokens", headers=retry)
        return error_response(
            401, "a token is needed", headers={"WWW-Authenticate": 'Bearer realm="eaglenet"'}
        )


class ObserveMiddleware:
    """Outermost: security headers on every answer, counts, and an answer for our own faults."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            if status:
                raise  # Too late for an answer: the connection is cut.
            logger.exception("%s failed", scope["path"])
            failed = error_response(500, "something went wrong in the service")
            await failed(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            # Made-up methods must not fill the registry.
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self.metrics.requests.labels(method, route, str(status or 499)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)
