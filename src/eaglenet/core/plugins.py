"""Plug-ins: packages that register methods, datasets, encoders and stores when imported.

A package declares a module under the entry point group ``eaglenet.plugins``::

    [project.entry-points."eaglenet.plugins"]
    anything = "my_package.my_module"

The module is imported when a command starts, and in Python when a name is unknown. Other modules
are imported with ``eaglenet --import MODULE ...``. See docs/how-to/extending.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from importlib.metadata import entry_points

from eaglenet.core.errors import UsageError

logger = logging.getLogger(__name__)
GROUP = "eaglenet.plugins"
_loaded_groups: set[str] = set()
_imported_modules: list[str] = []


def load_installed() -> None:
    """Import the plug-ins of installed packages, once. A failing one is skipped with a warning."""
    if GROUP in _loaded_groups:
        return
    _loaded_groups.add(GROUP)
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # third-party code may fail in any way
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

    The current folder, which may hold untrusted videos, is on the module path only meanwhile, and
    only for a module that is nowhere else.
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
            f"--import {module}: {type(error).__name__}: {error}; give the name of a module "
            "(package.module) that is installed, in the current folder or on PYTHONPATH"
        ) from error
    finally:
        if is_added:
            sys.path.remove(here)
