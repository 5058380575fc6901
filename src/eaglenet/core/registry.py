"""Tables of named entries, and the plug-ins that add to them.

A package declares a module under the entry point group ``eaglenet.plugins``::

    [project.entry-points."eaglenet.plugins"]
    anything = "my_package.my_module"

The module is imported when a command starts, and in Python when a name is unknown. It registers
methods, datasets, encoders and stores. ``eaglenet --import MODULE ...`` imports other modules. See
docs/how-to/extending.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Generic, TypeVar

from eaglenet.core.errors import UnknownNameError, UsageError
from eaglenet.core.text import did_you_mean

Entry = TypeVar("Entry")

MAX_LISTED = 20
"""Names listed in an error message."""


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
        list_command: str = "",
    ) -> None:
        """
        is_open: plug-ins may add entries; they are imported when a name is unknown or all names
            are listed.
        modules: module that adds each name, imported when the name is looked up, so that a search
            does not import thirty methods. Iterating imports all of them.
        list_command: command that lists the names, mentioned when there are too many for a message.
        """
        self.kind = kind
        self.is_open = is_open
        self.modules = dict(modules or {})
        self.list_command = list_command
        self._entries: dict[str, Entry] = {}

    def __repr__(self) -> str:
        names = dict.fromkeys(
            [*self.modules, *self._entries]
        )  # Iterating over self imports modules.
        return f"<Registry {self.kind!r}: {', '.join(names)}>"

    def add(self, name: str, entry: Entry) -> Entry:
        if self._has(name):
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            raise unknown_name(
                self.kind, name, list(self), is_open=self.is_open, list_command=self.list_command
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if self._has(name):
            return True
        if not self.is_open:
            return False
        load_installed()
        return self._has(name)

    def _has(self, name: object) -> bool:
        """Return whether a name is known without importing the plug-ins of installed packages."""
        if isinstance(name, str) and name not in self._entries and name in self.modules:
            self._import(name)
        return name in self._entries

    def _import(self, name: str) -> None:
        """Import the module that adds a name; no effect while that import is running.

        Needs no lock, since Python's import system has one.
        """
        try:
            import_module(self.modules[name])
        except BaseException:
            self._entries.pop(name, None)  # The module failed after adding it.
            raise

    def __iter__(self) -> Iterator[str]:
        """Yield the names with modules in their order, then the others as they were added.

        Earlier lookups do not change the order.
        """
        if self.is_open:
            load_installed()
        own = [name for name in self.modules if self._has(name)]
        return iter(own + [name for name in self._entries if name not in self.modules])

    def __len__(self) -> int:
        return sum(1 for _ in self)  # list() would call this method first.


def unknown_name(
    kind: str, name: str, names: Sequence[str], *, is_open: bool = False, list_command: str = ""
) -> UnknownNameError:
    """Return the error about a name that is not among ``names``; see :class:`Registry`."""
    more = len(names) - MAX_LISTED
    if more > 0 and list_command:
        listing = f"`{list_command}` lists all {len(names)}"
    else:
        first_names = ", ".join(names[:MAX_LISTED]) or "none"
        listing = f"known: {first_names}" + (f" and {more} more" if more > 0 else "")
    hint = did_you_mean(name, names)
    plugin_hint = "; a plug-in may provide it: install it, or pass --import MODULE"
    return UnknownNameError(
        f"unknown {kind} {name!r}{hint} ({listing})" + (plugin_hint if is_open and not hint else "")
    )


def has_plugins() -> bool:
    """Return whether plug-ins may have added names; imports none of them."""
    from importlib.metadata import entry_points

    return bool(_imported_modules) or bool(entry_points(group=GROUP))


logger = logging.getLogger(__name__)
GROUP = "eaglenet.plugins"
_loaded_groups: set[str] = set()
_loading = threading.RLock()
_imported_modules: list[str] = []


def load_installed() -> None:
    """Import the plug-ins of installed packages, once; skip those that fail, with a warning.

    Other threads wait until all are imported; a plug-in that looks up a name meanwhile does not.
    """
    with _loading:
        if GROUP in _loaded_groups:
            return
        _loaded_groups.add(GROUP)
        from importlib.metadata import entry_points  # Takes 15 ms, and a search needs no plug-in.

        for entry in entry_points(group=GROUP):
            try:
                entry.load()
            except Exception as error:  # Third-party code may fail in any way.
                logger.warning(
                    "skipped plug-in %s (%s): %s: %s",
                    entry.name,
                    entry.value,
                    type(error).__name__,
                    error,
                )


def imported_modules() -> tuple[str, ...]:
    """Return the modules imported by :func:`import_plugin`; child processes need them, too."""
    return tuple(_imported_modules)


def import_plugin(module: str) -> None:
    """Import a plug-in module that is installed, on ``PYTHONPATH`` or in the current folder.

    The current folder may hold untrusted videos. It is on the module path only during the import,
    and only if the module is nowhere else.
    """
    here = os.getcwd()
    is_added = False
    try:
        if here not in sys.path and importlib.util.find_spec(module.partition(".")[0]) is None:
            sys.path.append(here)
            is_added = True
        importlib.import_module(module)
        _imported_modules.append(module)
    except Exception as error:
        raise UsageError(
            f"--import {module}: {type(error).__name__}: {error}; use the name of a module "
            "(package.module) that is installed, in the current folder or on PYTHONPATH"
        ) from error
    finally:
        if is_added:
            sys.path.remove(here)
