"""A shard that is served while a writer commits: it compares what is new, and goes on answering."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglenet.cluster.shards import ScanRequest, Shard
from eaglenet.core.errors import StoreError
from eaglenet.serve.problems import Problem
from eaglenet.store import segments
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.store import LocalStore, open_store
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_store

CLIPS = 10
"""Clips per file."""
BLOCK = 5
"""Rows that are compared together."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of vectors that were compared with their checksums."""
    blocks: list[int] = []
    check = segments.Segment._check_block

    def counted(self: segments.Segment, kind: str, block: int) -> None:
        if kind == "vectors":
            blocks.append(block)
        check(self, kind, block)

    monkeypatch.setattr(segments, "BLOCK", BLOCK)
    monkeypatch.setattr(segments.Segment, "_check_block", counted)
    return blocks


def add(folder: Path, number: int) -> int:
    """Commit one more file; returns the version."""
    frames = torch.randn(CLIPS, FRAMES, DIM, generator=torch.Generator().manual_seed(number))
    with LocalStore.write(folder) as writer:
        add_file(writer, BagMethod(), f"/videos/{number}.mp4", content_of(number), frames)
    return LocalStore.open(folder).snapshot().version


def request(shard: Shard, version: int) -> ScanRequest:
    return ScanRequest(
        identity=shard.store.manifest.identity,
        version=version,
        shard=shard.shard[0],
        num_shards=shard.shard[1],
        k=3,
        dim=DIM,
        vectors=base64.b64encode(np.ones(DIM, "<f4").tobytes()).decode(),
    )


@pytest.mark.parametrize("number", [1, 2])
def test_shard_compares_added_vectors_only(
    number: int, bag: BagMethod, tmp_path: Path, compared: list[int]
) -> None:
    make_store(tmp_path, bag, num_files=8, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (number, 2))
    compared.clear()
    shard.scan(request(shard, shard.snapshot().version))
    assert len(compared) == 4 * CLIPS // BLOCK
    for file in range(8, 12):
        newest = add(tmp_path, file)
        compared.clear()
        # The end of the first shard moves by half a file, the second one gets a whole file.
        assert len(shard.scan(request(shard, newest))["lists"]) == 1
        assert len(compared) == (1 if number == 1 else 2)
    assert shard.snapshot(newest).version == newest


def test_shard_serves_the_old_version_while_opening_the_next(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, bag, num_files=4, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (1, 2))
    old = shard.snapshot().version
    expected = shard.scan(request(shard, old))
    newest = add(tmp_path, 4)
    is_opening, may_go_on = threading.Event(), threading.Event()
    take = LocalStore.snapshot

    def slow(self: LocalStore) -> Snapshot:
        is_opening.set()
        assert may_go_on.wait(120)
        return take(self)

    monkeypatch.setattr(LocalStore, "snapshot", slow)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(shard.scan(request(shard, newest))))
    waiting.start()
    assert is_opening.wait(60)
    at_once: list[Any] = []
    other = threading.Thread(target=lambda: at_once.append(shard.scan(request(shard, old))))
    other.start()
    other.join(60)
    answered = at_once.copy()
    may_go_on.set()
    waiting.join(60)
    other.join(60)
    assert answered == [expected]
    assert len(answers) == 1
    assert shard.scan(request(shard, old)) == expected, "a front may still use it"
    with pytest.raises(Problem, match=f"version {newest} of the store, not 99"):
        shard.scan(request(shard, 99))


def test_shard_finds_damage_in_added_vectors(
    bag: BagMethod, tmp_path: Path, compared: list[int]
) -> None:
    make_store(tmp_path, bag, num_files=4, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (2, 2))
    old = shard.snapshot().version
    newest = add(tmp_path, 4)
    (path,) = (tmp_path / "segments").glob("*.vectors")
    with path.open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\xff\xff\xff\x7f")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{path.name} .* damaged"):
            shard.scan(request(shard, newest))
    assert shard.scan(request(shard, old))["lists"]
