"""Commands that messages tell a user to run: a shell takes every value in them as it was given."""

from __future__ import annotations

import shlex

from eaglenet.user_folders import default_store


def quoted(value: object) -> str:
    """A path, a name or a sentence as one word of a shell; plain ones stay as they are.

    >>> quoted("/films/store"), quoted("/My Videos/store")
    ('/films/store', "'/My Videos/store'")
    """
    return shlex.quote(str(value))


def store_argument(location: object) -> str:
    """What to add to a command so that it works on this store; nothing where it would anyhow.

    >>> store_argument("holidays")
    ' --store holidays'
    """
    return "" if str(location) == default_store() else f" --store {quoted(location)}"
