"""Bytes per clip of a store of Lance tables and of the same clips in the current format.

    python benchmarks/disk.py OLD [--save]

OLD is a local store made by the last version with Lance tables (commit 010d2d5). A copy is
converted with `eaglenet store upgrade`, which compares every clip with its checksum, so that both
contain the same features, thumbnails, files and transcript lines. `ratio` compares with compacted
tables without earlier versions, `ratio_as_indexed` with the tables as the index run left them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.indexing.maintenance import upgrade_store
from eaglenet.store.store import LocalStore, is_old_format

MAX_RATIO = 0.55


def old_parts(folder: Path) -> dict[str, int]:
    """Return the bytes of each table, of each kind of file of the snapshot, and of the rest."""
    parts: dict[str, int] = defaultdict(int)
    for path in folder.rglob("*"):
        if path.is_file():
            top, *rest = path.relative_to(folder).parts
            name = top if rest else "other"
            parts[f"snapshot {rest[-1].split('-')[0]}" if top == "snapshot" else name] += (
                path.stat().st_size
            )
    return dict(parts)


def compacted_parts(folder: Path, temporary: Path) -> dict[str, int]:
    """Return the same for a compacted copy without earlier versions of tables."""
    import lancedb

    copy = temporary / "compacted"
    shutil.copytree(folder, copy)
    database = lancedb.connect(copy)
    for path in copy.glob("*.lance"):
        table = database.open_table(path.stem)
        table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    return old_parts(copy)


def per_clip(parts: dict[str, int], clips: int) -> dict[str, float]:
    order = sorted(parts.items(), key=lambda part: -part[1])
    return {name: round(size / clips, 1) for name, size in order}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="store of Lance tables")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    if not is_old_format(options.old):
        parser.error(f"{options.old} is not a store of Lance tables")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "store")
        shutil.copytree(options.old, folder)
        upgrade = upgrade_store(folder)
        store = LocalStore.open(folder)
        as_indexed, after = old_parts(options.old), store.usage()
        before = compacted_parts(options.old, Path(temporary))
        files = len(store.files())
    clips = upgrade.clips
    result: dict[str, Any] = {
        "clips": clips,
        "files": files,
        "bytes_per_clip": {
            "lance_tables_and_snapshot_as_indexed": round(sum(as_indexed.values()) / clips, 1),
            "lance_tables_and_snapshot": round(sum(before.values()) / clips, 1),
            "sqlite_and_segments": round(sum(after.values()) / clips, 1),
        },
        "ratio": round(sum(after.values()) / sum(before.values()), 4),
        "ratio_as_indexed": round(sum(after.values()) / sum(as_indexed.values()), 4),
        "goal": MAX_RATIO,
        "parts_of_lance_tables_and_snapshot": per_clip(before, clips),
        "parts_of_sqlite_and_segments": per_clip(after, clips),
    }
    for name, value in result.items():
        print(name, value)
    if options.save:
        print(save_result("disk", result))


if __name__ == "__main__":
    main()
