"""Output to a terminal: escaped text and JSON; start and end of short commands.

File names, transcripts and metadata are untrusted. They may contain characters that move the
cursor, change colours or reverse the order of text, so all output is escaped here.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import sys
import traceback
import types
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from eaglenet.core.text import escape_line, escape_lines

UNUSED_MODULE = "torch._meta_registrations"
"""Part of torch that only compiling and exporting need. Importing it takes 0.5 of 1.7 s on one core
(`benchmarks/cold.py`)."""
GARBAGE_THRESHOLD = 1_000_000
"""New objects between garbage collections. Importing creates 240,000 permanent objects, and each
collection takes 0.1 s."""


def print_line(text: str, *, is_error: bool = False) -> None:
    """Print one escaped line to standard output, or to standard error."""
    print(escape_line(text), file=sys.stderr if is_error else sys.stdout, flush=True)


def open_standard_streams() -> None:
    """Open closed standard streams on the null device; escape what the encoding lacks.

    With a closed stream (``2>&-``), Python would print errors to standard output, and the next
    file that is opened would receive what libraries print.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # Gets the lowest free number, which is that of the closed stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: Any) -> None:
    """Print JSON, with ``\\uXXXX`` for what the output's encoding lacks.

    In a terminal, characters that are not printable are written so too.
    """
    text = json.dumps(value, ensure_ascii=False)
    if sys.stdout.isatty():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # Such as the name of a file that is not UTF-8.
        text = json.dumps(value)
    print(text)


def print_record(record: Any, as_json: bool, *lines: str) -> None:
    """Print ``record`` as JSON, or ``lines`` as text."""
    if as_json:
        print_json(record)
    else:
        for line in lines:
            print_line(line)


class SafeFormatter(logging.Formatter):
    """Formatter that escapes log lines, and names our own modules only if ``verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__("%(name)s: %(message)s")
        self.verbose = verbose

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        is_ours = record.name.partition(".")[0] == "eaglenet"
        if is_ours and not self.verbose:
            return escape_lines(f"{record.levelname.lower()}: {record.message}")
        return escape_lines(super().formatMessage(record))


class ShortCommand:
    """Process-wide flag: a short command is running, and the process ends with it."""

    is_running: ClassVar[bool] = False


def begin_short_command() -> None:
    """Skip work that only long commands need; do nothing if torch is already imported."""
    if "torch" not in sys.modules:
        gc.set_threshold(GARBAGE_THRESHOLD)
        ShortCommand.is_running = True


def import_torch() -> None:
    """Import torch for a short command, without :data:`UNUSED_MODULE`."""
    if "torch" in sys.modules or not ShortCommand.is_running:
        return
    sys.modules[UNUSED_MODULE] = types.ModuleType(UNUSED_MODULE)
    import torch

    try:
        torch.Generator()
    except RuntimeError:
        # Torch 2.13 registers generators in a module that only the omitted part imports.
        import_module("torch._prims.rng_prims")


def end_process(code: int, error: BaseException | None = None) -> NoReturn:
    """Exit without the teardown of torch, which takes 0.3 to 0.7 s; flushes output and logs.

    ``error`` ended the command: generators that it left unfinished are closed, which ends what they
    started.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    logging.shutdown()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # The reader (tee, head) may have ended at the same Ctrl-C.
    except OSError as fault:
        print_line(f"error: standard output: {fault.strerror}", is_error=True)
        code = code or 1
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)
