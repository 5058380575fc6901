"""Doors for other packages: they register methods, datasets, towers and stores when imported.

A package announces a module under the entry point ``eaglenet.core.plugins``::

    [project.entry-points."eaglenet.core.plugins"]
    anything = "my_package.my_module"

It is imported when a command starts, and from Python when a name is not known. A module that is not
installed is imported with ``eaglenet --import MODULE ...``. See docs/extending.md.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from importlib.metadata import entry_points

from eaglenet.core.errors import UsageError

logger = logging.getLogger(__name__)
GROUP = "eaglenet.core.plugins"
_done: set[str] = set()
_named: list[str] = []


def load_installed() -> None:
    """Import what installed packages announce, once. One that fails is warned of and left out."""
    if GROUP in _done:
        return
    _done.add(GROUP)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # the package of others may fail in any way
            logger.warning(
                "plug-in %s (%s) was left out: %s: %s",
                entry.name,
                entry.value,
                type(error).__name__,
                error,
            )


def named() -> tuple[str, ...]:
    """Modules that were imported by their names: processes that are started need them too."""
    return tuple(_named)


def import_named(module: str) -> None:
    """Import a module that registers something: installed, or in the current folder.

    The current folder is on the module path only meanwhile: it may be a folder of videos.
    """
    here = os.getcwd()
    is_added = here not in sys.path
    if is_added:
        sys.path.append(here)
    try:
        importlib.import_module(module)
        _named.append(module)
    except Exception as error:
        raise UsageError(
            f"--import {module}: {type(error).__name__}: {error}; give a module as Python names it "
            "(package.module), installed, in the working folder or on PYTHONPATH"
        ) from error
    finally:
        if is_added:
            sys.path.remove(here)
