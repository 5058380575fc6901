"""What a writer shows to readers, and when."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_store import (
    DIM,
    FRAMES,
    BagMethod,
    add_file,
    content_of,
    make_store,
)
from torch.nn import functional as F

from eaglenet.search.engine import Engine
from eaglenet.search.store import publishing


def random_frames(clips: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(clips, FRAMES, DIM, generator=generator), dim=-1)


def test_readers_keep_their_version_and_then_see_the_next(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=2)
    engine = Engine.open(tmp_path, bag)
    held = engine.snapshot
    before = held.records(np.arange(len(held))).copy()
    pictures = [held.thumbnail(row) for row in range(len(held))]
    tables.remove_files(["/videos/0.mp4"])
    add_file(tables, store.manifest, bag, "/videos/new.mp4", content_of(11), random_frames(4, 7))
    store.publish(tables)
    add_file(tables, store.manifest, bag, "/videos/newer.mp4", content_of(12), random_frames(2, 8))
    store.publish(tables)
    assert np.array_equal(held.records(np.arange(len(held))), before)
    assert [held.thumbnail(row) for row in range(len(held))] == pictures
    assert engine.info()["clips"] == 3 + 4 + 2
    paths = {hit.path for hit in engine.search("red car", k=50)}
    assert paths == {"/videos/1.mp4", "/videos/new.mp4", "/videos/newer.mp4"}
    assert engine.thumbnail(f"{content_of(12)[:16]}-1") == f"{content_of(12)}1".encode()


def test_clips_of_unfinished_files_are_not_shown(bag: BagMethod, tmp_path: Path) -> None:
    store, tables = make_store(tmp_path, bag, num_files=1)
    add_file(
        tables,
        store.manifest,
        bag,
        "/videos/bad.mp4",
        content_of(5),
        random_frames(2, 1),
        status="failed",
    )
    assert store.publish(tables) == 3
    assert len(tables.clip_keys()) == 5


def test_files_are_written_anew_when_most_slots_are_dead(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "CHUNK", 2)
    store, tables = make_store(tmp_path, bag, num_files=5)
    old = store.snapshot()
    tables.remove_files([f"/videos/{number}.mp4" for number in range(4)])
    store.publish(tables)
    new = store.snapshot()
    assert (new.num_slots, new.generation) == (3, old.generation + 1)
    assert np.array_equal(new.records(np.arange(3)), old.records(np.arange(12, 15)))
    assert [new.clip_id(row) for row in range(3)] == [old.clip_id(row) for row in range(12, 15)]


def test_a_snapshot_written_anew_keeps_clips_that_the_table_lost(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "CHUNK", 2)
    store, tables = make_store(tmp_path, bag, num_files=5)
    tables.remove_contents([content_of(4)])
    tables.remove_files([f"/videos/{number}.mp4" for number in range(4)])
    assert store.publish(tables) == 3


def test_a_reader_that_is_just_opening_finds_the_version_before_this_one(
    bag: BagMethod, tmp_path: Path
) -> None:
    store, tables = make_store(tmp_path, bag, num_files=2)
    folder = tmp_path / "snapshot"

    def named() -> list[Path]:
        """The files that a reader goes for once it has read which version is current."""
        current = json.loads((folder / "current.json").read_text())
        return [folder / current["rows"], folder / current["files"]]

    def publish_another(number: int) -> None:
        add_file(tables, store.manifest, bag, f"/{number}.mp4", content_of(number), frames)
        store.publish(tables)

    frames = random_frames(2, 1)
    first = named()
    publish_another(21)
    second = named()
    assert all(path.exists() for path in (*first, *second))
    publish_another(22)
    assert not any(path.exists() for path in first)
    assert all(path.exists() for path in second)


def test_vectors_of_the_generation_before_are_kept_as_long(
    bag: BagMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "CHUNK", 2)
    store, tables = make_store(tmp_path, bag, num_files=9)

    def generations() -> list[str]:
        return sorted(path.name for path in (tmp_path / "snapshot").glob("vectors-*.f32"))

    tables.remove_files([f"/videos/{number}.mp4" for number in range(6)])
    store.publish(tables)
    assert generations() == ["vectors-1.f32", "vectors-2.f32"]
    tables.remove_files([f"/videos/{number}.mp4" for number in range(6, 8)])
    store.publish(tables)
    assert generations() == ["vectors-2.f32", "vectors-3.f32"]
