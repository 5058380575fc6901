"""Name -> entry tables with an error that helps when a name is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

from eaglenet.core import plugins
from eaglenet.core.errors import UnknownNameError

Entry = TypeVar("Entry")

MOST_LISTED = 20
"""Names an error lists; an error has to fit on a few lines."""


class Registry(Generic[Entry]):
    """An ordered table of named entries of one kind.

    >>> shapes: Registry[int] = Registry("shape")
    >>> shapes.add("square", 4)
    4
    >>> shapes["square"]
    4
    """

    def __init__(
        self,
        kind: str,
        *,
        is_open: bool = False,
        modules: Mapping[str, str] | None = None,
        listed_by: str = "",
    ) -> None:
        """
        is_open: other packages add entries; they are imported when a name is not known.
        listed_by: the command that lists the names, told where there are very many.
        modules: the module that adds a name, imported when that name is asked for, since a search
            should not wait for thirty methods; all of them where the names are listed.
        """
        self.kind = kind
        self.is_open = is_open
        self.modules = dict(modules or {})
        self.listed_by = listed_by
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, entry: Entry) -> Entry:
        if name in self:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self and self.is_open:
            plugins.load_installed()
        if name not in self:
            close = difflib.get_close_matches(name, list(self), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            others = "; a package may bring it: install it, or give --import MODULE"
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}{hint} ({self._listed()})"
                + (others if self.is_open and not close else "")
            )
        return self._entries[name]

    def _listed(self) -> str:
        """The names, or of very many the command that lists them, or the first."""
        names = list(self)
        more = len(names) - MOST_LISTED
        if more > 0 and self.listed_by:
            return f"`{self.listed_by}` lists all {len(names)}"
        shown = ", ".join(names[:MOST_LISTED]) or "none"
        return f"known: {shown} and {more} more" if more > 0 else f"known: {shown}"

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and name not in self._entries and name in self.modules:
            self._import(name)
        return name in self._entries

    def _import(self, name: str) -> None:
        """Import the module that adds a name; nothing happens while that module does so.

        No lock is held meanwhile: a module that someone imports by itself holds its own.
        """
        try:
            import_module(self.modules[name])
        except BaseException:
            self._entries.pop(name, None)  # of a module that failed after adding it
            raise

    def __iter__(self) -> Iterator[str]:
        """The names with modules in their order, then the others as they were added.

        Who asked for what before has no say in it.
        """
        ours = [name for name in self.modules if name in self]
        return iter(ours + [name for name in self._entries if name not in self.modules])

    def __len__(self) -> int:
        return sum(1 for _ in self)  # list() would ask for the length first
