"""Addresses and models of chat servers; for replies, see `tests/search/test_judge.py`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.search.chat import ChatError, ChatServer, ReplyError
from stand_in_chat import send, serve_chat

SCHEMA = {"properties": {"a": {}}}


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:11434",
        "file:///etc/passwd",
        "ftp://host",
        "http://",
        "http://:80",
        "http://host:port",
        "http://host:99999",
        "http://user:password@host",
        "http://host/?target=http://other",
        "http://host/a b",
        "http://host/\r\nX-Header: 1",
        "http://h\u00f6st",
        "http://[::1",
    ],
)
def test_wrong_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="not the address of a chat server") as refusal:
        ChatServer(address)
    assert "password@" not in str(refusal.value)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_address_may_end_in_the_version(suffix: str) -> None:
    with serve_chat(lambda question, handler: '<think>well</think>\n{"a": 1}') as chat:
        server = ChatServer(f"{chat.url}{suffix}#some/model:8b")
        assert server.ask("say a", "", b"jpeg", SCHEMA, timeout=60) == {"a": 1}
        assert chat.questions[0]["model"] == "some/model:8b"
        assert server.url == chat.url


def test_only_model_is_found_and_several_are_listed() -> None:
    with serve_chat(lambda question, handler: "") as chat:
        assert ChatServer(chat.url).model == "stand-in"
        for models in ([], ["one", "two"]):
            chat.models = models
            with pytest.raises(UsageError, match="add #MODEL") as refusal:
                _ = ChatServer(chat.url).model
            assert all(name in str(refusal.value) for name in models)


def test_other_keys_are_refused() -> None:
    with serve_chat(lambda question, handler: '{"b": 1}') as chat:
        with pytest.raises(ReplyError, match="other keys"):
            ChatServer(chat.url).ask("", "", b"", SCHEMA, timeout=60)
        chat.reply = lambda question, handler: send(handler, b'{"choices": 3}')
        with pytest.raises(ReplyError, match="one choice"):
            ChatServer(chat.url).ask("", "", b"", SCHEMA, timeout=60)


def test_key_must_fit_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLENET_CHAT_KEY", "a\r\nHost: other")
    with pytest.raises(UsageError, match="EAGLENET_CHAT_KEY"):
        ChatServer("http://127.0.0.1:1")


def test_slow_handshake_ends_at_the_deadline() -> None:
    """The server sends a byte every 50 ms, which restarts the timeout of the socket."""
    is_over = threading.Event()

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as client:
            client.sendall(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc")
            while not is_over.wait(0.05):
                try:
                    client.sendall(b"\x03")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        server = ChatServer(f"https://127.0.0.1:{listener.getsockname()[1]}#model")
        begin = time.monotonic()
        with pytest.raises(ChatError, match=r"did not answer within 0\.3 s"):
            server.ask("", "", b"jpeg", SCHEMA, timeout=0.3)
        assert time.monotonic() - begin < 30
        is_over.set()
        thread.join(60)


def test_lookup_of_the_host_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    began = time.monotonic()
    with pytest.raises(ChatError, match=r"did not answer within 0\.2 s"):
        ChatServer("http://slow.example#m").ask("", "", b"jpeg", SCHEMA, timeout=0.2)
    assert time.monotonic() - began < 30
    over.set()
    monkeypatch.undo()
    with pytest.raises(ChatError, match="cannot be used"):
        ChatServer(f"http://{'a' * 64}.example#m").ask("", "", b"jpeg", SCHEMA, timeout=60)


def test_addresses_of_a_host_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred addresses that never accept; each would take the whole timeout."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(3):  # With a full backlog, further connections are not accepted.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", address)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry] * 100)
        begin = time.monotonic()
        with pytest.raises(ChatError, match=r"did not answer within 0\.4 s"):
            ChatServer(f"http://several:{address[1]}#model").ask(
                "", "", b"jpeg", SCHEMA, timeout=0.4
            )
        assert time.monotonic() - begin < 30


@pytest.mark.parametrize("models", [b'{"data": 5}', b'{"data": {"id": "a"}}', b"{}"])
def test_models_must_be_a_list(models: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatServer, "_exchange", lambda *_: models)
    with pytest.raises(ReplyError, match="not a list of models"):
        _ = ChatServer("http://127.0.0.1:1").model
