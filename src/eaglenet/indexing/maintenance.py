"""Upkeep of a store: remove files, measure recall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.core.errors import UsageError, store_option
from eaglenet.core.object_storage import absolute_location, is_inside
from eaglenet.store.kinds import kind_of, open_store
from eaglenet.store.records import Changes

if TYPE_CHECKING:
    from eaglenet.search.shortlist import Recall


def remove(location: str | Path, paths: Sequence[str | Path]) -> list[str]:
    """Remove files, or all files in folders, from a store; returns the removed paths.

    The files themselves stay. Clips stay if another path has the same content.
    """
    locations = [absolute_location(path) for path in paths]
    with kind_of(location).write(str(location)) as writer:
        removed = [
            file.path
            for file in writer.files()
            if any(is_inside(file.path, location) for location in locations)
        ]
        if not removed:
            raise UsageError(
                f"{location} has no file {' or '.join(map(str, paths))}; list its files with: "
                f"eaglenet store files{store_option(location)}"
            )
        writer.commit(Changes(removed_files=removed))
        writer.finish()
    return removed


def recall(location: str | Path, *, k: int = 100, num_queries: int = 100) -> Recall:
    """Fraction of the exact shortlist that the store's codes find."""
    from eaglenet.search.shortlist import measure_recall

    return measure_recall(open_store(location), k=k, num_queries=num_queries)
