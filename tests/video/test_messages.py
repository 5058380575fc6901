"""Replies of workers as binary messages: values do not change, and other bytes are errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from eaglenet.video.messages import (
    MAX_INLINE_BYTES,
    MessageError,
    Receiver,
    layout_of,
    pack,
    result_type,
    unpack,
)


class Span(NamedTuple):
    start: float
    end: float


@dataclass(frozen=True)
class Sample:
    """One field of every kind."""

    name: str
    number: int
    span: Span
    pixels: NDArray[np.uint8]
    times: NDArray[np.float32]
    is_real: NDArray[np.bool_]
    content: bytes
    parts: tuple[Span | None, ...]
    pair: tuple[str, bool]
    words: list[str]


def sample(size: int) -> Sample:
    generator = np.random.default_rng(size)
    return Sample(
        "a\udcff\u202e \N{SNOWMAN}", 2**64 - 1, Span(-1.5, float("inf")),
        generator.integers(0, 256, (2, 3, size, 5), np.uint8),
        generator.random(size, np.float32), generator.random(size) > 0.5,
        b"\0\xff" * size, (Span(0, 1), None), ("", True), ["", "b"],
    )  # fmt: skip


def through_socket(parts: list[bytes | memoryview], layout: Any) -> Any:
    """Send a message through a socket with a much smaller buffer, and receive it."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for part in parts:
                theirs.sendall(part)

    sender = threading.Thread(target=send)
    sender.start()
    receiver = Receiver(ours.recv_into)
    with ours:
        while (buffers := receiver.advance()) is None:
            pass
    sender.join()
    return unpack(layout, buffers)


@pytest.mark.parametrize("size", [0, 1, 700, 300_000])
def test_values_arrive_unchanged(size: int) -> None:
    layout, value = layout_of(Sample), sample(size)
    parts = pack(layout, value)
    result = through_socket(parts, layout)
    for name in ("name", "number", "span", "content", "parts", "pair", "words"):
        assert getattr(result, name) == getattr(value, name)
        assert type(getattr(result, name)) is type(getattr(value, name))
    for name in ("pixels", "times", "is_real"):
        array, original = getattr(result, name), getattr(value, name)
        assert array.dtype == original.dtype
        assert np.array_equal(array, original)
        array[:] = 0  # The array owns its memory.


def test_large_arrays_are_sent_without_a_copy() -> None:
    layout = layout_of(NDArray[np.uint8])
    small, large = np.zeros(MAX_INLINE_BYTES, np.uint8), np.zeros(MAX_INLINE_BYTES + 1, np.uint8)
    assert len(pack(layout, small)) == 1
    _, array = pack(layout, large)
    assert np.shares_memory(np.frombuffer(array, np.uint8), large)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "text"),
        (int, 2**200),
        (str, 5),
        (NDArray[np.uint8], np.zeros(3, np.float32)),
        (Span | None, 7),
        (tuple[int, int], (1, 2, 3)),
        (Sample, None),
    ],
)
def test_a_value_of_another_type_is_not_sent(kind: Any, value: object) -> None:
    with pytest.raises(TypeError):
        pack(layout_of(kind), value)


def returns_anything(request: int) -> object: ...


def returns_function(request: int) -> Callable[[], None]: ...


@pytest.mark.parametrize("work", [returns_anything, returns_function])
def test_only_known_types_have_a_layout(work: Callable[[int], Any]) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        layout_of(result_type(work))


def test_a_truncated_message_is_an_end() -> None:
    content = b"".join(bytes(part) for part in pack(layout_of(Sample), sample(5000)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(content[:9000])
        theirs.close()
        receiver = Receiver(ours.recv_into)
        with pytest.raises(EOFError):
            [receiver.advance() for _ in range(100)]


def test_a_message_larger_than_the_limit_is_refused() -> None:
    parts = pack(layout_of(Sample), sample(300_000))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(parts[0][:5000])
        receiver = Receiver(ours.recv_into, max_bytes=10**6)
        with pytest.raises(MessageError, match=r"header|more than"):
            [receiver.advance() for _ in range(100)]


def test_names_of_types_are_resolved() -> None:
    """In numpy 2.5 on Python 3.12, ``NDArray`` is an alias of a ``type`` statement."""
    alias = pytest.importorskip("typing_extensions").TypeAliasType
    scalar = TypeVar("scalar", bound=np.generic)
    array = alias("array", np.ndarray[tuple[int, ...], np.dtype[scalar]], type_params=(scalar,))
    layout = layout_of(array[np.uint8] | None)
    for value in (np.arange(5, dtype=np.uint8), None):
        actual = through_socket(pack(layout, value), layout)
        assert actual is None if value is None else np.array_equal(actual, value)
