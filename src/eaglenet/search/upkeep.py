"""Housekeeping of a store: its state, rebuilding what is derived, and its approximate index."""

from __future__ import annotations

from pathlib import Path

from eaglenet.errors import StoreError
from eaglenet.search.approximate import EFFORT, Recall, measure_recall
from eaglenet.search.store.lance import LanceStore
from eaglenet.search.store.locking import writer_lock
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.publishing import missing_clips, publish
from eaglenet.search.store.snapshot import FOLDER, Snapshot
from eaglenet.search.store.tables import ClipStore, disk_errors


def repair(folder: Path) -> int:
    """Derive the snapshot again from the durable table; returns the number of clips."""
    manifest = Manifest.read(folder)
    with writer_lock(folder):
        store = LanceStore(folder, manifest.layout, manifest.dim)
        _require_whole(folder, manifest, store)
        store.optimize()
        # The old one goes after the new one is there: the tables may be what is damaged.
        clips = publish(folder, store, manifest.layout, manifest.dim, anew=True)
        new = Snapshot(folder, manifest.layout, manifest.dim)
        kept = [(new.version, "npz"), (new.version, "json")]
        kept += [(new.generation, "f32"), (new.generation, "bin")]
        ends = tuple(f"-{number}.{suffix}" for number, suffix in kept)
        with disk_errors(folder):
            for path in (folder / FOLDER).glob("*-*"):
                if not path.name.endswith(ends):
                    path.unlink(missing_ok=True)
        return clips


def _require_whole(folder: Path, manifest: Manifest, store: ClipStore) -> None:
    """Refuse to derive less from the tables than they should hold, or than is searched now."""
    missing = missing_clips(store)
    if missing:
        raise StoreError(
            f"the tables of {folder} lack {sum(missing.values())} clips of {len(missing)} files "
            "that were indexed; what can be searched now stays so. Encode them again with: "
            f"eaglenet index FOLDER --store {folder}"
        )
    finished = {row.content for row in store.files() if row.status == "done"}
    held = sum(content in finished for content, _ in set(store.clip_keys()))
    searched = _searched_now(folder, manifest)
    if held < searched:
        raise StoreError(
            f"the tables of {folder} hold {held} clips, but {searched} can be searched, which "
            "stays so. Restore the folder, or bring it up to date with: "
            f"eaglenet index FOLDER --store {folder}"
        )


def _searched_now(folder: Path, manifest: Manifest) -> int:
    try:
        return len(Snapshot(folder, manifest.layout, manifest.dim))
    except StoreError:
        return 0  # Damaged, which is what repairing is for.


def build_index(folder: Path) -> str:
    """Build the approximate index whatever the size; it is used where a scan would be slow."""
    manifest = Manifest.read(folder)
    with writer_lock(folder):
        store = LanceStore(folder, manifest.layout, manifest.dim)
        kind = store.build_index()
        publish(folder, store, manifest.layout, manifest.dim)
        return kind


def recall(folder: Path, *, k: int = 100, num_queries: int = 100, effort: int = EFFORT) -> Recall:
    """Recall of the store's index against the exact scan."""
    manifest = Manifest.read(folder)
    snapshot = Snapshot(folder, manifest.layout, manifest.dim)
    return measure_recall(folder, manifest, snapshot, k=k, num_queries=num_queries, effort=effort)
