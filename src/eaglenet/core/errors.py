"""Errors a user may meet. Each message says what was given, what was expected and what to do."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from eaglenet.core.platform import default_store

LONGEST = 2000
"""Characters of a message."""


class EagleNetError(Exception):
    """Base of every error that is the input's fault. The command line prints it on one line.

    ``exit_code`` is what the command line exits with: 1 failed, 2 wrong usage, 3 finished but some
    files were left out, 4 a model could not be loaded, 5 a store cannot be used as asked.
    """

    exit_code: int = 1

    def __str__(self) -> str:
        """What foreign files put into a message may be of any length; both ends tell enough."""
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-200:]}"


class UsageError(EagleNetError):
    """An argument or option makes no sense as given."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name is not in a registry; the message lists the known ones."""


class ConfigError(UsageError):
    """A configuration value is impossible or does not fit another."""


class VideoDecodeError(EagleNetError):
    """A file gave no frames. Names the file and the cause; never replaced by black frames."""

    exit_code = 3

    def __init__(self, path: str | Path, cause: str) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = Path(path)
        self.cause = cause

    def __reduce__(self) -> tuple[type[VideoDecodeError], tuple[str, str]]:
        return type(self), (str(self.path), self.cause)


class DatasetError(EagleNetError):
    """Annotations are missing, broken or contradict each other."""


class ModelNotFoundError(EagleNetError):
    """Weights are not where they were looked for; lists the places and the ways out.

    ``fact`` is what is missing without ``advice``, which is another for searching and for training.
    """

    exit_code = 4

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}; {advice}" if advice else fact)
        self.fact = fact
        self.has_advice = bool(advice)


class CheckpointError(EagleNetError):
    """A checkpoint is not of a form that is understood; names what was not."""


class StoreError(EagleNetError):
    """A search store cannot be used as asked."""

    exit_code = 5


class UnreachableError(StoreError):
    """Storage or another machine does not answer; what is stored is as it was."""


class NonFiniteError(EagleNetError):
    """A loss, score or feature is NaN or infinite; names which."""


class DistributedError(EagleNetError):
    """Processes of one run could not meet or lost each other; says which rank waited for what."""


class StoppedError(EagleNetError):
    """A signal asked for an end; what was done is kept. Exits as a shell counts: 128 + signal."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def cause_of(error: Exception) -> str:
    """Why a file could not be read, without its number and the name that the message has already.

    >>> cause_of(FileNotFoundError(2, "No such file or directory", "a.csv"))
    'no such file'
    """
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def too_many_frames(given: int, most: int, setting: str = "num_frames") -> ConfigError:
    """Videos longer than a model with a place for each frame; ``setting`` makes more places."""
    return ConfigError(
        f"videos of {given} frames, the model was built for {most}; sample fewer frames or build "
        f"it with a larger {setting}"
    )


# Commands that messages tell a user to run: a shell takes every value in them as it was given.

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
