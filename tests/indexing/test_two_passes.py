"""A first pass over keyframes makes files searchable, a second one makes their clips exact."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_cases import run, stored_clips
from ledger_cases import FakeWriter, batch_of, candidate, done_file, inspection

from eaglenet.core.errors import UsageError
from eaglenet.indexing import decoding, index
from eaglenet.indexing.decoding import ClipFailure, ClipRequest, check_decoded
from eaglenet.indexing.encoding import ClipEncoding
from eaglenet.indexing.executor import ExecutorSettings, LocalExecutor
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.ledger import Ledger
from eaglenet.indexing.model import ModelSource
from eaglenet.indexing.run import IndexRun
from eaglenet.search.engine import Engine
from eaglenet.store.store import LocalStore
from eaglenet.video import worker_host
from processes import descendants
from small_videos import FPS, colour_video, cut_short_video, damaged_video
from synthetic_store import BagMethod, make_manifest

NUM_CLIPS = 5
"""Clips of the folder ``videos``."""


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take keyframes from the first second of video on, as long folders do."""
    monkeypatch.setattr(index, "EXACT_SECONDS", 0.0)


def from_keyframes(store: Path) -> int:
    mask = LocalStore.open(store).snapshot().from_keyframes
    return 0 if mask is None else int(mask.sum())


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every encoded clip: whether it was from keyframes."""
    encoded: list[bool] = []
    original = ClipEncoding._encode

    def encode(self: ClipEncoding, batch: list) -> object:
        encoded.extend(clip.is_from_keyframes for clip in batch)
        return original(self, batch)

    monkeypatch.setattr(ClipEncoding, "_encode", encode)
    return encoded


def files_of(store: Path) -> list:
    return sorted(LocalStore.open(store).files(), key=lambda file: file.path)


def test_a_small_folder_has_one_pass(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = count_encoded(monkeypatch)
    report = run(videos, bag, quick=True)
    assert encoded == [False] * NUM_CLIPS
    assert (report.clips, report.keyframe_clips) == (NUM_CLIPS, 0)
    monkeypatch.setattr(index, "EXACT_SECONDS", 8.0)
    # first.mp4 has 6 s; long.mp4 and second.mkv come after the limit.
    assert run(videos, bag, store=videos.parent / "other", quick=True).keyframe_clips == 4


def test_a_second_pass_over_more_bytes_has_its_own_executor(bag: BagMethod) -> None:
    """One small new file must not decide how the rest of an earlier run is encoded."""
    executors: list[list[str]] = []
    options = index.IndexOptions()

    def make_executor(settings: ExecutorSettings) -> Any:
        executors.append([file.path for file in settings.files])
        return object()

    model = ModelSource("store", "bag", options, bag)
    source = index.ExecutorSource(model, make_executor, make_manifest(bag), options)
    new, rest = [CandidateFile("new.mp4", 10, 1)], [CandidateFile("rest.mp4", 10**6, 1)]
    first = source.executor(new)
    assert source.executor(new) is first
    second = source.executor([*new, *rest])
    assert source.executor(rest) is second is not first
    assert executors == [["new.mp4"], ["new.mp4", "rest.mp4"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_both_passes_give_the_store_of_one(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    damaged_video(videos / "damaged.mp4")
    cut_short_video(videos / "short.mp4")
    shutil.copy(videos / "long.mp4", videos / "copy.mp4")
    (videos / "photo.png").write_bytes(photo())
    plain, store = videos.parent / "plain", videos.parent / "store"
    one = run(videos, bag, store=plain)
    monkeypatch.setattr(index, "EXACT_SECONDS", 0.0)
    two = run(videos, bag, store=store, workers=workers)
    assert stored_clips(store) == stored_clips(plain)
    assert files_of(store) == files_of(plain)
    LocalStore.open(store).verify()
    assert two.keyframe_clips == 0
    assert two.searchable_after <= two.elapsed
    for name in ("indexed", "unchanged", "aliases", "clips", "images", "problems", "damaged"):
        assert getattr(two, name) == getattr(one, name), name
    assert two.hours == pytest.approx(one.hours)
    assert sorted(two.new_files) == sorted(one.new_files)


def photo() -> bytes:
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.full((24, 40, 3), 200, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.usefixtures("two_passes")
def test_quick_stops_after_keyframes_and_a_later_run_completes_them(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = videos.parent / "store"
    encoded = count_encoded(monkeypatch)
    quick = run(videos, bag, quick=True)
    assert encoded == [True] * NUM_CLIPS
    assert (quick.indexed, quick.completed, quick.keyframe_clips) == (3, 0, NUM_CLIPS)
    engine = Engine.open(store, bag)
    assert engine.info()["keyframe_clips"] == engine.info()["clips"] == NUM_CLIPS
    hits = engine.search("red", k=1)
    assert hits[0].metadata["from_keyframes"]
    again = run(videos, bag, quick=True)
    assert (again.indexed, again.unchanged, again.keyframe_clips) == (0, 3, NUM_CLIPS)
    assert len(encoded) == NUM_CLIPS

    # Files that are not named stay as they are.
    part = run(videos / "first.mp4", bag, store=store)
    assert (part.completed, part.keyframe_clips) == (1, NUM_CLIPS - 1)
    whole = run(videos, bag)
    assert (whole.indexed, whole.completed, whole.unchanged) == (0, 2, 1)
    assert whole.keyframe_clips == from_keyframes(store) == 0
    assert whole.new_files == ()
    assert whole.hours > 0
    assert encoded[NUM_CLIPS:] == [False] * NUM_CLIPS
    assert "from_keyframes" not in Engine.open(store, bag).search("red", k=1)[0].metadata
    run(videos, bag)
    assert len(encoded) == 2 * NUM_CLIPS
    plain = videos.parent / "plain"
    monkeypatch.setattr(index, "EXACT_SECONDS", 60.0)
    run(videos, bag, store=plain)
    assert stored_clips(store) == stored_clips(plain)


@pytest.mark.usefixtures("two_passes")
@pytest.mark.parametrize("stop_at", [2, NUM_CLIPS, NUM_CLIPS + 2])
def test_an_interruption_in_either_pass_or_between_them_loses_nothing(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    store = videos.parent / "store"
    encoded: list[bool] = []
    original = ClipEncoding._encode

    def encode(self: ClipEncoding, batch: list) -> object:
        if len(encoded) == stop_at:
            raise KeyboardInterrupt
        encoded.extend(clip.is_from_keyframes for clip in batch)
        return original(self, batch)

    monkeypatch.setattr("eaglenet.indexing.encoding.BATCH_FRAMES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(ClipEncoding, "_encode", encode)
        with pytest.raises(KeyboardInterrupt):
            run(videos, bag)
    assert from_keyframes(store) <= min(stop_at, NUM_CLIPS)
    if stop_at >= NUM_CLIPS:  # All can be searched, what is exact stays exact.
        assert len(LocalStore.open(store).snapshot()) == NUM_CLIPS
        assert from_keyframes(store) == 2 * NUM_CLIPS - stop_at
    LocalStore.open(store).verify()
    more = count_encoded(monkeypatch)
    report = run(videos, bag)
    assert (report.clips, report.keyframe_clips) == (NUM_CLIPS, 0)
    first = encoded.count(True) + more.count(True)
    exact = encoded.count(False) + more.count(False)
    assert (first, exact) == (NUM_CLIPS, NUM_CLIPS)


@pytest.mark.usefixtures("two_passes")
def test_files_with_few_or_no_usable_keyframes_are_exact_at_once(
    tmp_path: Path, bag: BagMethod
) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    whole = colour_video(tmp_path / "whole.mp4", ["red", "green", "blue"] * 7)
    sparse = {"g": "1500", "keyint_min": "1500", "sc_threshold": "0"}
    rewrite(whole, folder / "sparse.mp4", "libx264", sparse)  # One keyframe in 63 s.
    rewrite(whole, folder / "untimed.avi", "mpeg4", {"bf": "2"})
    report = run(folder, bag, store=tmp_path / "store", quick=True)
    assert report.problems == ()
    # 13 clips of the first; two are at most 3 s from its keyframe. None of the second.
    assert (report.clips, report.keyframe_clips) == (26, 1)
    hits = Engine.open(tmp_path / "store", bag).search("blue", k=3, keep_duplicates=True)
    assert len(hits) == 3


def rewrite(source: Path, target: Path, codec: str, options: dict[str, str]) -> None:
    from eaglenet.core.frame_spec import FrameSpec
    from eaglenet.video.decoding import decode, write_video

    frames = decode(source, FrameSpec(num_frames=63 * FPS, size=24)).frames
    write_video(target, frames, FPS, codec=codec, options=options)


@pytest.mark.usefixtures("two_passes")
def test_a_file_that_changes_between_the_passes_is_indexed_anew(
    videos: Path, bag: BagMethod
) -> None:
    run(videos, bag, quick=True)
    colour_video(videos / "first.mp4", ["blue", "red"])
    (videos / "second.mkv").unlink()
    report = run(videos, bag, drop_missing=True)
    assert (report.indexed, report.completed, report.dropped) == (1, 1, 1)
    assert report.keyframe_clips == 0
    assert len(LocalStore.open(videos.parent / "store").snapshot()) == 4


@pytest.mark.usefixtures("two_passes")
@pytest.mark.parametrize("limit", [NUM_CLIPS, NUM_CLIPS - 1])
def test_the_second_pass_inspects_only_files_that_changed_since_the_first(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    inspected: list[str] = []
    inspect, reopen = LocalExecutor.inspect, IndexRun.reopen

    def count(self: LocalExecutor, files: Any, known_contents: frozenset[str]) -> Any:
        inspected.extend(sorted(Path(file.path).name for file in files))
        return inspect(self, files, known_contents)

    def replace_first(self: IndexRun, files: Any) -> Any:
        """Exchange a file for another one with its size and time."""
        path = videos / "first.mp4"
        status, content = path.stat(), path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-1] + b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return reopen(self, files)

    monkeypatch.setattr(LocalExecutor, "inspect", count)
    monkeypatch.setattr(IndexRun, "reopen", replace_first)
    monkeypatch.setattr("eaglenet.indexing.run.MAX_KEPT_CLIPS", limit)
    report = run(videos, bag)
    names = ["broken.mp4", "first.mp4", "long.mp4", "second.mkv"]
    # Without room for its clips, the last file is inspected again, too.
    again = names[1:2] if limit == NUM_CLIPS else [names[1], names[3]]
    assert inspected == names + again
    assert report.keyframe_clips == 0


@pytest.mark.usefixtures("two_passes")
def test_both_passes_have_one_host(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host takes half a second of processor time to start."""
    started: list[int] = []
    start_child = worker_host.start_child

    def count(*arguments: Any, **options: Any) -> Any:
        child = start_child(*arguments, **options)
        started.append(child.process.pid)
        return child

    monkeypatch.setattr(worker_host, "start_child", count)
    before = set(descendants(os.getpid()))
    assert run(videos, bag, workers=2).keyframe_clips == 0
    assert len(started) == (1 if worker_host.IS_FORKING else 5)
    assert set(descendants(os.getpid())) <= before


