"""Running many damaged inputs through one reader: an error in one line, in time, in bounds."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eaglenet.errors import EagleNetError

CORPUS = Path(__file__).parent / "corpus"
"""``<reader>/<name>``: inputs that once went wrong. A new finding is added here."""
SECONDS = 5.0
"""For one input, on a busy machine."""
MEMORY = 2 * 2**30
"""Bytes of address space that one reader may take on top of what the process has."""

Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A file of a sound input, how to damage it, and what reads it.

    ``read`` may raise an ``EagleNetError``, and nothing else.
    """

    name: str
    file: Path
    mutate: Mutate
    read: Callable[[], Any]


class TooSlowError(BaseException):
    """Not an ``Exception``: a reader that catches all of them does not hide it."""


@contextmanager
def limits(seconds: float = SECONDS) -> Iterator[None]:
    """Time and address space for what is inside."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    old = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _too_slow(number: int, frame: Any) -> None:
    raise TooSlowError


def run(reader: Reader, cases: int, seed: int = 0) -> int:
    """The corpus of the reader and ``cases`` new inputs; returns how many were refused.

    ``EAGLENET_HOSTILE_SECONDS`` in the environment runs new ones for that long instead.
    """
    sound = reader.file.read_bytes()
    refused = 0
    try:
        reader.read()
        for path in sorted((CORPUS / reader.name).glob("*")):
            refused += _try(reader, path.read_bytes(), path.name)
        for number in _numbers(cases, seed):
            content = reader.mutate(sound, random.Random(f"{reader.name} {number}"))
            refused += _try(reader, content, str(number))
    finally:
        reader.file.write_bytes(sound)
    return refused


def _numbers(cases: int, seed: int) -> Iterator[int]:
    seconds = float(os.environ.get("EAGLENET_HOSTILE_SECONDS", "0"))
    if not seconds:
        yield from range(seed, seed + cases)
        return
    number, until = random.SystemRandom().randrange(2**40), time.monotonic() + seconds
    while time.monotonic() < until:
        yield number
        number += 1


def _try(reader: Reader, content: bytes, name: str) -> bool:
    reader.file.write_bytes(content)
    try:
        with limits():
            reader.read()
    except EagleNetError as error:
        text = str(error)
        assert text, "an error without words"
        assert len(text) < 3000, text[:300]
        assert "\n" not in text, text
        return True
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        place = Path(os.environ.get("EAGLENET_HOSTILE_FOUND", "out/hostile")) / reader.name
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        pytest.fail(
            f"{reader.name} {name}: {type(error).__name__}: {error}; mend it and keep "
            f"{place / name} in {CORPUS / reader.name}"
        )
    return False
