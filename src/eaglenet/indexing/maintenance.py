"""Housekeeping of a store: rebuilding and comparing what is derived, and its recall."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eaglenet.core.errors import StoreError, UsageError, shell_quote, store_option
from eaglenet.core.object_storage import absolute_location
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
    """Derive the snapshot again from the durable tables; returns the number of clips.

    Words that are damaged are removed: the next index run reads them again.
    """
    store = open_store(location)
    with store.hold():
        if not _are_words_whole(store):
            logger.warning("the words of %s are damaged: index its folders again", location)
            store.forget_words()
        tables = store.tables()
        _require_whole(store, tables)
        tables.optimize()
        return store.publish(tables, anew=True)


def _are_words_whole(store: Store) -> bool:
    tables = store.tables()
    try:
        words = store.words()
        if words is not None:
            words.verify()
        tables.words().sources()
    except StoreError:
        return False
    return True


def _require_whole(store: Store, tables: ClipStore) -> None:
    """Refuse to derive less from the tables than they should hold, or than is searched now."""
    missing = missing_clips(tables)
    if missing:
        raise StoreError(
            f"the tables of {store.location} lack {sum(missing.values())} clips of {len(missing)} "
            "files that were indexed; what can be searched now stays searchable. Encode them "
            f"again with: eaglenet index FOLDER --store {shell_quote(store.location)}"
        )
    finished = {row.content for row in tables.files() if row.status == "done"}
    held = sum(content in finished for content, _ in set(tables.clip_keys()))
    searched = _searched_now(store)
    if held < searched:
        raise StoreError(
            f"the tables of {store.location} hold {held} clips, but {searched} can be searched, "
            "which stays searchable. Restore the folder, or bring it up to date with: "
            f"eaglenet index FOLDER --store {shell_quote(store.location)}"
        )


def _searched_now(store: Store) -> int:
    try:
        return len(store.snapshot())
    except StoreError:
        return 0  # Damaged, which is what repairing is for.


def remove(location: str | Path, paths: Sequence[str | Path]) -> list[str]:
    """Forget files, or all files in folders; gives the paths that were forgotten.

    What lies on the disk is left alone. Clips stay where another path has the same content.
    """
    store = open_store(location)
    tops = [absolute_location(path) for path in paths]
    with store.hold():
        tables = store.tables()
        rows = tables.files()
        gone = [
            row.path
            for row in rows
            if any(row.path == top or row.path.startswith(top.rstrip("/") + "/") for top in tops)
        ]
        if not gone:
            raise UsageError(
                f"{location} has no file {' or '.join(map(str, paths))}; those it has are listed "
                f"with: eaglenet store files{store_option(location)}"
            )
        tables.remove_files(gone)
        left = [row for row in rows if row.path not in set(gone)]
        homes = {row.content: row.path for row in reversed(left) if row.status == "done"}
        contents = {row.content for row in rows if row.path in set(gone)}
        Commit(store, tables).clean_up(homes, contents)
    return gone


@dataclass(frozen=True)
class VerifyReport:
    """What was compared with its checksums and found whole."""

    clips: int
    files: int
    stored_clips: int
    """In the tables; those of unfinished files too."""
    lines: int = 0
    """Of words."""


def verify(location: str | Path) -> VerifyReport:
    """Compare every byte that searching trusts, and the tables it is derived from.

    Raises a :class:`StoreError` that names the damaged part and the command that mends it.
    """
    store = open_store(location)
    snapshot = store.snapshot()
    snapshot.check_vectors()
    snapshot.check_codes()
    _check_levels(store, snapshot)
    for start in range(0, len(snapshot), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(snapshot)))
        snapshot.records(rows)
        for row in rows.tolist():
            snapshot.thumbnail(row)
    tables = store.tables()
    files, keys = tables.files(), sorted(set(tables.clip_keys()))
    for start in range(0, len(keys), CHUNK):
        part = keys[start : start + CHUNK]
        checks = checks_of(np.ascontiguousarray(tables.read_clips(part).coarse, np.float32))
        for key, check in zip(part, checks.tolist(), strict=True):
            place = snapshot.row_of_key(key)
            if place is not None and check != snapshot.columns["vector_check"][place]:
                raise StoreError(
                    f"clips.lance and the snapshot of {location} differ in a clip of {key[0]}; "
                    f"rebuild the snapshot with: eaglenet store repair --store {shell_quote(location)}"
                )
    missing = missing_clips(tables)
    if missing:
        raise StoreError(
            f"the tables of {location} lack {sum(missing.values())} clips that were indexed; "
            f"encode them again with: eaglenet index FOLDER --store {shell_quote(location)}"
        )
    done = [row for row in files if row.status == "done"]
    shown = {path for paths in snapshot.files.paths for path in paths}
    if {row.path for row in done} != shown:
        raise StoreError(
            f"files.lance and the snapshot of {location} list other files; rebuild the snapshot "
            f"with: eaglenet store repair --store {shell_quote(location)}"
        )
    words = store.words()
    return VerifyReport(len(snapshot), len(done), len(keys), words.verify() if words is not None else 0)


def _check_levels(store: Store, snapshot: Snapshot) -> None:
    """Whether the clips are levelled by the bank of the store."""
    bank = store.bank()
    repair_it = f"eaglenet store repair --store {shell_quote(store.location)}"
    if (None if bank is None else bank.note.file) != snapshot.bank:
        raise StoreError(
            f"the clips of {store.location} are levelled with {snapshot.bank or 'no bank'}, not "
            f"with that of its manifest; rebuild the snapshot with: {repair_it}"
        )
    if bank is None or snapshot.levels is None:
        return
    for start in range(0, len(snapshot), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(snapshot)))
        expected = bank.levels(snapshot.vectors_of(rows).numpy())
        if not same_levels(snapshot.levels[rows], expected):
            raise StoreError(
                f"the levels in {store.location} are not those of its bank; rebuild the snapshot "
                f"with: {repair_it}"
            )


def recall(location: str | Path, *, k: int = 100, num_queries: int = 100) -> Recall:
    """How much of the exact shortlist the store's codes find."""
    return measure_recall(open_store(location), k=k, num_queries=num_queries)
