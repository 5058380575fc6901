"""A store made of random numbers, for tests: no model and no videos."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.records import Changes, ClipBatch, IndexedFile, Line, Source, SourceLines
from eaglenet.store.store import LocalStore

DIM, FRAMES, CLIPS = 24, 3, 4
TEXTS = ("A red car drives fast", "The dogs are running home", "No entry without a ticket")


def make_manifest(**changes: object) -> Manifest:
    layout = Layout.from_json(
        [["frames", "<f2", [FRAMES, DIM]], ["mask", "|b1", [FRAMES]], ["seconds", "<f4", [FRAMES]]]
    )
    values = {"model": "bag", "identity": "1f", "method": "bag", "dim": DIM, "layout": layout}
    return Manifest(**{**values, "roots": ("/videos",), **changes})  # type: ignore[arg-type]


def content_of(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


def path_of(number: int) -> str:
    return f"/videos/{number}.mp4"


def make_batch(number: int, clips: Sequence[int] = range(CLIPS)) -> ClipBatch:
    """Clips of file ``number``; always the same bytes."""
    generator = np.random.default_rng(number)
    vectors = generator.standard_normal((CLIPS, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    features = np.zeros(CLIPS, make_manifest().layout.dtype)
    features["frames"] = generator.standard_normal((CLIPS, FRAMES, DIM))
    features["mask"] = True
    starts = 10.0 * np.arange(CLIPS)
    images = [generator.bytes(40 + 7 * clip + number % 5) for clip in range(CLIPS)]
    keys = [(content_of(number), clip) for clip in range(CLIPS)]
    return ClipBatch(keys, starts, starts + 10, vectors, features, images)[list(clips)]


def make_file(number: int, **changes: object) -> IndexedFile:
    values = {"path": path_of(number), "size": 100 + number, "modified_ns": 5, "status": "done"}
    values |= {"content": content_of(number), "duration": 40.0, "num_clips": CLIPS}
    return IndexedFile(**{**values, **changes})  # type: ignore[arg-type]


def make_lines(number: int) -> SourceLines:
    lines = [
        Line(10.0 * place, 10.0 * place + 5, "en", f"{text} {number}", f"{text} {number}".lower())
        for place, text in enumerate(TEXTS)
    ]
    source = Source(content_of(number), "subtitle", "", 0, 0, "test 1", "done", lines=len(lines))
    return SourceLines(source, lines)


def changes_of(number: int) -> Changes:
    return Changes([make_batch(number)], [make_file(number)], transcripts=[make_lines(number)])


def fill(folder: Path, files: int = 6) -> LocalStore:
    """Make a store, one commit per file."""
    with LocalStore.write(folder, make_manifest()) as writer:
        for number in range(files):
            writer.commit(changes_of(number))
        writer.finish()
    return LocalStore.open(folder)
