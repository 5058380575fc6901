import dataclasses
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_videos import colour_video, cut_short_video, damaged_video
from synthetic_store import BagMethod

from eaglenet.errors import ModelNotFoundError, StoreError, UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.filters import Filters
from eaglenet.search.indexing import commit, decoding, executor
from eaglenet.search.indexing.encoding import ClipEncoding
from eaglenet.search.indexing.files import find_videos, read_tags
from eaglenet.search.indexing.report import IndexReport, Progress
from eaglenet.search.indexing.videos import IndexOptions, index_videos
from eaglenet.search.models import DEFAULT_MODEL
from eaglenet.search.store.base import open_store
from eaglenet.search.store.folder import StoreFolder
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.store.tables import ClipStore
from eaglenet.types import FrameSpec

SPLITTING = Splitting(clip_seconds=6.0, overlap=1.0)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    colour_video(folder / "first.mp4", ["red", "green"])
    colour_video(folder / "second.mkv", ["blue"])
    colour_video(folder / "long.mp4", ["green"] * 4 + ["red"])
    (folder / "broken.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(50))
    (folder / "notes.txt").write_text("not a video")
    return folder


@pytest.fixture
def videos(originals: Path, tmp_path: Path) -> Path:
    shutil.copytree(originals, tmp_path / "videos")
    return tmp_path / "videos"


def run(
    videos: Path, method: BagMethod, store: Path | None = None, **options: object
) -> IndexReport:
    changes = {"splitting": SPLITTING, "workers": 0, **options}
    store = store or videos.parent / "store"
    return index_videos([videos], store, "bag", method=method, options=IndexOptions(**changes))


def found(videos: Path, method: BagMethod, query: str = "red") -> list[tuple[str, float]]:
    engine = Engine.open(videos.parent / "store", method)
    return [(Path(hit.path).name, round(hit.score, 3)) for hit in engine.search(query, k=100)]


def test_an_index_finds_the_moment_and_lists_what_is_broken(videos: Path, bag: BagMethod) -> None:
    report = run(videos, bag)
    assert (report.indexed, report.clips, report.index) == (3, 5, "exact scan")
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
    again = engine.search_video(videos / "second.mkv", k=1)[0]
    assert Path(again.path).name == "second.mkv"
    assert again.score == pytest.approx(1, abs=1e-3)


def test_a_second_run_touches_nothing(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    monkeypatch.setattr("eaglenet.search.indexing.inspection.content_hash", lambda path: 1 / 0)
    report = run(videos, bag)
    assert (report.indexed, report.unchanged) == (0, 3)
    assert len(report.problems) == 1


def test_changed_files_are_replaced_and_new_dates_cost_nothing(
    videos: Path, bag: BagMethod
) -> None:
    run(videos, bag)
    colour_video(videos / "second.mkv", ["red"])
    os.utime(videos / "first.mp4", (10**9, 10**9))
    report = run(videos, bag)
    assert (report.indexed, report.unchanged, report.clips) == (1, 2, 5)
    assert dict(found(videos, bag)[::-1])["second.mkv"] > 0.99
    store = tables_of(videos)
    row = next(row for row in store.files() if row.path.endswith("first.mp4"))
    assert row.modified_ns == 10**18
    assert len(store.clip_keys()) == 5


def tables_of(videos: Path) -> ClipStore:
    return open_store(videos.parent / "store").tables()


def test_the_same_content_is_encoded_once_and_outlives_its_first_path(
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


def test_vanished_files_are_dropped_on_request(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    (videos / "long.mp4").unlink()
    assert run(videos, bag).missing == 1
    assert "long.mp4" in dict(found(videos, bag))
    assert run(videos, bag, drop_missing=True).clips == 2
    assert "long.mp4" not in dict(found(videos, bag))


def test_what_may_not_be_looked_at_is_told_and_not_forgotten(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    (videos / "locked").mkdir()
    (videos / "second.mkv").rename(videos / "locked" / "second.mkv")
    run(videos, bag)
    expected = found(videos, bag)
    locked = str(videos / "locked")
    real_stat, real_scandir = os.stat, os.scandir

    def stat(path: object, **options: object) -> os.stat_result:
        if str(path).startswith(locked + "/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, **options)

    def scandir(path: str) -> object:
        if str(path) == locked:
            raise PermissionError(13, "Permission denied", locked)
        return real_scandir(path)

    # Modes do not stop the superuser, as whom tests may run.
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "scandir", scandir)
    report = run(videos, bag, drop_missing=True)
    assert (report.dropped, report.unchanged) == (0, 2)
    reasons = {Path(problem.path).name: problem.reason for problem in report.problems}
    assert "the folder cannot be read (Permission denied)" in reasons["locked"]
    assert found(videos, bag) == expected


def test_tables_without_a_manifest_are_not_taken_over(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    (videos.parent / "store" / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        run(videos, bag, splitting=Splitting(clip_seconds=4.0))


@pytest.mark.parametrize("table", ["clips", "files"])
def test_a_lost_table_stops_the_index(table: str, videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    shutil.rmtree(videos.parent / "store" / f"{table}.lance")
    with pytest.raises(StoreError, match=rf"lost {table}\.lance"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5


@pytest.mark.parametrize("is_shown", [True, False])
def test_files_whose_clips_got_lost_are_encoded_again(
    is_shown: bool, videos: Path, bag: BagMethod
) -> None:
    run(videos, bag)
    expected = found(videos, bag)
    store = open_store(videos.parent / "store")
    tables = store.tables()
    lost = next(row for row in tables.files() if row.path.endswith("long.mp4"))
    tables.remove_contents([lost.content])
    if not is_shown:
        store.publish(tables, anew=True)
        assert len(found(videos, bag)) == 2
    report = run(videos, bag)
    assert (report.indexed, report.unchanged, report.clips) == (1, 2, 5)
    assert found(videos, bag) == expected
    assert len(store.tables().clip_keys()) == 5
    assert run(videos, bag).unchanged == 3


def test_failed_files_are_tried_again_when_asked_or_changed(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    shutil.copy(videos / "second.mkv", videos / "broken.mp4")
    report = run(videos, bag)
    assert (report.problems, report.aliases) == ((), 1)
    (videos / "broken.mp4").write_bytes(b"")
    assert "0 bytes" in run(videos, bag).problems[0].reason
    assert "0 bytes" in run(videos, bag, retry=True).problems[0].reason


def test_shots_and_fast_frames_are_other_stores(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    for options in ({"splitting": Splitting(shots=True)}, {"fast": True}):
        with pytest.raises(StoreError, match="do not mix"):
            run(videos, bag, **options)
    with pytest.raises(StoreError, match="model"):
        run(videos, BagMethod(seed=3))
    other = videos.parent / "shots"
    report = run(videos, bag, other, splitting=Splitting(20.0, 2.0, shots=True), fast=True)
    assert report.clips == 5
    starts = [hit.moment.start for hit in Engine.open(other, bag).search("red", k=2)]
    assert sorted(starts) == pytest.approx([0, 12], abs=0.3)


def test_tags_come_from_a_table_and_can_change(videos: Path, bag: BagMethod) -> None:
    table = videos / "tags.csv"
    table.write_text("path,tags\nfirst.mp4,home; pets\nsecond.mkv,work\n")
    store = videos.parent / "store"
    options = IndexOptions(splitting=SPLITTING, workers=0)
    index_videos([videos], store, "bag", method=bag, options=options, tags=read_tags(table))
    engine = Engine.open(store, bag)
    assert engine.info()["tags"] == ["home", "pets", "work"]
    table.write_text("path,tags\nfirst.mp4,garden\n")
    index_videos([videos], store, "bag", method=bag, options=options, tags=read_tags(table))
    assert engine.info()["tags"] == ["garden", "work"]
    table.write_text("name;label\n")
    with pytest.raises(UsageError, match="path and tags"):
        read_tags(table)


def test_worker_processes_give_the_same_store(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    alone = found(videos, bag)
    shutil.rmtree(videos.parent / "store")
    report = run(videos, bag, workers=1)
    assert report.clips == 5
    assert found(videos, bag) == alone


def test_workers_that_would_have_nothing_to_do_are_not_started(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Encoding(ClipEncoding):
        def __init__(self, method: object, manifest: object, workers: int) -> None:
            started.append(workers)
            super().__init__(method, manifest, 0)

    monkeypatch.setattr(executor, "ClipEncoding", Encoding)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    run(videos, bag, workers=500)
    run(videos, bag, videos.parent / "other", workers=3)
    assert started == [4, 3]


def test_progress_counts_what_is_on_disk(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMIT_CLIPS", 1)
    store = videos.parent / "store"
    seen: list[Progress] = []

    def check(progress: Progress) -> None:
        seen.append(progress)
        assert Engine.open(store, bag).info()["files"] == progress.done

    index_videos(
        [videos],
        store,
        "bag",
        method=bag,
        options=IndexOptions(splitting=SPLITTING, workers=0),
        on_progress=check,
    )
    last = seen[-1]
    assert (last.total, last.done, last.skipped) == (4, 3, 1)
    assert last.bytes_done == last.bytes_total
    assert last.seconds_left == 0
    assert last.hours == pytest.approx(24 / 3600, rel=0.1)
    assert last.speed > 0


def test_an_interrupted_film_goes_on_where_it_was(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    original = ClipEncoding._encode

    def encode(self: object, batch: list[object]) -> object:
        if len(decoded) == 4:
            raise KeyboardInterrupt
        decoded.append(batch[0].key)
        return original(self, batch)

    monkeypatch.setattr(ClipEncoding, "_encode", encode)
    monkeypatch.setattr("eaglenet.search.indexing.encoding.BATCH_FRAMES", 1)
    with pytest.raises(KeyboardInterrupt):
        run(videos, bag)
    assert len(set(decoded)) == 4
    done = Engine.open(videos.parent / "store", bag).info()["files"]
    monkeypatch.setattr(ClipEncoding, "_encode", original)
    more = []

    def count(self: object, batch: list[object]) -> object:
        more.extend(clip.key for clip in batch)
        return original(self, batch)

    monkeypatch.setattr(ClipEncoding, "_encode", count)
    report = run(videos, bag)
    assert report.clips == 5
    assert report.unchanged == done
    assert not set(more) & set(decoded)
    assert len(more) + len(decoded) == 5


@pytest.mark.parametrize("step", ["decode", "encode"])
def test_an_interrupt_keeps_what_was_decoded(
    step: str, videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            calls.append(arguments)
            if len(calls) == (3 if step == "decode" else 1):
                raise KeyboardInterrupt
            return original(*arguments, **options)

        return call

    owner, name = {
        "decode": (decoding, "decode_clips"),
        "encode": (ClipEncoding, "_encode"),
    }[step]
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        run(videos, bag)
    names = {name for name, _ in found(videos, bag)}
    # The three files are decoded one after the other and fit into one batch.
    assert names == {"first.mp4", "long.mp4"} | ({"second.mkv"} if step == "encode" else set())


def test_a_second_writer_is_told_who_the_first_is(videos: Path, bag: BagMethod) -> None:
    run(videos, bag)
    store = open_store(videos.parent / "store")
    with store.hold(), pytest.raises(StoreError, match=f"process {os.getpid()}"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5
    assert run(videos, bag).unchanged == 3


LANCE_ADD = "lancedb.table.LanceTable.add"


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (LANCE_ADD, OSError(errno.ENOSPC, "No space left on device")),
        (LANCE_ADD, RuntimeError("lance error: LanceError(IO): No space left on device")),
        (
            "eaglenet.search.store.publishing.write_bytes",
            OSError(errno.ENOSPC, "No space left on device"),
        ),
    ],
)
def test_a_full_disk_is_told_and_the_store_stays_readable(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch, error: Exception, function: str
) -> None:
    run(videos, bag)
    before = found(videos, bag)
    colour_video(videos / "new.mp4", ["blue", "red"])

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(function, fail)
        with pytest.raises(StoreError, match="full"):
            run(videos, bag)
        assert found(videos, bag) == before
    report = run(videos, bag)
    assert report.clips == 6
    assert "new.mp4" in dict(found(videos, bag))


def test_a_store_that_cannot_be_written_is_told_and_still_searched(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    colour_video(videos / "new.mp4", ["blue"])
    store = videos.parent / "store"
    original = os.open

    def refuse(path: object, flags: int, *rest: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(store)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return original(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"cannot be written to.*searching it still works"):
        run(videos, bag)
    assert len(found(videos, bag)) == 5


def test_other_peoples_folders_and_files_are_left_alone(videos: Path, bag: BagMethod) -> None:
    with pytest.raises(StoreError, match="other files"):
        run(videos, bag, videos)
    with pytest.raises(StoreError, match="is a file"):
        run(videos, bag, videos / "notes.txt")
    with pytest.raises(UsageError, match="no such file"):
        run(videos / "nowhere", bag, videos.parent / "never")
    assert not (videos.parent / "never").exists()


def test_without_the_default_model_nothing_is_touched(
    videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise ModelNotFoundError(f"{name}: offline")

    monkeypatch.setattr("eaglenet.methods.folder.load", refuse)
    store = videos.parent / "never"
    with pytest.raises(ModelNotFoundError, match="--model demo") as caught:
        index_videos([videos], store)
    assert "--model FOLDER" in str(caught.value)
    assert DEFAULT_MODEL in str(caught.value)
    assert not store.exists()


def test_a_store_is_added_to_with_its_own_model(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(videos, bag)
    colour_video(videos / "new.mp4", ["blue", "red"])
    loaded = []
    monkeypatch.setattr("eaglenet.methods.folder.load", lambda name: loaded.append(name) or bag)
    options = IndexOptions(splitting=SPLITTING, workers=0)
    assert index_videos([videos], videos.parent / "store", options=options).indexed == 1
    assert loaded == ["bag"]


def test_a_model_folder_that_is_gone_is_told_when_adding(videos: Path, bag: BagMethod) -> None:
    store = videos.parent / "store"
    run(videos, bag)
    manifest = dataclasses.replace(StoreFolder.open(store).manifest, model="/gone/model")
    StoreFolder(store, manifest).write_manifest()
    with pytest.raises(StoreError, match=r"was in /gone/model.*--model FOLDER"):
        index_videos([videos], store)


def test_a_folder_that_cannot_be_made_is_told(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"cannot be written to.*another --store") as caught:
        run(videos, bag)
    assert "searching" not in str(caught.value)


def test_videos_are_found_by_content_and_the_store_is_not_looked_into(
    videos: Path, tmp_path: Path
) -> None:
    from eaglenet.video.decoding import is_video

    (videos / "no_suffix").write_bytes((videos / "second.mkv").read_bytes())
    (videos / ".hidden.mp4").write_bytes(b"x")
    (videos / "store").mkdir()
    (videos / "store" / "inside.mp4").write_bytes(b"x")
    os.mkfifo(videos / "pipe.mp4")
    os.symlink(videos, videos / "loop")
    names = [
        Path(file.path).name
        for file in find_videos([videos, videos], is_video, leave_out=videos / "store")
    ]
    assert names == ["broken.mp4", "first.mp4", "long.mp4", "no_suffix", "second.mkv"]


def test_a_name_that_is_not_text_is_reported_not_stored(videos: Path, bag: BagMethod) -> None:
    name = os.path.join(os.fsencode(videos), b"bad\xff.mp4")
    shutil.copy(os.fsencode(videos / "second.mkv"), name)
    report = run(videos, bag)
    assert "UTF-8" in {p.path: p.reason for p in report.problems}[os.fsdecode(name)]
    assert report.indexed == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [(damaged_video, "stand in for some that are lost"), (cut_short_video, "cut short, only")],
)
def test_damaged_videos_are_indexed_and_noted(
    make: Callable[[Path], Path], words: str, videos: Path, bag: BagMethod
) -> None:
    path = str(make(videos / "damaged.mp4"))
    shutil.copy(path, videos / "damaged too.mp4")
    for report in (run(videos, bag), run(videos, bag)):
        assert {Path(note.path).name for note in report.damaged} == {
            "damaged.mp4",
            "damaged too.mp4",
        }
        assert all(note.reason.startswith("damaged: ") for note in report.damaged)
        assert words in report.damaged[0].reason
        assert [Path(problem.path).name for problem in report.problems] == ["broken.mp4"]
    row = next(row for row in tables_of(videos).files() if row.path == path)
    assert (row.status, row.reason) == ("done", report.damaged[0].reason)


def test_a_link_to_nothing_is_told(videos: Path, bag: BagMethod) -> None:
    (videos / "link.mp4").symlink_to(videos / "gone.mp4")
    reasons = {Path(problem.path).name: problem.reason for problem in run(videos, bag).problems}
    assert "gone.mp4, which is not there" in reasons["link.mp4"]


def test_two_hundred_broken_files_do_not_stop_the_good_ones(videos: Path, bag: BagMethod) -> None:
    import random

    generator = random.Random(0)
    whole = (videos / "first.mp4").read_bytes()
    for number in range(200):
        content = bytearray(whole[: generator.randrange(len(whole))])
        for _ in range(number % 7):
            if content:
                content[generator.randrange(len(content))] ^= 0xFF
        (videos / f"part{number}.mp4").write_bytes(bytes(content))
    report = run(videos, bag)
    good = {Path(name).name for name, _ in found(videos, bag)}
    assert {"first.mp4", "second.mkv", "long.mp4"} <= good
    bad = {Path(problem.path).name for problem in report.problems}
    assert len(good | bad) >= 204 - report.aliases
    assert all(problem.reason for problem in report.problems)
    assert len(bad) > 100


def test_the_frame_spec_of_the_store_is_the_models(videos: Path, bag: BagMethod) -> None:
    run(videos, bag, fast=True)
    manifest = Engine.open(videos.parent / "store").manifest
    assert manifest.frame_spec == FrameSpec(num_frames=5, size=16, fast=True)
    assert manifest.roots == (str(videos),)
