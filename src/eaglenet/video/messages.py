"""Binary messages for the replies of workers, which may be hostile.

    layout = layout_of(DecodedClips)
    parts = pack(layout, value)         # in the worker
    value = unpack(layout, buffers)     # in the parent, after a Receiver has read the parts

A worker that a file has taken over may send any bytes. The parent knows the type that it expects,
and the type determines the layout: nothing in a message names a class or a function. Lengths are
checked against the available bytes before memory is allocated; a message that does not fit raises
``MessageError``. Types are ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``None``, arrays,
tuples, lists, unions, dataclasses and named tuples of these.

Numbers are little-endian. A message consists of a header, the sizes of its large arrays, the body,
and the arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

MAGIC = b"eng1"
HEADER = struct.Struct("<4sIQ")
"""Magic, number of large arrays, bytes of the body."""
MAX_ARRAYS = 2**16
MAX_INLINE_BYTES = 4096
"""Maximum bytes of an array that is part of the body."""
MAX_DIMENSIONS = 5
MAX_BYTES = 2**30
"""Maximum bytes of a message; 16 clips of 32 frames of 560 x 560 pixels take half of it."""
MAX_BODY_BYTES = 96 * 2**20
"""Maximum bytes of the body, whose values take several times as much memory as Python objects. The
subtitles inside a file may take 64 MiB."""


class MessageError(ValueError):
    """A message does not have the expected layout."""


@dataclass
class Writer:
    """Collects the parts of a message."""

    body: bytearray = field(default_factory=bytearray)
    arrays: list[memoryview] = field(default_factory=list)


@dataclass
class Reader:
    """Reads the body of a message; every length is checked."""

    body: memoryview
    arrays: Sequence[Any]
    position: int = 0
    next_array: int = 0

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.body):
            raise MessageError("the message is too short")
        content = self.body[self.position : end]
        self.position = end
        return content

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]


@dataclass(frozen=True)
class Layout:
    """Functions that write and read values of one type."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]


_BYTE, _COUNT, _SIZE, _REAL = (struct.Struct(f"<{code}") for code in "BIQd")
_INTEGER_BYTES = 16
"""More than 8, since inode numbers are unsigned 64-bit values."""


def _write_bool(writer: Writer, value: bool) -> None:
    writer.body.append(bool(value))


def _read_bool(reader: Reader) -> bool:
    value = reader.number(_BYTE)
    if value > 1:
        raise MessageError(f"{value} is neither true nor false")
    return bool(value)


def _write_int(writer: Writer, value: int) -> None:
    writer.body += int(value).to_bytes(_INTEGER_BYTES, "little", signed=True)


def _read_int(reader: Reader) -> int:
    return int.from_bytes(reader.take(_INTEGER_BYTES), "little", signed=True)


def _write_float(writer: Writer, value: float) -> None:
    writer.body += _REAL.pack(value)


def _write_bytes(writer: Writer, value: bytes) -> None:
    writer.body += _COUNT.pack(len(value))
    writer.body += value


def _read_bytes(reader: Reader) -> bytes:
    return bytes(reader.take(reader.number(_COUNT)))


def _write_str(writer: Writer, value: str) -> None:
    # File names that are not UTF-8 contain surrogates.
    _write_bytes(writer, value.encode("utf-8", "surrogatepass"))


def _read_str(reader: Reader) -> str:
    try:
        return _read_bytes(reader).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise MessageError("a text is not UTF-8") from None


_PLAIN: dict[Any, Layout] = {
    bool: Layout(_write_bool, _read_bool),
    int: Layout(_write_int, _read_int),
    float: Layout(_write_float, lambda reader: reader.number(_REAL)),
    str: Layout(_write_str, _read_str),
    bytes: Layout(_write_bytes, _read_bytes),
    type(None): Layout(lambda writer, value: None, lambda reader: None),
}


