"""Housekeeping of a store: rebuilding what is derived, its approximate index and its recall."""

from __future__ import annotations

from pathlib import Path

from eaglenet.errors import StoreError
from eaglenet.search.approximate import EFFORT, Recall, measure_recall
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.publishing import missing_clips
from eaglenet.search.store.tables import ClipStore


def repair(location: str | Path) -> int:
    """Derive the snapshot again from the durable tables; returns the number of clips."""
    store = open_store(location)
    with store.hold():
        tables = store.tables()
        _require_whole(store, tables)
        tables.optimize()
        return store.publish(tables, anew=True)


def _require_whole(store: Store, tables: ClipStore) -> None:
    """Refuse to derive less from the tables than they should hold, or than is searched now."""
    missing = missing_clips(tables)
    if missing:
        raise StoreError(
            f"the tables of {store.location} lack {sum(missing.values())} clips of {len(missing)} "
            "files that were indexed; what can be searched now stays so. Encode them again with: "
            f"eaglenet index FOLDER --store {store.location}"
        )
    finished = {row.content for row in tables.files() if row.status == "done"}
    held = sum(content in finished for content, _ in set(tables.clip_keys()))
    searched = _searched_now(store)
    if held < searched:
        raise StoreError(
            f"the tables of {store.location} hold {held} clips, but {searched} can be searched, "
            "which stays so. Restore the folder, or bring it up to date with: "
            f"eaglenet index FOLDER --store {store.location}"
        )


def _searched_now(store: Store) -> int:
    try:
        return len(store.snapshot())
    except StoreError:
        return 0  # Damaged, which is what repairing is for.


def build_index(location: str | Path) -> str:
    """Build the approximate index whatever the size; it is used where a scan would be slow."""
    store = open_store(location)
    with store.hold():
        tables = store.tables()
        kind = tables.build_index()
        store.publish(tables)
        return kind


def recall(
    location: str | Path, *, k: int = 100, num_queries: int = 100, effort: int = EFFORT
) -> Recall:
    """Recall of the store's index against the exact scan."""
    return measure_recall(open_store(location), k=k, num_queries=num_queries, effort=effort)
