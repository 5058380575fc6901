"""Client of an OpenAI-compatible chat server (Ollama, vLLM, llama.cpp) that sees images.

    server = ChatServer("http://127.0.0.1:11434#qwen3-vl:8b")
    server.ask("Describe the image.", "", jpeg, schema, timeout=20)   # a JSON object

The user chooses the address; replies are untrusted. Redirects are not followed, and proxies are not
used. A reply has a size limit and one deadline, from the lookup of the host to the last byte, so a
server that sends its reply slowly holds up the caller no longer than one that sends nothing.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from eaglenet.core import untrusted
from eaglenet.core.errors import EagleNetError, UsageError

MAX_REPLY = 2**18
"""Maximum bytes of a reply."""
MAX_EXCERPT = 200
"""Characters shown of a server's error message."""
MAX_TOKENS = 2048
"""Tokens per reply; reasoning models use most of them before they answer."""
MODELS_TIMEOUT = 10.0
"""Seconds allowed for the list of models."""
KEY_VARIABLE = "EAGLENET_CHAT_KEY"


class ChatError(EagleNetError):
    """The server cannot be reached, is too slow, or refuses the request."""


class ReplyError(ChatError):
    """The reply of the server is invalid."""


class ChatServer:
    """A chat server at an address ``http://HOST:PORT#MODEL``.

    Without ``#MODEL`` the server must have exactly one model. A key is read from
    ``EAGLENET_CHAT_KEY`` and sent as a bearer token.
    """

    def __init__(self, address: str) -> None:
        url, _, self._model = address.strip().partition("#")
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError as error:
            raise _wrong_address(address, str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _wrong_address(address, "it must begin with http:// or https:// and name a host")
        if parts.username is not None or parts.password is not None:
            raise _wrong_address("with a password", f"put a key into {KEY_VARIABLE} instead")
        if parts.query or not address.isascii() or not address.strip().isprintable() or " " in url:
            raise _wrong_address(address, "it may have a path, but no query, spaces or symbols")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._key = os.environ.get(KEY_VARIABLE, "")
        if not self._key.isascii() or not self._key.isprintable():
            raise UsageError(f"{KEY_VARIABLE} must be visible ASCII characters")

    @property
    def is_model_known(self) -> bool:
        """True if :attr:`model` can be read without asking the server."""
        return bool(self._model) or "model" in vars(self)

    @cached_property
    def model(self) -> str:
        """Name of the model; asks the server if the address has none."""
        if self._model:
            return self._model
        reply = _parse(self._exchange("GET", "/v1/models", None, MODELS_TIMEOUT), self.url)
        entries = reply.get("data")
        if not isinstance(entries, list):
            raise ReplyError(f"{self.url}: the reply is not a list of models")
        ids = [each.get("id") for each in entries if isinstance(each, dict)]
        names = [name for name in ids if isinstance(name, str) and name.isprintable()]
        if len(names) != 1:
            examples = ", ".join(names)[:MAX_EXCERPT] or "none"
            raise UsageError(
                f"{self.url} has several models or none ({examples}); add #MODEL to it"
            )
        return names[0]

    def ask(
        self,
        instructions: str,
        text: str,
        image: bytes,
        schema: Mapping[str, Any],
        *,
        timeout: float,
    ) -> dict[str, Any]:
        """Ask about a JPEG and return the JSON object of the reply.

        It has exactly the keys of the schema; the caller must check the values.
        """
        data_url = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
        content = [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": data_url}},
        ]
        request = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": instructions},
                {"role": "user", "content": content},
            ],
            "temperature": 0,
            "seed": 0,
            "max_tokens": MAX_TOKENS,
            "stream": False,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "strict": True, "schema": dict(schema)},
            },
        }
        body = json.dumps(request).encode()
        reply = _parse(self._exchange("POST", "/v1/chat/completions", body, timeout), self.url)
        answer = _answer(reply, self.url)
        if set(answer) != set(schema["properties"]):
            raise ReplyError(f"{self.url}: the reply has other keys than {[*schema['properties']]}")
        return answer

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._scheme == "https":
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        is_late = threading.Event()
        watchdog: threading.Timer | None = None
        connection = self._connection(timeout)
        try:
            channel = _connect(connection.host, connection.port, deadline)
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._scheme == "https":
                channel = ssl.create_default_context().wrap_socket(
                    channel, server_hostname=connection.host, do_handshake_on_connect=False
                )
            connection.sock = channel

            def hang_up() -> None:
                is_late.set()
                with contextlib.suppress(OSError):
                    # connection.sock is None if the server has announced to close the connection.
                    socket.socket.shutdown(channel, socket.SHUT_RDWR)

            # A socket's own timeout starts again with every byte.
            watchdog = threading.Timer(max(deadline - time.monotonic(), 0.0), hang_up)
            watchdog.daemon = True
            watchdog.start()
            if isinstance(channel, ssl.SSLSocket):
                channel.do_handshake()
            connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
            content = response.read(MAX_REPLY + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if is_late.is_set() or isinstance(error, TimeoutError):
                raise ChatError(f"{self.url} did not answer within {timeout:.3g} s") from None
            cause = _excerpt(str(error) or type(error).__name__)
            raise ChatError(f"{self.url} cannot be used ({cause})") from None
        finally:
            if watchdog is not None:
                watchdog.cancel()
            connection.close()
        if is_late.is_set():
            raise ChatError(f"{self.url} did not answer within {timeout:.3g} s")
        if 300 <= response.status < 400:
            raise ChatError(
                f"{self.url} redirects elsewhere, which is not followed; use the final address"
            )
        if response.status != 200:
            reason = _excerpt(content.decode("utf-8", "replace"))
            raise ChatError(f"{self.url} replied with status {response.status}: {reason}")
        if len(content) > MAX_REPLY:
            raise ReplyError(f"{self.url}: the reply is longer than {MAX_REPLY} bytes")
        return content


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of a host that accepts; they share the remaining time."""
    addresses = _resolve(host, port, deadline)
    problem: OSError = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        timeout = (deadline - time.monotonic()) / (len(addresses) - number)
        if timeout <= 0:
            raise TimeoutError
        channel = socket.socket(family, kind, protocol)
        try:
            channel.settimeout(timeout)
            channel.connect(address)
            channel.settimeout(max(deadline - time.monotonic(), 0.001))
            return channel
        except OSError as error:
            channel.close()
            problem = error
    raise problem


def _resolve(host: str, port: int, deadline: float) -> list[Any]:
    """Return the addresses of a host, or raise ``TimeoutError`` at the deadline.

    The system's own limit may be minutes, and a lookup cannot be cancelled. It therefore runs in a
    daemon thread, which does not delay the exit of the program.
    """
    outcome: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            outcome.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:  # UnicodeError: part of the name is too long.
            outcome.put(error)

    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    try:
        addresses = outcome.get(timeout=max(deadline - time.monotonic(), 0.0))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(addresses, Exception):
        raise addresses
    return addresses


def _parse(content: bytes | str, url: str) -> dict[str, Any]:
    try:
        value = untrusted.parse_json(content)
    except ValueError:  # Includes bytes that are not UTF-8.
        raise ReplyError(f"{url}: the reply is not JSON") from None
    if not isinstance(value, dict):
        raise ReplyError(f"{url}: the reply is not a JSON object")
    return value


def _answer(reply: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the JSON object in a reply, without reasoning before it or a code fence around it."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise ReplyError(f"{url}: the reply does not have exactly one choice")
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise ReplyError(f"{url}: the reply has no text")
    text = text.strip()
    if text.startswith("<think>"):
        text = text.partition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.removesuffix("```").partition("\n")[2]
    return _parse(text, url)


def _excerpt(text: str) -> str:
    """Return the first characters of a server's error message, on one line."""
    text = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_EXCERPT])
    return " ".join(text.split())[:MAX_EXCERPT] or "no reason"


def _wrong_address(address: str, problem: str) -> UsageError:
    return UsageError(
        f"{address!r:.100} is not the address of a chat server: {problem}; for example "
        "http://127.0.0.1:11434#MODEL"
    )
