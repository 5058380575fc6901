"""What makes a short command short: most of its time is Python's start and end, not its work."""

from __future__ import annotations

import gc
import logging
import os
import sys
import types
from importlib import import_module
from typing import ClassVar, NoReturn

UNUSED = "torch._meta_registrations"
"""Shapes of results without data, which only compiling and exporting ask for. Torch registers
thousands of them while it is imported, half a second of 1.7 on one core (`benchmarks/cold.py`)."""
GARBAGE = 1_000_000
"""New objects between two searches for garbage: importing makes 240,000, and all of them stay.
Each search takes 0.1 s."""


class ShortCommand:
    """Whether the command that runs is a short one: the process ends with it."""

    runs: ClassVar[bool] = False


def begin_short_command() -> None:
    """Import torch without what a search never calls; nothing is done once torch is there."""
    if "torch" in sys.modules:
        return
    gc.set_threshold(GARBAGE)
    sys.modules[UNUSED] = types.ModuleType(UNUSED)
    import torch

    try:
        torch.Generator()
    except RuntimeError:
        # Torch 2.13 makes generators usable in a module that only the part left out imports.
        import_module("torch._prims.rng_prims")
    ShortCommand.runs = True


def end_short_command(code: int) -> NoReturn:
    """End the process without taking torch apart first (a third of a second).

    A short command holds nothing open that has to be closed: what it wrote is written.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
