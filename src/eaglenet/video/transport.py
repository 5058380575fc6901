"""Objects from one process to another: tensors and arrays in them go as they are.

Pickling pixels would copy them twice more, and so would a connection's own messages; large arrays
are written to its descriptor after the pickle, and read into the memory where they stay.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

SMALL = 4096
"""Bytes up to which an array goes with the pickle rather than by itself."""
_readv: Callable[[int, list[memoryview]], int] | None = getattr(os, "readv", None)


@dataclass(frozen=True)
class Packed:
    """A pickle, and the arrays that it only names."""

    content: bytes
    arrays: list[memoryview]


class _Pickler(pickle.Pickler):
    """Tensors as the arrays they are, which can be sent as plain bytes."""

    def reducer_override(self, value: Any) -> Any:
        # Where torch was not imported nothing is a tensor, and importing it takes seconds.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def pack(value: Any) -> Packed:
    """Raises as ``pickle`` does where something in ``value`` cannot leave its process."""
    arrays: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes <= SMALL:
            return True
        arrays.append(buffer.raw())
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=is_small).dump(value)
    return Packed(stream.getvalue(), arrays)


def send(connection: Connection, packed: Packed) -> None:
    """Write what :func:`receive` reads; ``OSError`` where nobody is there any more."""
    connection.send((packed.content, [array.nbytes for array in packed.arrays]))
    for array in packed.arrays:
        if _readv is None:
            connection.send_bytes(array)
            continue
        while len(array):
            array = array[os.write(connection.fileno(), array) :]


def receive(connection: Connection) -> Any:
    """The next object; ``EOFError`` or ``OSError`` where nobody is there any more."""
    content, sizes = connection.recv()
    # Not filled with zeros first, as a bytearray would be.
    arrays = [np.empty(size, np.uint8) for size in sizes]
    for array in arrays:
        if _readv is None:
            connection.recv_bytes_into(array.data)
            continue
        rest = memoryview(array.data)
        while len(rest):
            count = _readv(connection.fileno(), [rest])
            if not count:
                raise EOFError
            rest = rest[count:]
    return pickle.loads(content, buffers=arrays)
