"""Every fuzz target with random damage to sound inputs; Atheris runs the same functions."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutations import mutate_bytes

FUZZ = Path(__file__).parents[2] / "fuzz"
CASES = int(os.environ.get("FUZZ_CASES", "40"))
MAX_SECONDS = 20.0
"""Seconds per input; a slow machine needs some for a video."""


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FUZZ / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


TARGETS: dict[str, Callable[[bytes], None]] = load("targets").TARGETS
sound_input: Callable[[str], bytes] = load("seeds").sound_input


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_read_or_refused(name: str) -> None:
    run, sound = TARGETS[name], sound_input(name)
    run(b"")
    run(sound)
    slow = name in ("video", "audio", "embedded_subtitles", "openai_weights")
    for number in range(CASES // 4 if slow else CASES):
        chance = random.Random(f"{name} {number}")
        content = mutate_bytes(sound, chance) if number % 5 else chance.randbytes(200)
        began = time.monotonic()
        try:
            run(content)
        except Exception as error:
            pytest.fail(f"{name} {number}: {error!r} from {content[:200]!r}")
        assert time.monotonic() - began < MAX_SECONDS


@pytest.mark.parametrize("size", [6**40, False], ids=["beyond 64 bits", "a truth value"])
def test_a_size_that_numpy_cannot_hold_beside_an_empty_one_is_refused(size: int) -> None:
    """Found by Atheris: no bytes are claimed, so that only the other size can tell."""
    header = str({"descr": "<f4", "fortran_order": False, "shape": (size, 4, 0)}).encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    TARGETS["array_file"](b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def test_every_target_can_be_built() -> None:
    """The script builds all targets by their names, and seeds only known ones."""
    script = (FUZZ / "build.sh").read_text()
    seeded = {line.split()[1] for line in script.splitlines() if line.startswith("seeds ")}
    assert seeded <= set(TARGETS)
    compile((FUZZ / "fuzz_target.py").read_text(), "fuzz_target.py", "exec")
