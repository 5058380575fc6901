"""Checksums of what searching trusts: written with the snapshot, compared when a part is used.

``current.json`` carries its own hash and those of the two files it names; these are compared when a
snapshot is opened. The rows hold a checksum of each clip's vector, record and thumbnail: the
vectors are compared when they are first scanned, the others whenever they are read.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, shell_quote

FORMAT = 2
SELF = "check"


def file_check(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def sealed(values: dict[str, Any]) -> bytes:
    """JSON that carries a hash of itself."""
    plain = json.dumps({"format": FORMAT, **values}, sort_keys=True)
    return json.dumps({**json.loads(plain), SELF: file_check(plain.encode())}).encode()


def unsealed(values: Any) -> dict[str, Any]:
    """What :func:`sealed` was given; a ``ValueError`` where it is not as it was."""
    if not isinstance(values, dict):
        raise ValueError("current.json is not a JSON object")
    if values.get("format") != FORMAT:
        raise ValueError(f"current.json is of form {values.get('format')!r:.20}, not {FORMAT}")
    content = {name: value for name, value in values.items() if name != SELF}
    if file_check(json.dumps(content, sort_keys=True).encode()) != values.get(SELF):
        raise ValueError("current.json is not as it was written")
    return content


def checks_of(rows: Iterable[Any]) -> NDArray[np.uint32]:
    """One checksum for the bytes of each row."""
    return np.fromiter((zlib.crc32(row) for row in rows), np.uint32)


def damaged(part: str, location: str) -> StoreError:
    """An error that names the part and the command that mends it."""
    return StoreError(
        f"{part} in the snapshot of {location} is damaged: it is not as it was written. Rebuild "
        f"the snapshot with: eaglenet store repair --store {shell_quote(location)}"
    )
