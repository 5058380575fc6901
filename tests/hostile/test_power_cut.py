"""Nothing that was reported is lost with the power: every cut point of indexing and publishing."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from forgetful import ForgetfulDisk, PowerCutError
from synthetic_store import DIM, FRAMES, BagMethod, clip_rows, content_of, make_manifest

from eaglenet.indexing.commit import Commit
from eaglenet.search.engine import Engine
from eaglenet.search.store import durability
from eaglenet.search.store.base import kind_of, open_store
from eaglenet.search.store.tables import FileRow

FILES, CLIPS = 3, 2


def write_file(commit: Commit, bag: BagMethod, number: int) -> None:
    layout = commit.store.manifest.layout
    content, path = content_of(number), f"/videos/{number}.mp4"
    generator = torch.Generator().manual_seed(number)
    frames = torch.randn(CLIPS, FRAMES, DIM, generator=generator)
    commit.add_clips(clip_rows(bag, layout, content, path, frames))
    commit.add_row(FileRow(path, 100, 5, content, "done", duration=20.0, num_clips=CLIPS))


def work(store: Path, bag: BagMethod, reported: list[str], files: int = FILES) -> None:
    """As an index run: commit file by file, report, clean up."""
    with kind_of(store).create(store, make_manifest(bag)) as opened:
        tables = opened.tables()
        if not opened.is_searched:
            opened.publish(tables)
        commit = Commit(opened, tables)
        known = {row.path for row in tables.files()}
        for number in range(files):
            if f"/videos/{number}.mp4" not in known:
                write_file(commit, bag, number)
                reported += [row.path for row in commit.write().rows]
        commit.clean_up({content_of(n): f"/videos/{n}.mp4" for n in range(files)}, set())


def found(store: Path, bag: BagMethod) -> set[str]:
    return {hit.path for hit in Engine.open(store, bag).search("red", k=50)}


def cut_points(tmp_path: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        disk = ForgetfulDisk(tmp_path / "whole")
        (tmp_path / "whole").mkdir()
        disk.install(patch)
        work(tmp_path / "whole" / "store", bag, [])
    return disk.syncs


def check_cut(cut: int, place: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the power at one sync; look at the disk, then go on with it."""
    root = place / f"cut{cut}"
    root.mkdir()
    disk, reported = ForgetfulDisk(root, cut), list[str]()
    with monkeypatch.context() as patch:
        disk.install(patch)
        with pytest.raises(PowerCutError):
            work(root / "store", bag, reported)
    for keeps_names in (False, True):
        after = place / f"after{cut}{keeps_names}"
        store = disk.after_the_cut(after, keeps_names=keeps_names) / "store"
        if reported:
            assert found(store, bag) >= set(reported), (cut, keeps_names)
        manifest = store / "manifest.json"
        if not manifest.exists() or manifest.stat().st_size == 0:
            assert not reported
            continue
        work(store, bag, [])
        assert found(store, bag) == {f"/videos/{n}.mp4" for n in range(FILES)}
        keys = open_store(store).tables().clip_keys()
        assert len(keys) == len(set(keys)) == FILES * CLIPS
        shutil.rmtree(after)


def test_after_a_cut_all_that_was_reported_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = cut_points(tmp_path, BagMethod(), monkeypatch)
    assert points > 30
    for cut in range(2, points, points // 4):
        check_cut(cut, tmp_path, BagMethod(), monkeypatch)


@pytest.mark.slow
def test_after_every_cut_all_that_was_reported_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cut in range(1, cut_points(tmp_path, BagMethod(), monkeypatch) + 1):
        check_cut(cut, tmp_path, BagMethod(), monkeypatch)


def test_without_syncing_the_trial_finds_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer itself is sound: it catches a store that does not sync its tables."""
    monkeypatch.setattr(durability.TableSync, "__call__", lambda self: None)
    points = cut_points(tmp_path, BagMethod(), monkeypatch)
    with pytest.raises(Exception, match=r"."):
        check_cut(points - 1, tmp_path, BagMethod(), monkeypatch)


def test_an_empty_newest_version_is_left_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in stores that were made before versions were marked."""
    bag, store = BagMethod(), tmp_path / "store"
    work(store, bag, [], files=2)
    (store / durability.MARK).unlink()
    for name in ("clips.lance", "files.lance"):
        newest = durability.versions(store / name)
        newest[max(newest)].write_bytes(b"")
    work(store, bag, [])
    assert "continuing from the last whole one" in caplog.text
    assert found(store, bag) == {f"/videos/{n}.mp4" for n in range(FILES)}


def test_a_damaged_mark_does_not_stop_a_writer(tmp_path: Path) -> None:
    bag, store = BagMethod(), tmp_path / "store"
    work(store, bag, [], files=2)
    (store / durability.MARK).write_bytes(bytes(30))
    work(store, bag, [])
    assert found(store, bag) == {f"/videos/{n}.mp4" for n in range(FILES)}


def test_readers_do_not_touch_versions(tmp_path: Path) -> None:
    bag, store = BagMethod(), tmp_path / "store"
    work(store, bag, [])
    (store / durability.MARK).write_text('{"clips.lance": 1, "files.lance": 1}')
    before = sorted(path.name for path in (store / "clips.lance" / "_versions").iterdir())
    open_store(store).tables().files()
    assert len(found(store, bag)) == FILES
    assert before == sorted(path.name for path in (store / "clips.lance" / "_versions").iterdir())
    assert np.isfinite(open_store(store).snapshot().vectors.numpy()).all()
