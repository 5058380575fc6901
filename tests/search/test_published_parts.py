"""A part that is served while a writer publishes compares what is new, and goes on answering."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eaglenet.search.store import snapshot as snapshot_module
from eaglenet.search.store.base import open_store
from eaglenet.search.store.checked import checked_slots
from eaglenet.search.store.local import StoreFolder
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipStore
from numpy.typing import NDArray

from eaglenet.cluster.shards import ScanRequest, Shard
from eaglenet.core.errors import StoreError
from eaglenet.serve.problems import Problem
from synthetic_store import DIM, FRAMES, BagMethod, add_file, content_of, make_store

CLIPS = 10
"""Of each file."""
VECTOR = DIM * 4


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of vectors that were compared with their checksums, one number a comparison."""
    counts: list[int] = []
    whole = snapshot_module.checks_of

    def counted(rows: Iterable[Any]) -> NDArray[np.uint32]:
        found = list(rows)
        counts.append(sum(row.nbytes for row in found))
        return whole(found)

    monkeypatch.setattr(snapshot_module, "checks_of", counted)
    return counts


def publish(store: StoreFolder, tables: ClipStore, number: int) -> None:
    """One more file."""
    frames = torch.randn(CLIPS, FRAMES, DIM, generator=torch.Generator().manual_seed(number))
    name = f"/videos/{number}.mp4"
    add_file(tables, store.manifest, BagMethod(), name, content_of(number), frames)
    store.publish(tables)


def question(shard: Shard, version: int) -> ScanRequest:
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
def test_shard_verifies_added_data_only(
    number: int, bag: BagMethod, tmp_path: Path, compared: list[int]
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=8, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (number, 2))
    first = shard.snapshot()
    shard.scan(question(shard, first.version))
    assert sum(compared) == 4 * CLIPS * VECTOR
    for file in range(8, 12):
        publish(store, tables, file)
        compared.clear()
        # The end of the first part moves by half a file, the second part gets a whole one.
        newest = open_store(tmp_path).snapshot().version
        assert len(shard.scan(question(shard, newest)).lists) == 1
        assert sum(compared) == (CLIPS // 2 if number == 1 else CLIPS) * VECTOR
    assert shard.snapshot(newest).version == newest


def test_shard_serves_the_old_version_while_opening_the_next(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=4, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (1, 2))
    old = shard.snapshot().version
    expected = shard.scan(question(shard, old))
    publish(store, tables, 4)
    newest = store.snapshot().version
    is_opening, may_go_on = threading.Event(), threading.Event()
    whole = StoreFolder.snapshot

    def slow(self: StoreFolder) -> Snapshot:
        is_opening.set()
        assert may_go_on.wait(30)
        return whole(self)

    monkeypatch.setattr(StoreFolder, "snapshot", slow)
    found: list[Any] = []
    asker = threading.Thread(target=lambda: found.append(shard.scan(question(shard, newest))))
    asker.start()
    assert is_opening.wait(30)
    answered: list[Any] = []
    other = threading.Thread(target=lambda: answered.append(shard.scan(question(shard, old))))
    other.start()
    other.join(5)
    at_once = answered.copy()
    may_go_on.set()
    asker.join(30)
    other.join(30)
    assert at_once == [expected]
    assert len(found) == 1
    assert shard.scan(question(shard, old)) == expected, "a front may still be at it"
    with pytest.raises(Problem, match="this shard has version 2 of the store, not 99"):
        shard.scan(question(shard, 99))


def test_finds_damage_in_added_data(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=4, clips_each=CLIPS)
    shard = Shard(open_store(tmp_path), (2, 2))
    old = shard.snapshot().version
    publish(store, tables, 4)
    path = next((tmp_path / "snapshot").glob("vectors-*.f32"))
    with path.open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\xff\xff\xff\x7f")
    newest = store.snapshot().version
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged"):
            shard.scan(question(shard, newest))
    assert shard.scan(question(shard, old)).lists


def test_forgets_verified_files_with_their_last_snapshot() -> None:
    """So that another file with the same inode does not count as compared."""
    slots = np.array([0, 2, 5])
    first = checked_slots((1, 2))
    assert first.are_new(slots).all()
    first.add(slots)
    assert checked_slots((1, 2)).are_new(np.arange(7)).tolist() == [0, 1, 0, 1, 1, 0, 1]
    assert checked_slots((1, 3)).are_new(slots).all()
    del first
    assert checked_slots((1, 2)).are_new(slots).all()
