"""Where things of a user are kept unless they say where: the store, the history of questions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STORE_VARIABLE = "EAGLENET_STORE"
"""Names the store of every command that is not given one."""
CACHE_VARIABLE = "EAGLENET_CACHE"


def data_folder() -> Path:
    """The user's folder for data of this program, as each system has it; not made here."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        # The XDG rules: a path that is not absolute is to be ignored.
        given = Path(os.environ.get("XDG_DATA_HOME", ""))
        base = given if given.is_absolute() else Path.home() / ".local" / "share"
    return base / "eaglenet"


def cache_folder() -> Path:
    """Copies of what lies elsewhere; all of it may be removed at any time."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else data_folder() / "cache"


def default_store() -> str:
    """The store where none is named: that of ``EAGLENET_STORE``, or one in the data folder."""
    return os.environ.get(STORE_VARIABLE) or str(data_folder() / "store")
