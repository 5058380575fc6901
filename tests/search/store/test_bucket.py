"""A store on object storage answers as one in a folder, whatever goes wrong in between."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_storage import Gate, at_random, start_storage
from small_videos import colour_video
from synthetic_store import BagMethod

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.core.object_storage import ChangedObjectError, ObjectFolder
from eaglenet.indexing import commit
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.maintenance import repair, verify
from eaglenet.indexing.report import IndexReport
from eaglenet.search.engine import Engine
from eaglenet.search.store import bucket, lease, pieces
from eaglenet.search.store.base import open_store
from eaglenet.search.store.lease import held_lease
from eaglenet.search.store.manifest import Splitting
from eaglenet.search.store.words import WordRow

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = pytest.mark.filterwarnings("ignore")
NUM_CLIPS = 13
KILLS = int(os.environ.get("EAGLENET_KILL_TRIALS", "10"))
FAULTS = ("overloaded", "slow", "cut", "lost")


@pytest.fixture(scope="module")
def storage() -> Iterator[Gate]:
    """Object storage on this machine, behind a gate that can fail."""
    server, gate = start_storage()
    yield gate
    gate.close()
    server.stop()


@pytest.fixture
def place(
    storage: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Iterator[str]:
    """An address of its own for every test, with a cache of its own."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": storage.url,
        "EAGLENET_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket, "FRESH_SECONDS", 0.0)
    storage.choose = lambda method, path: None
    yield f"s3://bucket/{abs(hash(request.node.nodeid))}"
    storage.choose = lambda method, path: None


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of plain colours."""
    folder = tmp_path_factory.mktemp("videos")
    for number, colours in enumerate((["red", "green", "blue"], ["blue"] * 4, ["green", "red"])):
        colour_video(folder / f"{number}.mp4", colours)
    return folder


def index(videos: Path, store: object, **options: Any) -> IndexReport:
    chosen = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0, **options)
    return index_videos([videos], str(store), "bag", method=BagMethod(), options=chosen)


def require_same(store: str, other: Path) -> None:
    """The same rows, none twice, and the same hits."""
    tables = [open_store(each).tables() for each in (store, other)]
    keys = [sorted(table.clip_keys()) for table in tables]
    assert keys[0] == keys[1]
    assert len(keys[0]) == len(set(keys[0])) == NUM_CLIPS
    rows = [table.read_clips(keys[0]) for table in tables]
    assert np.array_equal(rows[0].coarse, rows[1].coarse)
    assert np.array_equal(rows[0].records, rows[1].records)
    engines = [Engine.open(each, BagMethod()) for each in (store, other)]
    for query in ("red", "a blue car"):
        # Clips with equal scores stand in the order in which they were stored.
        scores = [
            {
                hit.clip_id: (hit.score, hit.coarse_score, hit.moment)
                for hit in engine.search(query, 20, keep_duplicates=True)
            }
            for engine in engines
        ]
        assert scores[0] == scores[1]
    clip = engines[1].search("red", k=1)[0].clip_id
    assert engines[0].thumbnail(clip) == engines[1].thumbnail(clip)


@pytest.fixture(scope="module")
def local(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same videos in a store on the disk."""
    store = tmp_path_factory.mktemp("local") / "store"
    index(videos, store)
    return store