@functools.cache
def layout_of(kind: Any) -> Layout:
    """Return the layout of a type; raise ``TypeError`` if it has none."""
    kind = _resolve_alias(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is None or kind in _PLAIN:
        return _PLAIN[type(None) if kind is None else kind]
    if origin in (Union, types.UnionType):
        return _union_layout(arguments)
    if origin is np.ndarray:
        return _array_layout(np.dtype(get_args(arguments[1])[0]))
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is ...):
        return _sequence_layout(origin, layout_of(arguments[0]))
    if origin is tuple:
        return _fields_layout([layout_of(each) for each in arguments], tuple, lambda value: value)
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        raise TypeError(f"{kind} cannot be sent by a worker")
    hints = get_type_hints(kind)
    return _fields_layout(
        [layout_of(hints[name]) for name in names],
        lambda values: kind(**dict(zip(names, values, strict=True))),
        lambda value: [getattr(value, name) for name in names],
    )


def _resolve_alias(kind: Any) -> Any:
    """Resolve an alias made by a ``type`` statement, such as ``NDArray`` in newer numpy."""
    origin = get_origin(kind)
    if hasattr(origin, "__value__"):
        return origin.__value__[get_args(kind)]
    return kind.__value__ if hasattr(kind, "__value__") else kind


def result_type(work: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function."""
    while isinstance(work, functools.partial):
        work = work.func
    return get_type_hints(work).get("return", type(None))


def _fields_layout(
    layouts: Sequence[Layout],
    build: Callable[[list[Any]], Any],
    get_fields: Callable[[Any], Sequence[Any]],
) -> Layout:
    def write(writer: Writer, value: Any) -> None:
        for layout, each in zip(layouts, get_fields(value), strict=True):
            layout.write(writer, each)

    return Layout(write, lambda reader: build([layout.read(reader) for layout in layouts]))


def _sequence_layout(kind: Callable[[list[Any]], Any], element: Layout) -> Layout:
    def write(writer: Writer, value: Sequence[Any]) -> None:
        writer.body += _COUNT.pack(len(value))
        for each in value:
            element.write(writer, each)

    def read(reader: Reader) -> Any:
        count = reader.number(_COUNT)
        # Every element except None takes at least one byte.
        if count > len(reader.body):
            raise MessageError("a list is longer than the message")
        return kind([element.read(reader) for _ in range(count)])

    return Layout(write, read)


def _union_layout(kinds: Sequence[Any]) -> Layout:
    kinds = [_resolve_alias(kind) for kind in kinds]
    layouts = [layout_of(kind) for kind in kinds]

    def write(writer: Writer, value: Any) -> None:
        number = next(
            n for n, kind in enumerate(kinds) if isinstance(value, get_origin(kind) or kind)
        )
        writer.body.append(number)
        layouts[number].write(writer, value)

    def read(reader: Reader) -> Any:
        number = reader.number(_BYTE)
        if number >= len(layouts):
            raise MessageError(f"{number} is not one of {len(layouts)} types")
        return layouts[number].read(reader)

    return Layout(write, read)


def _array_layout(dtype: np.dtype[Any]) -> Layout:
    def write(writer: Writer, value: Any) -> None:
        if value.dtype != dtype or value.ndim > MAX_DIMENSIONS:
            raise TypeError(f"expected an array of {dtype}, not {value.dtype} {value.shape}")
        content = np.ascontiguousarray(value).data.cast("B") if value.size else memoryview(b"")
        writer.body.append(value.ndim)
        writer.body += struct.pack(f"<{value.ndim}Q", *value.shape)
        if len(content) <= MAX_INLINE_BYTES:
            writer.body += content
        else:
            writer.arrays.append(content)

    def read(reader: Reader) -> Any:
        dimensions = reader.number(_BYTE)
        if dimensions > MAX_DIMENSIONS:
            raise MessageError(f"an array has {dimensions} dimensions")
        shape = [reader.number(_SIZE) for _ in range(dimensions)]
        size = math.prod(shape) * dtype.itemsize
        if size <= MAX_INLINE_BYTES:
            content = np.frombuffer(bytearray(reader.take(size)), np.uint8)
        elif reader.next_array < len(reader.arrays):
            content = reader.arrays[reader.next_array]
            reader.next_array += 1
        else:
            raise MessageError("an array is missing")
        if len(content) != size or any(length > MAX_BYTES for length in shape):
            raise MessageError(f"an array of {shape} has {len(content)} bytes")
        if dtype == np.bool_ and size and int(content.max()) > 1:
            raise MessageError("an array of booleans has other values")
        return content.view(dtype).reshape(shape)

    return Layout(write, read)


def pack(layout: Layout, value: Any) -> list[bytes | memoryview]:
    """Return the parts of a message; raise ``TypeError`` if the value does not fit the layout."""
    writer = Writer()
    try:
        layout.write(writer, value)
    except (AttributeError, ValueError, OverflowError, StopIteration, struct.error) as error:
        raise TypeError(f"{type(value).__name__} does not fit its layout ({error})") from error
    sizes = struct.pack(f"<{len(writer.arrays)}Q", *(len(array) for array in writer.arrays))
    header = HEADER.pack(MAGIC, len(writer.arrays), len(writer.body))
    return [header + sizes + bytes(writer.body), *writer.arrays]


def unpack(layout: Layout, buffers: Sequence[Any]) -> Any:
    """Return the value of a message; ``buffers`` are its body and its large arrays, as uint8."""
    reader = Reader(memoryview(buffers[0]), buffers[1:])
    try:
        value = layout.read(reader)
    except MessageError:
        raise
    # Constructors may refuse their values by any error.
    except Exception as error:
        raise MessageError(f"invalid values ({type(error).__name__}: {error})") from error
    if reader.position != len(reader.body) or reader.next_array != len(reader.arrays):
        raise MessageError("the message is longer than its content")
    return value


class Receiver:
    """Receives one message in parts, without blocking.

    read: fills a buffer with the available bytes and returns their number; 0 at the end.
    """

    def __init__(self, read: Callable[[memoryview], int], max_bytes: int = MAX_BYTES) -> None:
        self.read = read
        self.max_bytes = max_bytes
        self._header = bytearray(HEADER.size)
        self._sizes: bytearray | None = None
        self._buffers: list[Any] = []
        self._rest = memoryview(self._header)
        self._unread_views: list[memoryview] = []

    def advance(self) -> list[Any] | None:
        """Read the available bytes; return the buffers of the message when it is complete.

        Raises ``EOFError`` if the other side has ended.
        """
        count = self.read(self._rest)
        if not count:
            raise EOFError
        self._rest = self._rest[count:]
        while not len(self._rest):
            if not self._unread_views and not self._grow():
                return self._buffers
            self._rest = self._unread_views.pop(0)
        return None

    def _grow(self) -> bool:
        """Prepare for the next part; return False if the message is complete."""
        if self._buffers:
            return False
        magic, count, length = HEADER.unpack(self._header)
        if self._sizes is None:
            limit = min(self.max_bytes, MAX_BODY_BYTES)
            if magic != MAGIC or count > MAX_ARRAYS or length > limit:
                raise MessageError("not the header of a message")
            self._sizes = bytearray(8 * count)
            self._unread_views = [memoryview(self._sizes)]
            return True
        sizes = struct.unpack(f"<{count}Q", self._sizes)
        if length + sum(sizes) > self.max_bytes or any(not size for size in sizes):
            raise MessageError(f"more than {self.max_bytes} bytes")
        # numpy.empty does not touch memory, so bytes that are never sent cost nothing.
        self._buffers = [np.empty(size, np.uint8) for size in (length, *sizes)]
        self._unread_views = [memoryview(buffer.data) for buffer in self._buffers if len(buffer)]
        return bool(self._unread_views)