def reopened_ledger() -> Ledger:
    keys = [("A", 0), ("A", 1), ("A", 2)]
    ledger = Ledger(FakeWriter([done_file("/a.mp4", "A")], keys, keys[1:]), {})
    ledger.reopen()
    assert ledger.is_reopened(candidate("/a.mp4"))
    assert not ledger.is_reopened(candidate("/a.mp4", modified_ns=6))
    assert not ledger.is_reopened(candidate("/b.mp4"))
    return ledger


def test_exact_frames_that_do_not_decode_leave_what_keyframes_gave() -> None:
    ledger = reopened_ledger()
    (_, request) = ledger.requests([inspection("/a.mp4", "A")])
    assert isinstance(request, ClipRequest)
    assert (request.numbers, request.uses_keyframes) == ((1, 2), False)
    assert ledger.begin(inspection("/a.mp4", "A")) == []
    assert ledger.record_clips(ledger.select_pending(batch_of(("A", 1)))) == []
    (result,) = ledger.record_failure(ClipFailure(("A", 2), "gave up after 9 s"))
    assert (result.outcome, result.file.status, result.file.num_clips) == ("completed", "done", 3)
    assert result.file.reason == "1 of 3 clips from keyframes only: gave up after 9 s"
    # It is not tried again, unless the user asks for it.
    keys = [("A", 0), ("A", 1), ("A", 2)]
    later = Ledger(FakeWriter([result.file], keys, keys[2:]), {})
    later.reopen()
    assert not later.is_reopened(candidate("/a.mp4"))
    assert later.check_unchanged(candidate("/a.mp4"), retry=True) is None
    (settled,) = later.begin(inspection("/a.mp4", "A"))
    assert (settled.outcome, settled.file.reason) == ("encoded", "")
    later.reopen()
    later.record_commit([settled.file])
    assert later.is_reopened(candidate("/a.mp4"))


