"""Maintain a store: remove files, use another model, convert the format before SQLite."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, UsageError, cause_of, shell_quote, store_option
from eaglenet.core.files import expand_home
from eaglenet.core.platform import swap_folders
from eaglenet.indexing.exchange import clip_batch, read_table, require, rows_of
from eaglenet.indexing.files import tags_of
from eaglenet.indexing.options import IndexOptions
from eaglenet.indexing.transcripts import make_store_lines
from eaglenet.store.disk import writer_lock
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.object_storage import (
    absolute_location,
    is_object_url,
    require_names,
    select_inside,
)
from eaglenet.store.records import Changes, ClipBatch, IndexedFile, Source, SourceLines
from eaglenet.store.store import (
    LocalStore,
    command_to_index_again,
    is_old_format,
    kind_of,
    open_store,
    path_of,
)
from eaglenet.store.writer import LocalWriter
from eaglenet.transcripts.lines import TranscriptLine


def remove(location: str | Path, paths: Sequence[str | Path]) -> list[str]:
    """Remove files, or all files in folders, from a store; return the removed paths.

    The files themselves are not deleted. Clips stay if another path has the same content.
    """
    require_names(paths)
    locations = [absolute_location(path) for path in paths]
    with kind_of(location).write(str(location)) as writer:
        removed_paths = select_inside((file.path for file in writer.files()), locations)
        if not removed_paths:
            raise UsageError(
                f"{location} has no file {' or '.join(map(str, paths))}; list its files with: "
                f"eaglenet store files{store_option(location)}"
            )
        writer.commit(Changes(removed_files=removed_paths))
        writer.finish()
    return removed_paths


def options_like(store: str | Path, options: IndexOptions) -> tuple[tuple[str, ...], IndexOptions]:
    """Return the roots of ``store``, and ``options`` with its splitting, transcripts and bank."""
    old_store = open_store(store)
    manifest = old_store.manifest
    if not manifest.roots:
        raise StoreError(
            f"{store} does not record its folders; name them: eaglenet index FOLDER ..."
        )
    new_options = dataclasses.replace(
        options,
        splitting=manifest.splitting,
        fast=manifest.frame_spec.fast,
        transcripts_from=str(store),
    )
    bank = old_store.snapshot().hubness_bank if options.hubness is None else None
    if bank is not None and bank.texts:
        # Its vectors belong to the old model; the new one encodes the texts again.
        new_options = dataclasses.replace(new_options, hubness=bank.texts)
    return manifest.roots, new_options


def tags_like(
    store: str | Path, new_tags: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the tags of the files of ``store`` by path, without files that ``new_tags`` lists."""
    files = open_store(store).snapshot().files()
    return {
        path: tuple(tags)
        for paths, tags in zip(files.paths, files.tags, strict=True)
        for path in paths
        if tags and tags_of(path, new_tags) is None
    }


def require_distinct_stores(new: str | Path, old: str | Path) -> None:
    """Raise an error if the new store would overwrite the one in use."""
    if expand_home(new).resolve() == expand_home(old).resolve():
        raise UsageError(
            f"--store and --like are both {old}; use a new folder for --store, which --swap "
            "exchanges with it when it is complete"
        )


def require_complete(new: str | Path, old: str | Path, failed_paths: Iterable[str] = ()) -> None:
    """Raise an error if a new store lacks files of the one it should replace.

    Otherwise an unmounted disk could replace a full store. Files in ``failed_paths`` were tried and
    reported.
    """
    old_paths, new_paths = (
        {path for paths in open_store(store).snapshot().files().paths for path in paths}
        for store in (old, new)
    )
    lacking = sorted(old_paths - new_paths - set(failed_paths))
    if lacking or (old_paths and not new_paths):
        names = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise StoreError(
            f"not swapped: {new} lacks {len(lacking or old_paths)} of the {len(old_paths)} files "
            f"of {old}"
            + (f" ({names})" if names else "")
            + "; run the same command again when they are back, or drop them with: "
            f"eaglenet store remove PATH --store {shell_quote(old)}"
        )


def swap_stores(new: str | Path, old: str | Path) -> None:
    """Exchange the folders of two stores.

    Atomic if the file system supports it, so that there is a store under both names at every
    moment. Running services use the new one from their next query on.
    """
    for store in (new, old):
        kind = kind_of(store)
        if "://" in str(store) or not kind.exists(str(store)):
            raise StoreError(f"{store} is not a store in a local folder and cannot be swapped")
    first, second = (expand_home(store).resolve() for store in (new, old))
    swap_folders(first, second)


COLUMNS = ("frames", "mask", "seconds")
"""Fields with a column of their own; all others are in ``extra``, one after the other."""
MAX_BANK_BYTES = 2**30


@dataclass(frozen=True)
class Upgrade:
    """Result of an upgrade.

    old_folder: folder of the old store; None if nothing had to be converted.
    incomplete_files: files of which the old store lacked clips; they must be indexed again.
    """

    clips: int
    old_folder: Path | None = None
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
    """Write the new store; return the files that lack clips, which are left out."""
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
        writer.commit(
            Changes(transcripts=[SourceLines(Source(**row), make_store_lines(own_lines))])
        )


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
    """Return checksums of clips as the old format computes them."""
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
    content = untrusted.read_bytes(path, MAX_BANK_BYTES)
    if path.name != f"bank-{hashlib.blake2b(content, digest_size=16).hexdigest()}.npz":
        raise ValueError(f"{path.name} is damaged")
    with np.load(io.BytesIO(content)) as parts:
        vectors, texts = parts["vectors"], parts["texts"].tobytes().decode()
    if vectors.dtype != np.float32 or vectors.shape[1:] != (dim,):
        raise ValueError(f"{path.name} is damaged")
    bank_texts = tuple(texts.split("\n")) if texts else ()
    return HubnessBank(values["source"], vectors, values["weight"], values["scale"], bank_texts)
