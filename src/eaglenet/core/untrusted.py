"""Readers for untrusted files: sizes are checked before anything is read or allocated.

All functions raise ``ValueError`` with a one-line text, or ``OSError`` where the system refuses.
Callers turn both into their own error with the name of the file.
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

from eaglenet.core.platform import open_for_reading

MIB = 2**20
MAX_CONFIG = 4 * MIB
"""Bytes of a configuration, manifest or settings file."""
MAX_VOCABULARY = 64 * MIB
MAX_ANNOTATIONS = 1024 * MIB
MAX_DEPTH = 100
"""Levels of nesting; the formats read here have fewer than ten."""


def read_bytes(path: Path, limit: int, descriptor: int | None = None) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    descriptor: the open file, if it is open already; it is closed.
    """
    if descriptor is None:
        descriptor = open_for_reading(path)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > limit:
            raise ValueError(f"{status.st_size} bytes; at most {limit} are read")
        content = stream.read(status.st_size + 1)
    if len(content) > status.st_size:
        raise ValueError("it grew while it was read")
    return content


def is_utf8(text: str) -> bool:
    """Return whether a text is valid Unicode; file names may be arbitrary bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_text(path: Path, limit: int = MAX_CONFIG) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark."""
    return read_bytes(path, limit).decode("utf-8-sig")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON like :func:`json.loads`; nesting beyond ``MAX_DEPTH`` is a ``ValueError``."""
    try:
        value = json.loads(text)
        _check_depth(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _check_depth(value: Any) -> None:
    level_values = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for entry in level_values:
            if isinstance(entry, dict):
                inner += [each for each in entry.values() if isinstance(each, (dict, list))]
            elif isinstance(entry, list):
                inner += [each for each in entry if isinstance(each, (dict, list))]
        if not inner:
            return
        level_values = inner
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def read_json(path: Path, limit: int = MAX_CONFIG) -> Any:
    return parse_json(read_text(path, limit))


def read_object(path: Path, limit: int = MAX_CONFIG) -> dict[str, Any]:
    """Return the JSON object in a file."""
    value = read_json(path, limit)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def gunzip(data: bytes, limit: int) -> bytes:
    """Return the content of a gzip file of at most ``limit`` unpacked bytes."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"not a gzip file ({error})") from error
    if len(content) > limit:
        raise ValueError(f"unpacks to more than {limit} bytes")
    if not inflater.eof:
        raise ValueError("the gzip file is truncated")
    return content


def check_zip(path: Path) -> None:
    """Refuse a zip archive that unpacks to much more than its size; weights are not compressed."""
    size = os.path.getsize(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError) as error:
        raise ValueError(f"not a zip archive ({error})") from error
    if sum(member.file_size for member in members) > 2 * size + MIB:
        raise ValueError(f"unpacks to much more than its {size} bytes")


def check_tensor_bytes(tensors: Iterable[Any], path: Path) -> None:
    """Refuse tensors that take much more memory than their file (repeated or shared storage)."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if total > 2 * os.path.getsize(path) + MIB:
        raise ValueError(f"claims {total} bytes of weights in {os.path.getsize(path)} bytes")


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file; its header must not claim more than the file holds."""
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
        except Exception as error:  # the header is Python source and can be broken in any way
            raise ValueError(f"not an array written by numpy.save ({error})") from error
        if dtype.hasobject:
            raise ValueError("holds Python objects, which are not read")
        remaining = os.fstat(stream.fileno()).st_size - stream.tell()
    if any(type(size) is not int or not 0 <= size < 2**63 for size in shape):
        raise ValueError(f"shape {shape} is impossible")
    if math.prod(shape) * dtype.itemsize > remaining:
        raise ValueError(f"claims shape {shape} of {dtype}, but holds {remaining} bytes")
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array