def test_a_file_that_cannot_be_read_for_now_stays_as_it_is() -> None:
    ledger = reopened_ledger()
    ledger.begin(inspection("/a.mp4", "A"))
    ledger.record_failure(ClipFailure(("A", 1), "Input/output error", is_temporary=True))
    (result,) = ledger.record_failure(ClipFailure(("A", 2), "Input/output error", True))
    assert (result.outcome, result.is_new) == ("failed", False)


def test_a_worker_that_gives_keyframes_for_exact_frames_is_hostile(
    videos: Path, bag: BagMethod
) -> None:
    spec = bag.frame_spec
    request = ClipRequest("A", str(videos / "first.mp4"), (0,), ((0.0, 6.0),), uses_keyframes=True)
    decoded = decoding.decode_clips(request, spec)
    check_decoded(request, decoded, spec)
    exact = ClipRequest("A", str(videos / "first.mp4"), (0,), ((0.0, 6.0),))
    with pytest.raises(ValueError, match="exact frames were requested"):
        check_decoded(exact, decoded, spec)


def test_stores_of_keyframes_and_other_devices_have_one_pass(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "EXACT_SECONDS", 0.0)
    assert run(videos, bag, store=videos.parent / "fast", fast=True, quick=True).keyframe_clips == 0
    source = ModelSource("store", None, index.IndexOptions(), bag)
    manifest = make_manifest(bag)
    for options, seconds in (
        (index.IndexOptions(), 0.0),
        (index.IndexOptions(executor="ray"), float("inf")),
        (index.IndexOptions(executor="ray", quick=True), 0.0),
    ):
        executors = index.ExecutorSource(source, lambda settings: None, manifest, options)
        assert executors.exact_seconds == seconds
    with pytest.raises(UsageError, match="no option 'speedy'"):
        index.index(videos, videos.parent / "store", speedy=True)
