"""Files that others made are data: bounded before they are read, and never more than they say.

Everything here raises ``ValueError`` with one line of text (``OSError`` where the system refuses),
which a reader turns into its own error with the name of the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIB = 2**20
MAX_CONFIG = 4 * MIB
"""Bytes of a configuration, manifest or list of settings."""
MAX_VOCABULARY = 64 * MIB
MAX_ANNOTATIONS = 1024 * MIB
MAX_DEPTH = 100
"""Levels of nesting; every format that is read here has fewer than ten."""


def read_bytes(path: Path, most: int) -> bytes:
    """A regular file of at most ``most`` bytes."""
    # Not blocking: opening a fifo would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > most:
            raise ValueError(f"{status.st_size} bytes; at most {most} are read")
        content = stream.read(status.st_size + 1)
    if len(content) > status.st_size:
        raise ValueError("it grew while it was read")
    return content


def read_text(path: Path, most: int = MAX_CONFIG) -> str:
    """A UTF-8 file, without its byte-order mark."""
    return read_bytes(path, most).decode("utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """What :func:`json.loads` gives; nesting without end is an error like any other."""
    try:
        value = json.loads(text)
        _check_depth(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += [each for each in entry.values() if isinstance(each, (dict, list))]
            elif isinstance(entry, list):
                inner += [each for each in entry if isinstance(each, (dict, list))]
        if not inner:
            return
        level = inner
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def read_json(path: Path, most: int = MAX_CONFIG) -> Any:
    return parse_json(read_text(path, most))


def read_object(path: Path, most: int = MAX_CONFIG) -> dict[str, Any]:
    """A JSON object."""
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def gunzip(data: bytes, most: int) -> bytes:
    """The content of a gzip file, if it is at most ``most`` bytes."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"not a gzip file ({error})") from error
    if len(content) > most:
        raise ValueError(f"unpacks to more than {most} bytes")
    if not inflater.eof:
        raise ValueError("the gzip file ends too early")
    return content


def check_zip(path: Path) -> None:
    """Refuse an archive that unpacks to much more than it is; files of weights are not packed."""
    size = os.path.getsize(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError) as error:
        raise ValueError(f"not a zip archive ({error})") from error
    if sum(member.file_size for member in members) > 2 * size + MIB:
        raise ValueError(f"unpacks to much more than its {size} bytes")


def check_tensor_bytes(tensors: Iterable[Any], path: Path) -> None:
    """Refuse tensors that stand for many more numbers than the file holds (repeated, shared)."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if total > 2 * os.path.getsize(path) + MIB:
        raise ValueError(f"claims {total} bytes of weights in {os.path.getsize(path)} bytes")


def read_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """The array of a ``.npy`` file, whose header must not claim more than the file holds."""
    with path.open("rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("not a regular file")
        try:
            version = np.lib.format.read_magic(stream)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(stream)
        except Exception as error:  # the header is a piece of Python, which can be broken anyhow
            raise ValueError(f"not an array as numpy.save writes it ({error})") from error
        if dtype.hasobject:
            raise ValueError("holds Python objects, which are not read")
        left = os.fstat(stream.fileno()).st_size - stream.tell()
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"shape {shape} is impossible")
    if math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"claims shape {shape} of {dtype}, but holds {left} bytes")
    array: NDArray[Any] = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
    return array
