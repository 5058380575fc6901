"""From a folder of videos to a store that can be searched."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from index_cases import SPLITTING, clip_keys, found, run, stored_files

from clip_folder import learn_tokenizer
from eaglenet.core.errors import ModelNotFoundError, StoreError
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import FrameSpec
from eaglenet.indexing.decoding import decode_ahead
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.model import DEFAULT_MODEL
from eaglenet.models.light_model import LightModel
from eaglenet.search.engine import Engine
from eaglenet.search.options import Filters
from eaglenet.search.query import Query
from eaglenet.store.database import put_manifest
from eaglenet.store.store import LocalStore
from eaglenet.video.pool import map_ahead
from small_model import save_small_model
from small_videos import colour_video
from synthetic_store import BagMethod


def test_index_finds_the_moment_and_reports_broken_files(videos: Path, bag: BagMethod) -> None:
    report = run(videos, bag)
    assert (report.indexed, report.clips) == (3, 5)
    assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    engine = Engine.open(videos.parent / "store", bag)
    hits = sorted(engine.search("red", k=2), key=lambda hit: hit.path)
    assert [Path(hit.path).name for hit in hits] == ["first.mp4", "long.mp4"]
    assert 0 <= hits[0].moment.start <= hits[0].moment.best < 3
    assert 11 < hits[1].moment.start <= hits[1].moment.best <= hits[1].moment.end <= 15.1
    assert (hits[1].metadata["width"], hits[1].metadata["height"]) == (40, 24)
    assert hits[1].duration == pytest.approx(15, abs=0.3)
    assert engine.thumbnail(hits[0].clip_id).startswith(b"\xff\xd8\xff")
    assert engine.file_of(hits[0].clip_id) == videos / "first.mp4"
    # Searching by example finds the file itself first.
    again = engine.search(Query(video=videos / "second.mkv"), k=1)[0]
    assert Path(again.path).name == "second.mkv"
    assert again.score == pytest.approx(1, abs=1e-3)


def test_second_run_changes_nothing(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    monkeypatch.setattr("eaglenet.indexing.inspection.content_hash", lambda path: 1 / 0)
    report = run(videos, bag)
    assert (report.indexed, report.unchanged) == (0, 3)
    assert len(report.problems) == 1


def test_replaces_changed_files_and_ignores_new_dates(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    colour_video(videos / "second.mkv", ["red"])
    os.utime(videos / "first.mp4", (10**9, 10**9))
    report = run(videos, bag)
    assert (report.indexed, report.unchanged, report.clips) == (1, 2, 5)
    assert dict(found(videos, bag)[::-1])["second.mkv"] > 0.99
    (first,) = (file for file in stored_files(videos) if file.path.endswith("first.mp4"))
    assert first.modified_ns == 10**18
    assert len(clip_keys(videos.parent / "store")) == 5


def test_a_hit_shows_the_path_that_was_indexed_first(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    shutil.copy(videos / "first.mp4", videos / "first copy.mp4")  # First in the alphabet.
    run(videos, bag)
    filters = Filters(path="first*")
    hit = Engine.open(videos.parent / "store", bag).search("red", k=1, filters=filters)[0]
    assert Path(hit.path).name == "first.mp4"
    assert [Path(path).name for path in hit.metadata["also_at"]] == ["first copy.mp4"]


def test_same_content_is_encoded_once_and_outlives_its_first_path(
    videos: Path, bag: BagMethod
) -> None:
    shutil.copy(videos / "first.mp4", videos / "again.mp4")
    report = run(videos, bag)
    assert (report.indexed, report.aliases, report.clips) == (3, 1, 5)
    engine = Engine.open(videos.parent / "store", bag)
    hit = engine.search("red", k=1, filters=Filters(path="again"))[0]
    assert Path(hit.path).name == "again.mp4"
    assert [Path(path).name for path in hit.metadata["also_at"]] == ["first.mp4"]
    for pattern in ("first.mp4", "FIRST*"):
        same = engine.search("red", k=1, filters=Filters(path=pattern))[0]
        assert (same.clip_id, Path(same.path).name) == (hit.clip_id, "first.mp4")
        assert [Path(path).name for path in same.metadata["also_at"]] == ["again.mp4"]
    assert engine.info()["files"] == 4
    (videos / "again.mp4").unlink()
    assert engine.file_of(hit.clip_id) == videos / "first.mp4"
    report = run(videos, bag)
    assert (report.dropped, report.missing) == (0, 1)
    report = run(videos, bag, drop_missing=True)
    assert (report.dropped, report.missing, report.clips) == (1, 0, 5)
    assert "again.mp4" not in dict(found(videos, bag))
    assert dict(found(videos, bag))["first.mp4"] > 0.99


def test_drops_missing_files_on_request(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    (videos / "long.mp4").unlink()
    assert run(videos, bag).missing == 1
    assert "long.mp4" in dict(found(videos, bag))
    assert run(videos, bag, drop_missing=True).clips == 2
    assert "long.mp4" not in dict(found(videos, bag))


def test_shots_and_fast_frames_need_another_store(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    for options in ({"splitting": Splitting(shots=True)}, {"fast": True}):
        with pytest.raises(StoreError, match="cannot be mixed"):
            run(videos, bag, **options)
    with pytest.raises(StoreError, match="model"):
        run(videos, BagMethod(seed=3))
    other = videos.parent / "shots"
    report = run(videos, bag, other, splitting=Splitting(20.0, 2.0, shots=True), fast=True)
    assert report.clips == 5
    hits = Engine.open(other, bag).search("red", k=2, keep_duplicates=True)
    starts = [hit.metadata["clip_start"] for hit in hits]
    assert sorted(starts) == pytest.approx([0, 12], abs=0.3)


def test_worker_processes_give_the_same_store(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    alone = found(videos, bag)
    shutil.rmtree(videos.parent / "store")
    report = run(videos, bag, workers=1)
    assert report.clips == 5
    assert found(videos, bag) == alone


def test_starts_no_idle_workers(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def decode(requests: Any, spec: Any, workers: int, *options: Any) -> Any:
        started.append(workers)
        return decode_ahead(requests, spec, 0, *options)

    def map_here(*arguments: Any, **options: Any) -> Any:
        return map_ahead(*arguments, **{**options, "workers": 0})

    monkeypatch.setattr("eaglenet.indexing.inspection.map_ahead", map_here)
    monkeypatch.setattr("eaglenet.indexing.executor.decode_ahead", decode)
    monkeypatch.setattr("eaglenet.indexing.executor.num_cores", lambda: 2)
    run(videos, bag, workers=500)
    run(videos, bag, videos.parent / "other", workers=3)
    assert started == [4, 3]


def test_missing_default_model_changes_nothing(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise ModelNotFoundError(f"{name}: offline")

    monkeypatch.setattr(LightModel, "open", staticmethod(refuse))
    # torch encodes on a GPU, and where the processor multiplies bfloat16.
    monkeypatch.setattr("eaglenet.encoders.hardware.has_gpu", lambda: False)
    monkeypatch.setattr("eaglenet.encoders.hardware.has_fast_bf16", lambda device: False)
    store = videos.parent / "never"
    with pytest.raises(ModelNotFoundError, match=f"{DEFAULT_MODEL}: offline"):
        index_videos([videos], store)
    assert not store.exists()


def test_adds_to_a_store_with_its_own_model(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    colour_video(videos / "new.mp4", ["blue", "red"])
    loaded = []
    monkeypatch.setattr("eaglenet.models.folder.load", lambda name: loaded.append(name) or bag)
    options = IndexOptions(splitting=SPLITTING, workers=0)
    assert index_videos([videos], videos.parent / "store", options=options).indexed == 1
    assert loaded == ["bag"]


def test_missing_model_folder_is_an_error(videos: Path, bag: BagMethod) -> None:
    store = videos.parent / "store"
    run(videos, bag)
    with LocalStore.write(store) as writer, writer.transaction() as change:
        put_manifest(change.connection, dataclasses.replace(writer.manifest, model="/gone/model"))
    with pytest.raises(StoreError, match=r"was in /gone/model.*--model FOLDER"):
        index_videos([videos], store)


def test_store_has_the_frame_spec_of_its_model(videos: Path, bag: BagMethod) -> None:
    run(videos, bag, fast=True)
    manifest = Engine.open(videos.parent / "store").manifest
    assert manifest.frame_spec == FrameSpec(num_frames=5, size=16, fast=True)
    assert manifest.roots == (str(videos),)


def test_run_without_new_files_loads_no_model(videos: Path, tmp_path: Path) -> None:
    """Neither the model nor torch is imported, so that such a run is quick."""
    model, store = save_small_model(tmp_path / "model"), tmp_path / "store"
    options = IndexOptions(workers=0)
    first = index_videos([videos], store, str(model), options=options)
    assert first.indexed == 3
    code = f"""
import sys
from eaglenet.indexing.index import index_videos
from eaglenet.indexing.options import IndexOptions
report = index_videos([{str(videos)!r}], {str(store)!r}, options=IndexOptions(workers=0))
assert (report.indexed, report.unchanged, report.clips) == (0, 3, {first.clips}), report
heavy = {{"torch", "lancedb", "pyarrow", "onnxruntime", "eaglenet.methods.base"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_model_that_changed_is_refused_only_when_there_is_work(
    videos: Path, tmp_path: Path
) -> None:
    model, store = save_small_model(tmp_path / "model"), tmp_path / "store"
    options = IndexOptions(workers=0)
    index_videos([videos], store, str(model), options=options)
    shutil.rmtree(model)
    save_small_model(tmp_path / "model", tokenizer=learn_tokenizer(["other"]))
    assert index_videos([videos], store, options=options).unchanged == 3
    shutil.copy(videos / "first.mp4", videos / "new.avi")
    (videos / "new.avi").write_bytes((videos / "first.mp4").read_bytes() + b"x")
    with pytest.raises(StoreError, match="weights"):
        index_videos([videos], store, options=options)
