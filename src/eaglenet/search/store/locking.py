"""One writer a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from eaglenet.errors import StoreError
from eaglenet.locking import LockHeldError, hold_lock
from eaglenet.search.store.tables import disk_errors

NAME = "writer.lock"


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the store for writing, or say who does."""
    with ExitStack() as held:
        try:
            with disk_errors(folder):
                held.enter_context(hold_lock(folder / NAME))
        except LockHeldError as holder:
            raise StoreError(
                f"{folder} is being written to by {holder}; wait for it to finish. "
                "Searching works meanwhile"
            ) from None
        yield
