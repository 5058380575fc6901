"""The log of a store on object storage: every change to it, in the order it was made.

Whoever applies the log to an empty local store has a copy with the same rows. In place of features
and thumbnails, clips in the log have a :data:`POINTER` to them.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Layout
from eaglenet.store.records import (
    Changes,
    ClipBatch,
    IndexedFile,
    Line,
    Source,
    SourceLines,
    SourceWindows,
)

POINTER = np.dtype(
    [
        ("record", "<i8"),
        ("features_checksum", "<u4"),
        ("thumbnail_start", "<i8"),
        ("thumbnail_size", "<u4"),
        ("thumbnail_checksum", "<u4"),
    ]
)
"""Index of a clip's record in the file of features, and place of its thumbnail in theirs."""
POINTER_LAYOUT = Layout(POINTER)
FRAME = struct.Struct("<QI")
"""Length and checksum before each operation."""


@dataclass(frozen=True)
class SetHubness:
    bank: HubnessBank | None


@dataclass(frozen=True)
class Finish:
    pass


Operation = Changes | SetHubness | Finish


def encode(operation: Operation) -> bytes:
    """Bytes of an operation in the log."""
    header: dict[str, Any] = {"kind": type(operation).__name__}
    arrays: dict[str, Any] = {}
    if isinstance(operation, SetHubness) and operation.bank is not None:
        bank = operation.bank
        header["bank"] = [bank.source, bank.weight, bank.scale, list(bank.texts)]
        arrays["vectors"] = bank.vectors
    elif isinstance(operation, Changes):
        header |= {
            "files": [asdict(file) for file in operation.files],
            "removed_files": list(operation.removed_files),
            "transcripts": [
                [asdict(each.source), [astuple(line) for line in each.lines], each.keep_until]
                for each in operation.transcripts
            ],
            "removed_sources": list(operation.removed_sources),
            "windows": [[each.key, each.encoder] for each in operation.windows],
        }
        if operation.clips:
            batch = ClipBatch.concatenate(operation.clips)
            header |= {"keys": batch.keys, "keyframe_keys": sorted(batch.keyframe_keys)}
            arrays = {"starts": batch.starts, "ends": batch.ends, "vectors": batch.vectors}
            arrays["pointers"] = batch.features
        for number, each in enumerate(operation.windows):
            arrays[f"windows_{number}"] = np.stack([each.first_lines, each.num_lines])
            arrays[f"meanings_{number}"] = np.asarray(each.vectors, np.float32)
    text = np.frombuffer(zlib.compress(json.dumps(header).encode()), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, header=text, **arrays)
    body = buffer.getvalue()
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def decode(content: bytes) -> Iterator[tuple[int, Operation]]:
    """Operations, each with the offset of its end; raises ``ValueError`` for anything else."""
    start = 0
    while start < len(content):
        try:
            size, checksum = FRAME.unpack_from(content, start)
            end = start + FRAME.size + size
            body = content[start + FRAME.size : end]
            if len(body) != size or zlib.crc32(body) != checksum:
                raise ValueError("an operation is not as it was written")
            operation = _operation(body)
        except (struct.error, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        yield end, operation
        start = end


def _operation(body: bytes) -> Operation:
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        header = json.loads(zlib.decompress(arrays["header"].tobytes()))
        if header["kind"] == "Finish":
            return Finish()
        if header["kind"] == "SetHubness":
            if "bank" not in header:
                return SetHubness(None)
            source, weight, scale, texts = header["bank"]
            return SetHubness(HubnessBank(source, arrays["vectors"], weight, scale, tuple(texts)))
        clips = []
        if "keys" in header:
            keys = [(content, number) for content, number in header["keys"]]
            names = ("starts", "ends", "vectors", "pointers")
            starts, ends, vectors, pointers = (arrays[name] for name in names)
            # Logs of earlier versions have no clips from keyframes.
            keyframe_keys = frozenset((key[0], key[1]) for key in header.get("keyframe_keys", ()))
            thumbnails = [b""] * len(keys)
            clips = [ClipBatch(keys, starts, ends, vectors, pointers, thumbnails, keyframe_keys)]
        windows = []
        # Logs of earlier versions have none.
        for number, ((content, kind, path), encoder) in enumerate(header.get("windows", ())):
            lines, meanings = arrays[f"windows_{number}"], arrays[f"meanings_{number}"]
            key = content, kind, path
            windows.append(SourceWindows(key, encoder, lines[0], lines[1], meanings))
    return Changes(
        clips,
        [IndexedFile(**{**file, "tags": tuple(file["tags"])}) for file in header["files"]],
        header["removed_files"],
        [
            SourceLines(Source(**source), [Line(*line) for line in lines], keep_until)
            for source, lines, keep_until in header["transcripts"]
        ],
        [(content, kind, path) for content, kind, path in header["removed_sources"]],
        windows,
    )