def test_a_store_on_object_storage_answers_as_one_in_a_folder(
    place: str, videos: Path, local: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    shutil.copy(videos / "0.mp4", few)
    (few / "0.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\na walrus says hello\n")
    assert index(few, place).indexed == 1
    reader = Engine.open(place, BagMethod())
    before = len(reader.search("red", k=20, keep_duplicates=True))
    assert "walrus" in str(reader.search("walrus", k=1, modalities="speech")[0])
    report = index(videos, place, drop_missing=True)
    assert (report.indexed, report.aliases, report.clips) == (2, 1, NUM_CLIPS)
    assert len(reader.search("red", k=20, keep_duplicates=True)) == NUM_CLIPS > before
    shutil.rmtree(few)
    assert index(videos, place).unchanged == 3
    require_same(place, local)
    assert reader.info()["clips"] == NUM_CLIPS
    assert repair(place) == NUM_CLIPS
    assert verify(place).clips == NUM_CLIPS


def test_a_bank_in_object_storage_levels_as_one_in_a_folder(
    place: str, videos: Path, tmp_path: Path
) -> None:
    sentences = ["red", "a blue car", "green ball"]
    index(videos, tmp_path / "store", hubness=sentences)
    index(videos, place)
    index(videos, place, hubness=sentences)
    require_same(place, tmp_path / "store")
    stores = [open_store(each) for each in (place, tmp_path / "store")]
    assert stores[0].manifest.hubness == stores[1].manifest.hubness is not None
    assert repair(place) == verify(place).clips == NUM_CLIPS
    found = [store.snapshot() for store in stores]
    assert found[0].levels is not None
    assert found[1].levels is not None
    assert sorted(found[0].levels.tolist()) == sorted(found[1].levels.tolist())
    index(videos, place, hubness="off")
    assert open_store(place).snapshot().levels is None
    assert verify(place).clips == NUM_CLIPS


@pytest.mark.slow
def test_faults_of_storage_change_nothing_but_the_time_it_takes(
    place: str, videos: Path, local: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "COMMIT_CLIPS", 5)
    storage.choose = at_random(3, 0.08, FAULTS)
    with suppress(StoreError):
        index(videos, place)
    storage.choose = lambda method, path: None
    assert index(videos, place).clips == NUM_CLIPS
    require_same(place, local)


def test_a_conditional_write_whose_answer_is_lost_is_known_as_our_own(
    place: str, storage: Gate
) -> None:
    folder = ObjectFolder(place)
    lost = iter(["lost"])
    storage.choose = lambda method, path: next(lost, None) if method == "PUT" else None
    tag = folder.write_if("one", b"mine", None)
    assert folder.read("one") == (b"mine", tag)
    lost = iter(["lost"])
    tag = folder.write_if("one", b"mine again", tag)
    assert folder.read("one") == (b"mine again", tag)
    with pytest.raises(ChangedObjectError, match=f"{place}/one: another writer was faster"):
        folder.write_if("one", b"another", None)
    assert storage.seen["lost"] >= 2


def test_one_writer_at_a_time_and_a_dead_one_is_replaced(
    place: str, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    folder = ObjectFolder(place)
    with (
        held_lease(folder) as first,
        pytest.raises(StoreError, match="is being written to by another eaglenet"),
        held_lease(folder),
    ):
        pass
    first.require()
    # One whose holder died: nobody renews it.
    folder.write(lease.LEASE, b'{"holder": "process 1 on another", "nonce": "x"}')
    begun = time.monotonic()
    with held_lease(folder) as second:
        assert time.monotonic() - begun >= 1.4
        second.require()
        # Taken away, as after a pause of this process that was too long.
        folder.write(lease.LEASE, b'{"holder": "process 2 on another", "nonce": "y"}')
        time.sleep(1.0)
        with pytest.raises(StoreError, match=r"writer.lease could not be renewed"):
            second.require()


@pytest.mark.slow
def test_a_writer_that_lost_its_lease_cannot_publish(
    place: str, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(videos, place)
    store = open_store(place)
    with store.hold():
        tables = store.tables()
        store._lease._renewed = -1000.0  # type: ignore[attr-defined]
        line = WordRow("x", "x", 0.0, 1.0, "speech", "", "a", "a")
        for write in (
            lambda: tables.remove_files(["x"]),
            lambda: tables.set_path("x", "y"),
            lambda: tables.words().add_lines([line]),
        ):
            with pytest.raises(StoreError, match="another writer took it"):
                write()


@pytest.mark.slow
def test_a_damaged_local_copy_is_fetched_again(place: str, videos: Path, tmp_path: Path) -> None:
    index(videos, place)
    expected = Engine.open(place, BagMethod()).search("red", k=20, keep_duplicates=True)
    copy = next((tmp_path / "cache" / "stores").glob("*/vectors-*.f32"))
    content = bytearray(copy.read_bytes())
    content[17] ^= 255
    copy.write_bytes(content)
    gc.collect()  # Whoever still has it open has compared it.
    assert Engine.open(place, BagMethod()).search("red", k=20, keep_duplicates=True) == expected
    next((tmp_path / "cache" / "stores").glob("*/rows-*.npz")).write_bytes(b"torn")
    assert Engine.open(place, BagMethod()).search("red", k=20, keep_duplicates=True) == expected


@pytest.mark.slow
def test_the_local_copies_have_a_bound(
    place: str, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(videos, place)
    Engine.open(place, BagMethod())
    size = copied_bytes(tmp_path)
    index(videos, f"{place}-other")
    monkeypatch.setenv("EAGLENET_CACHE_BYTES", str(size + 1000))
    Engine.open(f"{place}-other", BagMethod())
    assert len(list((tmp_path / "cache" / "stores").iterdir())) == 1
    assert size - 1000 < copied_bytes(tmp_path) <= size + 1000
    monkeypatch.setenv("EAGLENET_CACHE_BYTES", "100")
    with pytest.raises(StoreError, match="set EAGLENET_CACHE_BYTES to more"):
        Engine.open(place, BagMethod())


def copied_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "cache" / "stores").glob("*/*"))


@pytest.mark.slow
def test_a_piece_that_is_not_as_it_was_written_is_named(place: str, videos: Path) -> None:
    index(videos, place)
    folder = ObjectFolder(place)
    found = next(
        entry.url.removeprefix(place + "/") for entry in folder.list() if "vectors-" in entry.url
    )
    folder.write(found, b"something else")
    with pytest.raises(StoreError, match=rf"{place}/snapshot/vectors-.*not as it was written"):
        Engine.open(place, BagMethod())


def test_small_pieces_are_merged_and_every_byte_stays(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LARGE", 64)
    folder, whole, found = ObjectFolder(place), b"", ()
    generator = np.random.default_rng(0)
    for _ in range(40):
        part = generator.bytes(int(generator.integers(1, 9)))
        whole += part
        found = pieces.add(folder, "records-1.bin", found, part)
    assert pieces.from_json(pieces.to_json(found)) == found
    assert len(found) <= 10
    source = pieces.RemoteBytes(folder, found)
    for start, end in ((0, len(whole)), (60, 70), (len(whole) - 1, len(whole)), (3, 3)):
        buffer = bytearray(end - start)
        assert source.read_into([(start, memoryview(buffer))])
        assert bytes(buffer) == whole[start:end]
    assert not source.read_into([(len(whole) - 2, memoryview(bytearray(3)))])


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[s3\]'"):
        open_store("s3://bucket/name")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_readers_and_a_writer_at_once_with_faults_never_see_a_wrong_answer(
    seed: int, place: str, videos: Path, local: Path, storage: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(commit, "COMMIT_CLIPS", 3)
    right = {
        hit.clip_id: hit
        for hit in Engine.open(local, BagMethod()).search("red", k=20, keep_duplicates=True)
    }
    before = sum(storage.seen[fault] for fault in FAULTS)
    storage.choose = at_random(seed, 0.05, FAULTS)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            try:
                index(videos, place)
                return
            except StoreError:
                continue

    def read() -> int:
        """Hits, all of them right; none where the storage refused."""
        try:
            hits = Engine.open(place, BagMethod()).search("red", k=20, keep_duplicates=True)
        except StoreError:
            return 0
        for hit in hits:
            expected = right[hit.clip_id]
            assert (hit.score, hit.moment) == (expected.score, expected.moment)
        return len(hits)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            read()
        # Faults go on; a test in which every read was refused would say nothing.
        assert any(read() == NUM_CLIPS for _ in range(20))
        assert sum(storage.seen[fault] for fault in FAULTS) > before
    finally:
        done.set()
        writer.join()
    storage.choose = lambda method, path: None
    require_same(place, local)


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from synthetic_store import BagMethod
from eaglenet.search.indexing import commit
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.store import lease
from eaglenet.search.store.manifest import Splitting
lease.LEASE_SECONDS, commit.COMMIT_CLIPS, commit.PAUSE_FACTOR = 1.5, 3, 0.0
options = IndexOptions(splitting=Splitting(3.0, 1.0), workers=0)
index_videos([sys.argv[2]], sys.argv[3], "bag", method=BagMethod(), options=options,
             on_progress=lambda progress: print("told", flush=True))
"""


@pytest.mark.slow
def test_writers_killed_at_random_while_storage_fails_leave_every_row_once(
    place: str, videos: Path, local: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    for trial in range(KILLS):
        storage.choose = at_random(trial, 0.05, FAULTS)
        here = str(Path(__file__).parents[1])
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, here, str(videos), place], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(chance.choice([0, 0, 1, 2])):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 4.0))
        process.kill()
        process.communicate()
    storage.choose = lambda method, path: None
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    assert index(videos, place).clips == NUM_CLIPS
    require_same(place, local)
    assert verify(place).clips == NUM_CLIPS
