"""Store maintenance: repair, verify, remove files, measure recall."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eaglenet.core.errors import StoreError, UsageError, shell_quote, store_option
from eaglenet.core.object_storage import absolute_location, is_inside
from eaglenet.indexing.commit import Commit
from eaglenet.search.shortlist import Recall, measure_recall
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.checks import checks_of
from eaglenet.search.store.hub_bank import same_levels
from eaglenet.search.store.publishing import CHUNK, missing_clips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipStore

logger = logging.getLogger(__name__)


def repair(location: str | Path) -> int:
    """Rebuild the snapshot from the durable tables; returns the number of clips.

    Damaged transcripts are removed; the next index run reads them again.
    """
    store = open_store(location)
    with store.hold():
        if not _are_transcripts_intact(store):
            logger.warning(
                "the transcripts of %s are damaged; read them again with: eaglenet index FOLDER",
                location,
            )
            store.forget_words()
        tables = store.tables()
        _require_complete(store, tables)
        tables.optimize()
        return store.publish(tables, anew=True)


def _are_transcripts_intact(store: Store) -> bool:
    tables = store.tables()
    try:
        transcripts = store.words()
        if transcripts is not None:
            transcripts.verify()
        tables.words().sources()
    except StoreError:
        return False
    return True


def _require_complete(store: Store, tables: ClipStore) -> None:
    """Raise an error if the tables hold fewer clips than they should, or than the snapshot."""
    missing = missing_clips(tables)
    if missing:
        raise StoreError(
            f"the tables of {store.location} lack {sum(missing.values())} clips of {len(missing)} "
            "indexed files; they can still be searched. Encode them again with: "
            f"eaglenet index FOLDER --store {shell_quote(store.location)}"
        )
    finished = {row.content for row in tables.files() if row.status == "done"}
    num_stored = sum(content in finished for content, _ in set(tables.clip_keys()))
    num_searchable = _num_searchable(store)
    if num_stored < num_searchable:
        raise StoreError(
            f"the tables of {store.location} hold {num_stored} clips, but {num_searchable} can be "
            "searched. Restore the folder from a backup, or bring it up to date with: "
            f"eaglenet index FOLDER --store {shell_quote(store.location)}"
        )


def _num_searchable(store: Store) -> int:
    try:
        return len(store.snapshot())
    except StoreError:
        return 0  # Damaged, which the repair fixes.


def remove(location: str | Path, paths: Sequence[str | Path]) -> list[str]:
    """Remove files, or all files in folders, from a store; returns the removed paths.

    The files themselves stay. Clips stay if another path has the same content.
    """
    store = open_store(location)
    locations = [absolute_location(path) for path in paths]
    with store.hold():
        tables = store.tables()
        rows = tables.files()
        removed = [
            row.path for row in rows if any(is_inside(row.path, location) for location in locations)
        ]
        if not removed:
            raise UsageError(
                f"{location} has no file {' or '.join(map(str, paths))}; list its files with: "
                f"eaglenet store files{store_option(location)}"
            )
        tables.remove_files(removed)
        remaining = [row for row in rows if row.path not in set(removed)]
        content_paths = {
            row.content: row.path for row in reversed(remaining) if row.status == "done"
        }
        contents = {row.content for row in rows if row.path in set(removed)}
        Commit(store, tables).clean_up(content_paths, contents)
    return removed


@dataclass(frozen=True)
class VerifyReport:
    """Counts of everything that was compared with its checksums."""

    clips: int
    files: int
    stored_clips: int
    """Clips in the tables, including those of unfinished files."""
    transcript_lines: int = 0


def verify(location: str | Path) -> VerifyReport:
    """Compare everything that is searched, and the tables behind it, with its checksums.

    Raises a :class:`StoreError` that names the damaged part and the command that repairs it.
    """
    store = open_store(location)
    command = f"eaglenet store repair --store {shell_quote(location)}"
    snapshot = store.snapshot()
    snapshot.check_vectors()
    snapshot.check_codes()
    _check_hubness(store, snapshot)
    for start in range(0, len(snapshot), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(snapshot)))
        snapshot.records(rows)
        for row in rows.tolist():
            snapshot.thumbnail(row)
    tables = store.tables()
    files, keys = tables.files(), sorted(set(tables.clip_keys()))
    for start in range(0, len(keys), CHUNK):
        chunk = keys[start : start + CHUNK]
        checks = checks_of(np.ascontiguousarray(tables.read_clips(chunk).coarse, np.float32))
        for key, check in zip(chunk, checks.tolist(), strict=True):
            row_number = snapshot.row_of_key(key)
            if row_number is not None and check != snapshot.columns["vector_check"][row_number]:
                raise StoreError(
                    f"clips.lance and the snapshot of {location} differ in a clip of {key[0]}; "
                    f"rebuild the snapshot with: {command}"
                )
    missing = missing_clips(tables)
    if missing:
        raise StoreError(
            f"the tables of {location} lack {sum(missing.values())} clips that were indexed; "
            f"encode them again with: eaglenet index FOLDER --store {shell_quote(location)}"
        )
    done = [row for row in files if row.status == "done"]
    if {row.path for row in done} != {path for paths in snapshot.files.paths for path in paths}:
        raise StoreError(
            f"files.lance and the snapshot of {location} list different files; rebuild the "
            f"snapshot with: {command}"
        )
    transcripts = store.words()
    num_lines = transcripts.verify() if transcripts is not None else 0
    return VerifyReport(len(snapshot), len(done), len(keys), num_lines)


def _check_hubness(store: Store, snapshot: Snapshot) -> None:
    """Raise an error unless the hubness offsets come from the store's hubness bank."""
    bank = store.bank()
    command = f"eaglenet store repair --store {shell_quote(store.location)}"
    if (None if bank is None else bank.note.file) != snapshot.bank:
        raise StoreError(
            f"the hubness offsets in {store.location} come from {snapshot.bank or 'no bank'}, not "
            f"from the hubness bank of its manifest; rebuild the snapshot with: {command}"
        )
    if bank is None or snapshot.levels is None:
        return
    for start in range(0, len(snapshot), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(snapshot)))
        expected = bank.levels(snapshot.vectors_of(rows).numpy())
        if not same_levels(snapshot.levels[rows], expected):
            raise StoreError(
                f"the hubness offsets in {store.location} do not match its hubness bank; rebuild "
                f"the snapshot with: {command}"
            )


def recall(location: str | Path, *, k: int = 100, num_queries: int = 100) -> Recall:
    """Fraction of the exact shortlist that the store's codes find."""
    return measure_recall(open_store(location), k=k, num_queries=num_queries)
