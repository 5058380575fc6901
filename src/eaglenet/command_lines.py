"""Commands that messages tell a user to run: a shell takes every value in them as it was given."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from eaglenet.user_folders import default_store

PROGRAM = "eaglenet"


def quoted(value: object) -> str:
    """A path, a name or a sentence as one word of a shell; plain ones stay as they are.

    >>> quoted("/films/store"), quoted("/My Videos/store")
    ('/films/store', "'/My Videos/store'")
    """
    return shlex.quote(str(value))


def this_program() -> str:
    """How a shell starts the command that runs: its file where the shell would not find it.

    After `make demo` that is `.venv/bin/eaglenet`, until the environment is activated.
    """
    file = Path(sys.argv[0])
    if file.name != PROGRAM or not file.is_file() or shutil.which(PROGRAM):
        return PROGRAM
    return quoted(os.path.relpath(file))


def store_argument(location: object) -> str:
    """What to add to a command so that it works on this store; nothing where it would anyhow.

    >>> store_argument("holidays")
    ' --store holidays'
    """
    return "" if str(location) == default_store() else f" --store {quoted(location)}"
