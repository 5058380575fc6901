"""Errors shown to users, the commands their messages recommend, and the extras they name.

Each message says what is wrong, with the value, and what to do about it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from eaglenet.core.platform import default_store

MAX_MESSAGE_LENGTH = 2000
PROGRAM = "eaglenet"


class EagleNetError(Exception):
    """Base class of errors caused by input. The command line prints them on one line.

    ``exit_code`` is the exit code of the command line: 1 failed, 2 wrong usage, 3 finished with
    some files left out, 4 a model could not be loaded, 5 a store cannot be used.
    """

    exit_code: int = 1

    def __str__(self) -> str:
        """Return the message, shortened in the middle: untrusted files may put any text in it."""
        text = super().__str__()
        if len(text) <= MAX_MESSAGE_LENGTH:
            return text
        return f"{text[: MAX_MESSAGE_LENGTH // 2]} ... {text[-200:]}"


class UsageError(EagleNetError):
    """An argument or option is invalid."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name is not in a registry; the message lists the names that are."""


class ConfigError(UsageError):
    """A configuration value is invalid or conflicts with another."""


class VideoDecodeError(EagleNetError):
    """No frame of a file could be decoded; the message names the file and the cause."""

    exit_code = 3

    def __init__(self, path: str | Path, cause: str) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = Path(path)
        self.cause = cause

    def __reduce__(self) -> tuple[type[VideoDecodeError], tuple[str, str]]:
        return type(self), (str(self.path), self.cause)


class UnknownClipError(UsageError):
    """No clip of the store, or more than one, has an id."""


class DatasetError(EagleNetError):
    """Annotations are missing, invalid or contradictory."""


class ModelNotFoundError(EagleNetError):
    """Weights were not found; the message lists the locations searched and what to do.

    ``fact`` says what is missing, without ``advice``, which differs between search and training.
    """

    exit_code = 4

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}; {advice}" if advice else fact)
        self.fact = fact
        self.has_advice = bool(advice)


class CheckpointError(EagleNetError):
    """A checkpoint has an unknown format; the message names the unexpected part."""


class StoreError(EagleNetError):
    """A search store cannot be used."""

    exit_code = 5


class StoreLockedError(StoreError):
    """Another process writes to the store."""


class UnreachableError(StoreError):
    """Storage or another machine does not answer. Stored data is unchanged."""


class NonFiniteError(EagleNetError):
    """A loss, score or feature is NaN or infinite; the message names it."""


class DistributedError(EagleNetError):
    """Processes of one run could not connect, or lost contact; the message names the rank."""


class StoppedError(EagleNetError):
    """A signal ended the command, which saved its finished work. Exit code: 128 + signal number."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def cause_of(error: Exception) -> str:
    """Return why a file could not be read, without error number and file name.

    >>> cause_of(FileNotFoundError(2, "No such file or directory", "a.csv"))
    'no such file'
    """
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def too_many_frames(num_frames: int, limit: int, setting: str = "num_frames") -> ConfigError:
    """Return the error for videos with more frames than a model has position embeddings."""
    return ConfigError(
        f"videos have {num_frames} frames, but the model was built for {limit}; sample fewer "
        f"frames or build it with a larger {setting}"
    )


def shell_quote(value: object, *, is_windows: bool = os.name == "nt") -> str:
    """Quote a value as one argument of a shell command, if it needs quotes.

    >>> shell_quote("/films/store"), shell_quote("/My Videos/store")
    ('/films/store', "'/My Videos/store'")
    """
    return subprocess.list2cmdline([str(value)]) if is_windows else shlex.quote(str(value))


def shell_join(values: Iterable[object]) -> str:
    """Quote values as the arguments of a shell command."""
    return " ".join(map(shell_quote, values))


def program_command() -> str:
    """Return the command that starts this program: its name, or its path if it is not on ``PATH``.

    After `make demo` it is `.venv/bin/eaglenet`, until the environment is activated.
    """
    file = Path(sys.argv[0])
    if file.name != PROGRAM or not file.is_file() or shutil.which(PROGRAM):
        return PROGRAM
    return shell_quote(os.path.relpath(file))


def store_option(location: object) -> str:
    """Return the `--store` option that selects a store; empty for the default store.

    >>> store_option("holidays")
    ' --store holidays'
    """
    return "" if str(location) == default_store() else f" --store {shell_quote(location)}"


EXTRAS = {
    "torch": "torch",
    "huggingface_hub": "torch",
    "tokenizers": "torch",
    "jaxtyping": "torch",
    "triton": "triton",
    "open_clip": "openclip",
    "sentence_transformers": "st",
    "torchvision": "st",
    "matplotlib": "train",
    "tensorboard": "train",
    "mteb": "mteb",
    "datasets": "mteb",
    "pyarrow": "parquet",
    "lancedb": "lance",
    "obstore": "s3",
    "ray": "ray",
    "rapidocr": "ocr",
    "faster_whisper": "speech",
    "watchfiles": "watch",
    "pillow_heif": "heic",
    "mcp": "mcp",
    "rawpy": "raw",
}
"""Extra that installs each module."""


def missing_extra(error: ModuleNotFoundError, what: str = "this") -> UsageError | None:
    """Return an error that names the extra of a missing module; None if no extra installs it."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return UsageError(
        f"{what} needs {module}, which is not installed: "
        f"pip install {shell_quote(f'eaglenet[{EXTRAS[module]}]')}"
    )


@contextmanager
def naming_extra(extra: str, what: str) -> Iterator[None]:
    """Replace an ``ImportError`` inside the block by an error that names the extra.

    ``what`` says what needs which package: ``"speech recognition needs faster-whisper"``.
    """
    try:
        yield
    except ImportError as error:
        command = f"pip install {shell_quote(f'eaglenet[{extra}]')}"
        raise UsageError(f"{what} ({error}); install it with: {command}") from error


def require_torch(what: str) -> None:
    """Raise an error that names the extra if torch is not installed; does not import it."""
    if find_spec("torch") is None:
        error = missing_extra(ModuleNotFoundError(name="torch"), what)
        assert error is not None
        raise error
