"""A run tells what is on disk, and one that is interrupted goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from index_cases import SPLITTING, run

from eaglenet.indexing import decoding, encoding
from eaglenet.indexing import run as commit
from eaglenet.indexing.encoding import BATCH_SECONDS, MIN_CLIPS, ClipEncoding
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.ledger import FileProgress
from eaglenet.indexing.report import IndexProgress
from eaglenet.search.engine import Engine
from synthetic_store import BagMethod, make_manifest


def test_progress_counts_committed_files(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMIT_CLIPS", 1)
    monkeypatch.setattr(commit, "PAUSE_FACTOR", 0.0)
    store = videos.parent / "store"
    seen: list[IndexProgress] = []

    def check(progress: IndexProgress) -> None:
        seen.append(progress)
        assert Engine.open(store, bag).info()["files"] == progress.num_done

    index_videos(
        [videos],
        store,
        "bag",
        method=bag,
        options=IndexOptions(splitting=SPLITTING, workers=0),
        on_progress=check,
    )
    last = seen[-1]
    assert (last.total, last.num_done, last.num_skipped) == (4, 3, 1)
    assert last.bytes_done == last.bytes_total
    assert last.seconds_left == 0
    assert last.hours == pytest.approx(24 / 3600, rel=0.1)
    assert last.speed > 0


def test_progress_advances_within_a_file(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglenet.indexing.run.PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("eaglenet.indexing.run.ESTIMATE_SECONDS", 0.0)
    monkeypatch.setattr("eaglenet.indexing.encoding.BATCH_FRAMES", 1)
    seen: list[IndexProgress] = []
    index_videos(
        [videos / "long.mp4", videos / "first.mp4"],
        videos.parent / "store",
        "bag",
        method=bag,
        options=IndexOptions(splitting=SPLITTING, workers=0),
        on_progress=seen.append,
    )
    done = [state.bytes_done for state in seen]
    inside = {count for count in done if 0 < count < seen[0].bytes_total}
    assert len(inside) >= 3
    assert done == sorted(done)
    assert done[-1] == seen[-1].bytes_total
    hours = [state.hours for state in seen]
    assert hours == sorted(hours)
    assert hours[-1] == pytest.approx(21 / 3600, rel=0.1)
    assert any(state.seconds_left is not None and state.num_done == 0 for state in seen)


def test_time_left_follows_the_recent_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders start, then files are encoded exactly, at 1 byte per second, then from keyframes."""
    now = [0.0]
    monkeypatch.setattr(commit.time, "monotonic", lambda: now[0])
    tally = commit.Tally()
    tally.begin([CandidateFile("a.mp4", 1000, 0)])
    done = {5.0: 0, 9.0: 4, 15.0: 10, 60.0: 55, 80.0: 255, 100.0: 455, 120.0: 655}
    estimates = []
    for now[0], size in done.items():
        progress = tally.progress([FileProgress(size, 0.0)])
        estimates.append((progress.seconds_left, str(progress).rpartition(", ")[2]))
    assert estimates[:4] == [(None, "0 clips")] * 4, "too early to say"
    assert estimates[4][0] == pytest.approx(65 * 745 / 245)
    assert estimates[6] == (34.5, "searchable in 0:00:34")
    tally.begin([CandidateFile("a.mp4", 1000, 0)], is_completing=True)
    for size, ending in ((300, "0 clips"), (500, ", 0:00:50 left")):
        now[0] += 20.0
        assert str(tally.progress([FileProgress(size, 0.0)])).endswith(ending)


def test_time_left_does_not_count_the_start_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of 40 s on a busy machine, of which 19 s passed before the first clips."""
    now = [0.0]
    monkeypatch.setattr(commit.time, "monotonic", lambda: now[0])
    tally = commit.Tally()
    tally.begin([CandidateFile("a.mp4", 1000, 0)])
    done = {9.0: 0, 18.7: 30, 21.0: 60, 22.7: 100, 25.4: 140, 27.9: 310, 29.7: 450, 35.5: 810}
    for now[0], size in done.items():
        left = tally.progress([FileProgress(size, 0.0)]).seconds_left
        assert left is None or left < 4 * (39.5 - now[0])
    assert left == pytest.approx(4, abs=1.5)


def test_interrupted_file_continues(
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
    monkeypatch.setattr("eaglenet.indexing.encoding.BATCH_FRAMES", 1)
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


def test_interrupt_while_decoding_encodes_nothing_more(
    videos: Path, bag: BagMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a run at once; the decoded clips are decoded again by the next run."""
    decoded: list[object] = []
    encoded: list[object] = []
    decode, encode = decoding.decode_clips, ClipEncoding._encode

    def decode_two(request: object, **options: object) -> object:
        decoded.append(request)
        if len(decoded) == 3:
            raise KeyboardInterrupt
        return decode(request, **options)

    def record(self: ClipEncoding, batch: list[object]) -> object:
        encoded.append(batch)
        return encode(self, batch)

    monkeypatch.setattr(decoding, "decode_clips", decode_two)
    monkeypatch.setattr(ClipEncoding, "_encode", record)
    monkeypatch.setattr(encoding, "FIRST_FRAMES", encoding.BATCH_FRAMES)
    with pytest.raises(KeyboardInterrupt):
        run(videos, bag)
    assert encoded == []
    assert run(videos, bag).clips == 5


def test_first_progress_has_the_total(videos: Path, bag: BagMethod) -> None:
    seen: list[IndexProgress] = []
    index_videos(
        [videos],
        videos.parent / "store",
        "bag",
        method=bag,
        options=IndexOptions(workers=0),
        on_progress=seen.append,
    )
    assert (seen[0].num_done, seen[0].total, seen[0].bytes_done) == (0, 4, 0)
    assert seen[-1].num_done == 3


def test_batch_size_adapts_to_the_speed_of_the_model(bag: BagMethod) -> None:
    manifest = make_manifest(bag)
    clips = ClipEncoding(bag, manifest)
    frames, largest = manifest.frame_spec.num_frames, clips.max_clips
    assert (clips.batch_size, largest) == (24 // frames, 192 // frames)
    clips._adapt(BATCH_SECONDS * 1.2)
    assert clips.batch_size == 24 // frames
    clips._adapt(BATCH_SECONDS * 1000)
    assert clips.batch_size == MIN_CLIPS
    clips._adapt(BATCH_SECONDS / 2)
    assert clips.batch_size == 2 * MIN_CLIPS
    clips._adapt(0.0)
    assert clips.batch_size == largest
