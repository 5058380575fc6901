"""Stores of before and of now: each keeps its own way to take frames of overlapping clips."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from index_cases import run

from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import FrameSpec
from eaglenet.indexing.decoding import with_shared_frames
from eaglenet.indexing.maintenance import options_like
from eaglenet.indexing.options import IndexOptions
from eaglenet.search.engine import Engine
from eaglenet.store.manifest import Manifest
from eaglenet.store.store import open_store
from small_videos import colour_video
from synthetic_store import BagMethod, make_manifest

HALF = Splitting(clip_seconds=6.0, overlap=3.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A film of 12 s, so three whole clips: 0 to 6, 3 to 9, 6 to 12."""
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos" / "film.mp4", ["red", "green", "blue", "red"])
    return tmp_path / "videos"


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Stores are made as before frames were shared, until this is undone."""
    monkeypatch.setattr(
        "eaglenet.indexing.model.with_shared_frames", lambda splitting, spec: splitting
    )
    return monkeypatch


def seconds_of(store: Path, bag: BagMethod) -> dict[tuple[str, float], list[float]]:
    """When the frames of each clip are shown, by the file and the start of the clip."""
    engine = Engine.open(store, bag)
    snapshot = engine.snapshot
    hits = engine.search("red", k=100, keep_duplicates=True)
    found = {}
    for hit in hits:
        rows = [snapshot.row(hit.clip_id)]
        (clip,), features = snapshot.clips(rows), snapshot.features_at(np.array(rows))
        found[Path(hit.path).name, clip.start] = features["seconds"][0].tolist()
    return found


def test_new_store_shares_frames(folder: Path, bag: BagMethod) -> None:
    run(folder, bag, splitting=HALF)
    store = folder.parent / "store"
    splitting = open_store(store).manifest.splitting
    assert splitting == with_shared_frames(HALF, bag.frame_spec)
    assert splitting.frame_step == 1.0  # five frames, three of them new in each clip
    found = seconds_of(store, bag)
    assert found["film.mp4", 0.0] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found["film.mp4", 3.0] == [4.0, 5.0, 6.0, 7.0, 8.0]
    run(folder, bag, splitting=HALF)  # is the same store to the next run
    assert open_store(store).manifest.splitting == splitting


def test_older_store_keeps_its_frames(
    folder: Path, bag: BagMethod, as_before: pytest.MonkeyPatch
) -> None:
    run(folder, bag, splitting=HALF)
    store = folder.parent / "store"
    before, manifest = seconds_of(store, bag), open_store(store).manifest
    assert manifest.splitting.frame_step == 0
    as_before.undo()
    colour_video(folder / "more.mp4", ["blue", "blue", "green"])
    report = run(folder, bag, splitting=HALF)
    assert (report.indexed, report.unchanged) == (1, 1)
    assert open_store(store).manifest == manifest
    found = seconds_of(store, bag)
    assert before.items() <= found.items()
    assert found["film.mp4", 0.0] == found["more.mp4", 0.0] == [0.5, 1.75, 3.0, 4.0, 5.25]


def test_store_like_an_older_one_shares_frames(
    folder: Path, bag: BagMethod, as_before: pytest.MonkeyPatch
) -> None:
    run(folder, bag, splitting=HALF)
    as_before.undo()
    _, options = options_like(folder.parent / "store", IndexOptions(workers=0))
    assert dataclasses.replace(options.splitting, frame_step=0.0) == HALF
    run(folder, bag, folder.parent / "other", splitting=options.splitting)
    assert open_store(folder.parent / "other").manifest.splitting.frame_step == 1.0


@pytest.mark.parametrize(
    "spec", [FrameSpec(3, sampling="per_second"), FrameSpec(3, fast=True), FrameSpec(1)]
)
def test_other_sampling_shares_no_frames(spec: FrameSpec) -> None:
    assert with_shared_frames(HALF, spec).frame_step == 0


@pytest.mark.parametrize("step", [-1.0, 1.3, float("nan"), float("inf")])
def test_refuses_an_impossible_frame_step(step: float, bag: BagMethod) -> None:
    splitting = dataclasses.replace(HALF, frame_step=step)
    content = make_manifest(bag, splitting=splitting).to_json()
    with pytest.raises(ValueError, match="frame_step"):
        Manifest.from_json(content)
