"""Client of an OpenAI-compatible chat server (Ollama, vLLM, llama.cpp) that sees images.

    server = ChatServer("http://127.0.0.1:11434#qwen3-vl:8b")
    server.ask("Describe the image.", "", jpeg, schema, timeout=20)   # a JSON object

The user chooses the address; replies are untrusted. Redirects are not followed, and proxies are not
used. A reply has a size limit and one deadline, from the lookup of the host to the last byte, so
that a server that sends its bytes slowly costs no more than one that is silent.
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
"""Characters of a server's own error message that are shown."""
MAX_TOKENS = 2048
"""Tokens per reply; models that reason use most of them before they answer."""
MODELS_TIMEOUT = 10.0
"""Seconds for the list of models."""
KEY_VARIABLE = "EAGLENET_CHAT_KEY"


class ChatError(EagleNetError):
    """The server cannot be used now: not reached, too slow, or it refuses."""


class ReplyError(ChatError):
    """The server replied, but not with what was requested."""


class ChatServer:
    """A server by its address, ``http://HOST:PORT#MODEL``.

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
        """Ask about a JPEG; return the object of the reply, which has exactly the schema's keys.

        The values are those that the server sent: the caller checks them.
        """
        data_url = f"data:image/jpeg;base64,{base64.b64encode(image).decode()}"
        content = [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": data_url}},
        ]
        question = {
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
        body = json.dumps(question).encode()
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
                    # Not of the connection, which forgets its socket if the server will close it.
                    socket.socket.shutdown(channel, socket.SHUT_RDWR)

            # A timeout of a socket begins again with every byte.
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
    """Connect to the first address of a host that accepts; each gets its share of the time."""
    addresses = _resolve(host, port, deadline)
    problem: OSError = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        share = (deadline - time.monotonic()) / (len(addresses) - number)
        if share <= 0:
            raise TimeoutError
        channel = socket.socket(family, kind, protocol)
        try:
            channel.settimeout(share)
            channel.connect(address)
            channel.settimeout(max(deadline - time.monotonic(), 0.001))
            return channel
        except OSError as error:
            channel.close()
            problem = error
    raise problem


def _resolve(host: str, port: int, deadline: float) -> list[Any]:
    """Look the addresses of a host up; the system's own limit may be minutes.

    A lookup cannot be cancelled, so that it runs in a thread of its own, which does not keep the
    program from ending.
    """
    outcome: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            outcome.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:  # UnicodeError: a label of the name is too long.
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
    except ValueError:  # Also of bytes that are not UTF-8.
        raise ReplyError(f"{url}: the reply is not JSON") from None
    if not isinstance(value, dict):
        raise ReplyError(f"{url}: the reply is not a JSON object")
    return value


def _answer(reply: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the object in a reply, which may have thoughts or a code fence around it."""
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
    text = "".join(sign if sign.isprintable() else " " for sign in text[: 4 * MAX_EXCERPT])
    return " ".join(text.split())[:MAX_EXCERPT] or "no reason"


def _wrong_address(address: str, problem: str) -> UsageError:
    return UsageError(
        f"{address!r:.100} is not the address of a chat server: {problem}; for example "
        "http://127.0.0.1:11434#MODEL"
    )
