"""Running many damaged inputs through one reader: an error in one line, in time, in bounds.

``EAGLENET_HOSTILE_SECONDS``: new inputs for so long, not a fixed number. Inputs whose answer is of
a new kind are then damaged further, and with ``EAGLENET_HOSTILE_KEEP`` the small ones of them are
kept in the corpus. ``EAGLENET_HOSTILE_COUNT``: a file to which every reader's cases are added.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import EagleNetError

CORPUS = Path(__file__).parent / "corpus"
"""``<reader>/<name>``: inputs that once went wrong, and one for each kind of answer."""
KEPT_BYTES = 2048
MOST_KEPT = 8
MOST_BASES = 64
SECONDS_EACH = float(os.environ.get("EAGLENET_HOSTILE_SECONDS", "0"))
SECONDS = 5.0
"""Of this process for one input."""
WALL_FACTOR = 20.0
"""Wall time per second of CPU time that an input may take: the machine may be busy."""
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
    address_space = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (address_space, before[1]))
    timers = {signal.ITIMER_PROF: seconds, signal.ITIMER_REAL: seconds * WALL_FACTOR}
    signals = (signal.SIGPROF, signal.SIGALRM)
    handlers = [signal.signal(number, _too_slow) for number in signals]
    for timer, limit in timers.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _too_slow(number: int, frame: Any) -> None:
    raise TooSlowError


def run(reader: Reader, cases: int, seed: int = 0) -> int:
    """The corpus of the reader and ``cases`` new inputs; returns how many were refused."""
    sound = reader.file.read_bytes()
    known = {path.name: path.read_bytes() for path in sorted((CORPUS / reader.name).glob("*"))}
    bases = [sound, *known.values()] if SECONDS_EACH else [sound]
    kinds, refused = set[str](), list[str]()
    tried = 0
    try:
        reader.read()
        for name, content in known.items():
            answer = _try(reader, content, name)
            kinds.add(kind_of(answer))
            refused += [answer] * bool(answer)
        for number in numbers(cases, seed):
            chance = random.Random(f"{reader.name} {number}")
            content = reader.mutate(chance.choice(bases), chance)
            answer = _try(reader, content, str(number))
            refused += [answer] * bool(answer)
            tried += 1
            if SECONDS_EACH and kind_of(answer) not in kinds and len(bases) < MOST_BASES:
                kinds.add(kind_of(answer))
                bases.append(content)
                keep(reader.name, content)
    finally:
        reader.file.write_bytes(sound)
        count(reader.name, tried + len(known))
    return len(refused)


def numbers(cases: int, seed: int = 0) -> Iterator[int]:
    """Of the inputs to make: ``cases`` that are always the same, or new ones for some time."""
    if not SECONDS_EACH:
        yield from range(seed, seed + cases)
        return
    number, until = random.SystemRandom().randrange(2**40), time.monotonic() + SECONDS_EACH
    while time.monotonic() < until:
        yield number
        number += 1


def kind_of(answer: str) -> str:
    """An answer without what differs from case to case: numbers, names, quoted values."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|\S*[/\d]\S*", "", answer[:400].lower())
    return " ".join(re.findall(r"[a-z]{3,}", words))[:120]


def keep(name: str, content: bytes) -> None:
    """Add a small input to the corpus, where that is asked for and there are few."""
    if os.environ.get("EAGLENET_HOSTILE_KEEP") and len(content) <= KEPT_BYTES:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        if len(list((CORPUS / name).iterdir())) < MOST_KEPT:
            (CORPUS / name / hashlib.sha256(content).hexdigest()[:12]).write_bytes(content)


def count(name: str, cases: int) -> None:
    """Note how many inputs were tried, where that is asked for."""
    if place := os.environ.get("EAGLENET_HOSTILE_COUNT"):
        with open(place, "a") as stream:
            stream.write(f"{cases} {name}\n")


def _try(reader: Reader, content: bytes, name: str) -> str:
    """The words of the error; an empty text where the input was read."""
    reader.file.write_bytes(content)
    try:
        with limits():
            reader.read()
    except EagleNetError as error:
        text = str(error)
        assert text, "an error without words"
        assert len(text) < 3000, text[:300]
        assert "\n" not in text, text
        return text
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
    return ""
