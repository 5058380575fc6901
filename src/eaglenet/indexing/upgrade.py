"""Convert a store of the format before SQLite, which was kept in Lance tables.

The new store is made beside the old one, verified, and put in its place; the old one stays, under
the name of the store with ``.old``.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, UsageError, cause_of
from eaglenet.core.object_storage import is_object_url
from eaglenet.core.platform import swap_folders
from eaglenet.indexing.arrow_tables import read_table, require, rows_of
from eaglenet.indexing.exchange import clip_batch
from eaglenet.indexing.transcripts import store_lines
from eaglenet.store.disk import writer_lock
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Changes, ClipBatch, IndexedFile, Source, SourceLines
from eaglenet.store.store import LocalStore, command_to_index_again, is_old_format, path_of
from eaglenet.store.writer import LocalWriter
from eaglenet.transcripts.lines import TranscriptLine

COLUMNS = ("frames", "mask", "seconds")
"""Fields with a column of their own; all others are in ``extra``, one after the other."""
MAX_BANK = 2**30


@dataclass(frozen=True)
class Upgrade:
    """Result of an upgrade.

    old: where the old store is now; None if nothing had to be converted. incomplete_files: files
    that the old store had lost clips of; they must be indexed again.
    """

    clips: int
    old: Path | None = None
    incomplete_files: tuple[str, ...] = ()


def upgrade_store(location: str | Path) -> Upgrade:
    """Convert a local store to the current format; a current one is not changed."""
    if is_object_url(str(location)):
        raise UsageError(f"{location} is on object storage; only local stores are converted")
    folder = path_of(location).resolve()
    if not is_old_format(folder):
        with LocalStore.write(folder) as writer:  # Migrates the schema.
            return Upgrade(writer.num_visible())
    require("lance")
    old, new = folder.with_name(f"{folder.name}.old"), folder.with_name(f"{folder.name}.upgrade")
    if old.exists():
        raise StoreError(f"{old} exists; move it away, because the old store is kept there")
    with writer_lock(folder):
        try:
            incomplete = _convert(folder, new)
        except (KeyError, ValueError, TypeError, BadZipFile, RuntimeError, OSError) as error:
            raise StoreError(
                f"{folder} cannot be converted ({cause_of(error):.200}). Index again with: "
                f"{command_to_index_again(folder)}"
            ) from error
        clips = LocalStore.open(new).verify().clips
        swap_folders(new, folder)
    new.rename(old)
    return Upgrade(clips, old, tuple(incomplete))


def _convert(folder: Path, new: Path) -> list[str]:
    """Write the new store; returns the files that lack clips, which it does not have."""
    values = _read_manifest_values(folder / "manifest.json")
    manifest = Manifest.from_json(json.dumps(values))
    bank = _read_bank(folder, values.get("hubness"), manifest.dim)
    with LocalStore.write(new, manifest, bank) as writer:
        for columns in read_table(folder, "clips", "lance"):
            writer.commit(Changes(clips=[_read_clips(columns, manifest)]))
        files = [_read_file(row) for row in _table_rows(folder, "files")]
        writer.commit(Changes(files=files))
        _copy_transcripts(folder, writer)
        writer.finish()
        lacking = writer.incomplete_contents()
        incomplete = sorted(
            file.path for file in files if file.status == "done" and file.content in lacking
        )
        # After the end of the run, so that their clips stay for the next one.
        writer.commit(Changes(removed_files=incomplete))
    return incomplete


def _copy_transcripts(folder: Path, writer: LocalWriter) -> None:
    lines: dict[str, list[TranscriptLine]] = {}
    for row in _table_rows(folder, "words"):
        line = TranscriptLine(row["start"], row["end"], row["words"], row["language"])
        lines.setdefault(row["source"], []).append(line)
    for row in _table_rows(folder, "sources"):
        own_lines = sorted(lines.get(row.pop("key"), ()), key=lambda line: line.start)
        writer.commit(Changes(transcripts=[SourceLines(Source(**row), store_lines(own_lines))]))


def _read_clips(columns: dict[str, Any], manifest: Manifest) -> ClipBatch:
    dtype = manifest.layout.dtype
    names = [name for name in dtype.names or () if name not in COLUMNS]
    if names:
        fields = np.dtype([(name, dtype[name]) for name in names])
        extra = np.frombuffer(b"".join(columns["extra"]), fields)
        columns |= {name: extra[name] for name in names}
    batch = clip_batch(columns, manifest)
    if "check" in columns and _checks(batch) != columns["check"].tolist():
        raise ValueError("clips are not as they were written")
    return batch


def _checks(batch: ClipBatch) -> list[int]:
    """Checksums as the old format has them."""
    checks = []
    for index, (content, number) in enumerate(batch.keys):
        span = (float(batch.starts[index]), float(batch.ends[index]))
        check = zlib.crc32(f"{content} {number} {span}".encode())
        features = batch.features[index].tobytes()
        for part in (batch.vectors[index].tobytes(), features, batch.thumbnails[index]):
            check = zlib.crc32(part, check)
        checks.append(check)
    return checks


def _read_file(row: dict[str, Any]) -> IndexedFile:
    check = row.pop("check", None)
    if check is not None and check != zlib.crc32(json.dumps(row, sort_keys=True).encode()):
        raise ValueError("a file is not as it was written")
    return IndexedFile(**{**row, "tags": tuple(json.loads(row["tags"]))})


def _table_rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for columns in read_table(folder, name, "lance"):
        yield from rows_of(columns)


def _read_manifest_values(path: Path) -> dict[str, Any]:
    values = untrusted.read_object(path)
    check = values.pop("check", None)
    plain = json.dumps(values, sort_keys=True).encode()
    if check not in (None, hashlib.blake2b(plain, digest_size=16).hexdigest()):
        raise ValueError(f"{path.name} is damaged")
    return values


def _read_bank(folder: Path, values: dict[str, Any] | None, dim: int) -> HubnessBank | None:
    if values is None:
        return None
    path = folder / Path(values["file"]).name
    content = untrusted.read_bytes(path, MAX_BANK)
    if path.name != f"bank-{hashlib.blake2b(content, digest_size=16).hexdigest()}.npz":
        raise ValueError(f"{path.name} is damaged")
    with np.load(io.BytesIO(content)) as parts:
        vectors, texts = parts["vectors"], parts["texts"].tobytes().decode()
    if vectors.dtype != np.float32 or vectors.shape[1:] != (dim,):
        raise ValueError(f"{path.name} is damaged")
    bank_texts = tuple(texts.split("\n")) if texts else ()
    return HubnessBank(values["source"], vectors, values["weight"], values["scale"], bank_texts)
