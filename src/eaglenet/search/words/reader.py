"""The words of a store as they are now, opened when they are first asked for."""

from __future__ import annotations

from collections.abc import Hashable

from eaglenet.errors import UnreachableError
from eaglenet.search.store.base import Store
from eaglenet.search.store.words import WordIndex


class Words:
    """Opened again when the store was written to. Importing LanceDB is left out where there are
    no words, for it takes seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._opened: tuple[Hashable, WordIndex | None] | None = None

    def now(self) -> WordIndex | None:
        """None where the store holds no words, and an error where nobody can tell."""
        opened = self._opened
        try:
            stamp = self.store.words_stamp()
        except OSError as error:
            if opened is None:
                raise UnreachableError(
                    f"the words of {self.store.location} cannot be read: {error}"
                ) from error
            return opened[1]  # The store went away; what is open can still be searched.
        if stamp is None:
            return None
        if opened is None or opened[0] != stamp:
            opened = self._opened = (stamp, self.store.words())
        return opened[1]
