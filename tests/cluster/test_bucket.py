"""A store on object storage holds what a local one does, whatever goes wrong in between."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_store import CLIPS, changes_of, content_of, make_batch, make_file, make_manifest, path_of

from eaglenet.cluster import bucket, mirror
from eaglenet.cluster import log as chunks
from eaglenet.cluster import log as lease
from eaglenet.cluster.bucket import BucketStore
from eaglenet.cluster.log import HEAD, Head
from eaglenet.core.errors import StoreError, UnreachableError, UsageError
from eaglenet.store import writer as writer_module
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.object_storage import (
    ChangedObjectError,
    MissingObjectError,
    ObjectError,
    ObjectFolder,
)
from eaglenet.store.records import Changes, LineQuery
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore, open_store
from object_storage import Gate, at_random
from sampling import one_in

FILES = 6
KILLS = int(os.environ.get("EAGLENET_KILL_TRIALS", "10"))
FAULTS = ("overloaded", "slow", "cut", "lost")


def fill(location: object, kind: Any = BucketStore, numbers: range = range(FILES)) -> None:
    with kind.write(str(location), make_manifest()) as writer:
        for number in numbers:
            writer.commit(changes_of(number))
        writer.finish()


def contents_of(store: Any) -> dict[str, Any]:
    """Everything that can be read from a store, in an order that does not depend on its rows."""
    snapshot: Snapshot = store.snapshot()
    rows = np.arange(snapshot.num_rows)
    if snapshot.visible is not None:
        rows = rows[snapshot.visible]
    vectors, features = snapshot.vectors_at(rows), snapshot.features_at(rows)
    offsets = snapshot.hubness_offsets
    clips = {
        clip.id: (
            clip.start,
            clip.end,
            vectors[index].tobytes(),
            features[index].tobytes(),
            snapshot.thumbnail(clip.row),
            None if offsets is None else float(offsets[clip.row]),
        )
        for index, clip in enumerate(snapshot.clips(rows))
    }
    lines = snapshot.find_lines(LineQuery(terms=("red", "dogs", "ticket")), 1000)
    return {
        "clips": clips,
        "files": sorted(store.files(), key=lambda file: file.path),
        "lines": sorted((hit.content, hit.kind, hit.line.text) for hit in lines),
        "bank": snapshot.hubness_bank,
    }


def require_same(location: str, folder: Path) -> None:
    assert contents_of(open_store(location)) == contents_of(LocalStore.open(folder))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files in a local store."""
    folder = tmp_path_factory.mktemp("local") / "store"
    fill(folder, LocalStore)
    return folder


def test_a_store_on_object_storage_holds_what_a_local_one_does(
    location: str, local: Path, tmp_path: Path
) -> None:
    assert not BucketStore.exists(location)
    fill(location, numbers=range(2))
    reader = open_store(location)
    before = reader.stamp()
    assert len(reader.snapshot()) == 2 * CLIPS
    fill(location, numbers=range(2, FILES))
    assert reader.stamp() != before
    assert len(reader.snapshot()) == FILES * CLIPS
    require_same(location, local)
    shutil.rmtree(tmp_path / "cache")
    require_same(location, local)
    assert reader.verify().clips == FILES * CLIPS
    assert sum(reader.usage().values()) > FILES * CLIPS * make_manifest().layout.dtype.itemsize
    with BucketStore.write(location) as writer:
        assert {file.path for file in writer.files()} == {path_of(n) for n in range(FILES)}
        assert writer.clip_numbers(content_of(1)) == frozenset(range(CLIPS))
        assert writer.incomplete_contents() == {}
        assert len(writer.sources()) == FILES


def test_hubness_is_corrected_as_in_a_local_store(location: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    banks = [
        HubnessBank("of a test", make_batch(number).vectors, 1.0 + generator.random(), 20.0, ("a",))
        for number in (90, 91)
    ]
    for place, kind in ((location, BucketStore), (tmp_path / "store", LocalStore)):
        with kind.write(str(place), make_manifest(), banks[0]) as writer:  # type: ignore[attr-defined]
            writer.commit(changes_of(0))
            writer.set_hubness(banks[1])
            writer.commit(changes_of(1))
            writer.finish()
    require_same(location, tmp_path / "store")
    assert contents_of(open_store(location))["bank"] == banks[1]
    with BucketStore.write(location) as writer:
        writer.set_hubness(None)
    assert open_store(location).snapshot().hubness_offsets is None
    assert open_store(location).verify().clips == 2 * CLIPS


def remove(writer: Any, numbers: range) -> None:
    writer.commit(Changes(removed_files=[path_of(number) for number in numbers]))


def test_removed_files_are_gone_and_their_space_is_reclaimed(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "COPY_CLIPS", 7)
    monkeypatch.setattr(bucket, "COPY_LINES", 4)
    for place, kind in ((location, BucketStore), (tmp_path / "store", LocalStore)):
        fill(place, kind)
        with kind.write(str(place)) as writer:  # type: ignore[attr-defined]
            remove(writer, range(1))
            writer.finish()
    require_same(location, tmp_path / "store")
    folder, size = ObjectFolder(location), make_manifest().layout.dtype.itemsize
    before, reader = Head.read(folder), open_store(location).snapshot()
    assert chunks.length_of(before.parts["features"]) == FILES * CLIPS * size
    with LocalStore.write(tmp_path / "store") as writer:
        remove(writer, range(2, 5))
        writer.finish()
    with BucketStore.write(location) as writer:
        remove(writer, range(2, 5))
        assert writer.finish() == 2 * CLIPS
    head = Head.read(folder)
    assert head.id != before.id
    assert chunks.length_of(head.parts["features"]) == 2 * CLIPS * size
    require_same(location, tmp_path / "store")
    assert open_store(location).verify().lines == 6
    # Of the versions before, one is left; readers of an earlier one are told to look again.
    with BucketStore.write(location) as writer:
        writer.commit(changes_of(7))
        writer.commit(changes_of(8))
        writer.finish()
    with pytest.raises(OutdatedError):
        reader.features_at(np.arange(4))
    names = {entry.url.removeprefix(f"{location}/") for entry in folder.list()}
    assert Head.read(folder).names | {HEAD} <= names
    assert len(names) <= 2 * len(Head.read(folder).names) + 4


def test_every_copy_has_the_same_rows_however_it_was_made(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards and their front compare rows, and each machine has a copy of its own."""
    monkeypatch.setattr(bucket, "REWRITE_FRACTION", 1.0)

    def rows() -> list[tuple[str, int]]:
        snapshot = open_store(location).snapshot()
        visible = np.arange(snapshot.num_rows)
        if snapshot.visible is not None:
            visible = visible[snapshot.visible]
        return [(clip.id, clip.row) for clip in snapshot.clips(visible)]

    chance = random.Random(3)
    for trial in range(6):
        with BucketStore.write(location, make_manifest()) as writer:
            for _ in range(chance.randrange(1, 4)):
                number = chance.randrange(9)
                if chance.random() < 0.3:
                    remove(writer, range(number, number + 2))
                elif chance.random() < 0.2:
                    writer.commit(Changes([make_batch(number, [0, 2])]))
                else:
                    writer.commit(changes_of(number))
            if chance.random() < 0.8:
                writer.finish()
        followed = rows()
        monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / f"cache {trial}"))
        assert rows() == followed
        monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))


def test_a_commit_is_in_the_log_only_if_it_can_be_applied(location: str) -> None:
    fill(location)
    before = Head.read(ObjectFolder(location))
    with BucketStore.write(location) as writer:
        with pytest.raises((StoreError, OverflowError, TypeError)):
            writer.commit(Changes(files=[make_file(9, size=2**70)]))
        batch = make_batch(9)
        with pytest.raises(StoreError, match="another layout"):
            writer.commit(Changes([replace(batch, vectors=batch.vectors[:, :5])]))
        assert Head.read(ObjectFolder(location)).parts == before.parts
        writer.commit(changes_of(7))
    assert len(open_store(location).snapshot()) == (FILES + 1) * CLIPS


def test_a_copy_whose_process_was_killed_goes_on_where_it_was(
    location: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two operations, and before each transaction of one."""
    monkeypatch.setattr(mirror, "MERGE_CLIPS", 1)
    fill(location)
    transaction, calls = mirror.MirrorWriter.transaction, 0

    def interrupted(self: mirror.MirrorWriter) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise KeyboardInterrupt
        return transaction(self)

    open_store(location).mirror.drop()  # type: ignore[attr-defined]
    monkeypatch.setattr(mirror.MirrorWriter, "transaction", interrupted)
    for _ in range(40):
        try:
            assert len(open_store(location).snapshot()) == FILES * CLIPS
            break
        except KeyboardInterrupt:
            continue
    assert calls > 2 * FILES
    monkeypatch.setattr(mirror.MirrorWriter, "transaction", transaction)
    require_same(location, local)


def test_faults_of_the_storage_change_nothing_but_the_time(
    location: str, local: Path, storage: Gate
) -> None:
    storage.choose = at_random(3, 0.08, FAULTS)
    for _ in range(5):
        with suppress(StoreError):
            fill(location)
            break
    storage.choose = lambda method, path: None
    fill(location)
    require_same(location, local)
    assert open_store(location).verify().clips == FILES * CLIPS


def test_a_commit_whose_reply_is_lost_is_stored_once(location: str, storage: Gate) -> None:
    fill(location, numbers=range(1))
    with BucketStore.write(location) as writer:
        lost = iter(["lost"])
        storage.choose = lambda method, path: (
            next(lost, None) if method == "PUT" and path.endswith(HEAD) else None
        )
        writer.commit(changes_of(1))
        writer.commit(changes_of(2))
    assert next(lost, None) is None
    snapshot = open_store(location).snapshot()
    assert len(snapshot) == snapshot.num_rows == 3 * CLIPS


def test_a_conditional_write_whose_reply_is_lost_is_recognised(
    location: str, storage: Gate
) -> None:
    folder = ObjectFolder(location)
    lost = iter(["lost"])
    storage.choose = lambda method, path: next(lost, None) if method == "PUT" else None
    tag = folder.write_if("one", b"mine", None)
    assert folder.read("one") == (b"mine", tag)
    lost = iter(["lost"])
    tag = folder.write_if("one", b"mine again", tag)
    assert folder.read("one") == (b"mine again", tag)
    with pytest.raises(ChangedObjectError, match=f"{location}/one: another writer was faster"):
        folder.write_if("one", b"another", None)
    assert storage.seen["lost"] >= 2


def test_one_writer_at_a_time_and_a_dead_one_is_replaced(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renewed after a second; on a busy machine perhaps later.
    monkeypatch.setattr(lease, "LEASE_SECONDS", 6.0)
    folder = ObjectFolder(location)
    with lease.hold_lease(folder) as first:
        with (
            pytest.raises(StoreError, match="is being written to by another eaglenet"),
            lease.hold_lease(folder),
        ):
            pass
        first.require()
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    # A lease whose holder died: nobody renews it.
    folder.write(lease.LEASE, b'{"holder": "process 1 on another", "nonce": "x"}')
    start = time.monotonic()
    with lease.hold_lease(folder) as second:
        assert time.monotonic() - start >= 1.4
        second.require()
        # Taken over, as after a pause of this process that was too long.
        folder.write(lease.LEASE, b'{"holder": "process 2 on another", "nonce": "y"}')
        second._thread.join(60)  # Until it notices, at the next renewal.
        with pytest.raises(StoreError, match=r"writer.lease could not be renewed"):
            second.require()


def test_a_lease_is_released_while_it_is_renewed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next writer would wait until it is over."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 3.0)
    folder, is_renewing = ObjectFolder(location), threading.Event()
    write = folder.write_if

    def renew_slowly(name: str, content: bytes, tag: str | None) -> str:
        new_tag = write(name, content, tag)
        if tag is not None:
            is_renewing.set()
            time.sleep(0.3)
        return new_tag

    monkeypatch.setattr(folder, "write_if", renew_slowly)
    with lease.hold_lease(folder):
        assert is_renewing.wait(60)
    with pytest.raises(MissingObjectError):
        folder.read(lease.LEASE)


def test_a_writer_that_was_replaced_cannot_commit(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that does not notice that it lost its lease."""
    fill(location)
    with BucketStore.write(location) as slow:
        ObjectFolder(location).remove([lease.LEASE])
        with BucketStore.write(location):
            monkeypatch.setattr(slow.lease, "require", lambda: None)
            with pytest.raises(StoreError, match="another writer was faster"):
                slow.commit(changes_of(9))
    assert len(open_store(location).snapshot()) == FILES * CLIPS
    with BucketStore.write(location) as writer:
        writer.lease._renewal_time = -1000.0
        for change in (
            lambda: writer.commit(changes_of(9)),
            lambda: writer.set_hubness(HubnessBank("x", make_batch(1).vectors, 1.0, 1.0)),
        ):
            with pytest.raises(StoreError, match="another writer took it"):
                change()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for offset in range(len(content) // 2, len(content) // 2 + 40):
        content[offset % len(content)] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("part", one_in(2, ["vectors", "codes", "labels", "features"]))
def test_a_damaged_local_copy_is_made_again_during_a_search(
    part: str, location: str, local: Path, tmp_path: Path
) -> None:
    fill(location)
    (path,) = (tmp_path / "cache" / "stores").glob(f"*/segments/*.{part}")
    damage(path)
    uses: dict[str, Callable[[Snapshot], Any]] = {
        "vectors": lambda snapshot: list(snapshot.vector_parts()),
        "codes": lambda snapshot: snapshot.codes(),
        "labels": lambda snapshot: snapshot.content_ids,
        "features": lambda snapshot: snapshot.features_at(np.arange(snapshot.num_rows)),
    }
    with pytest.raises(OutdatedError):
        uses[part](open_store(location).snapshot())
    uses[part](open_store(location).snapshot())
    require_same(location, local)


@pytest.mark.parametrize("content", one_in(2, [b"torn", b"", None]))
def test_a_local_copy_without_its_database_is_made_again(
    content: bytes | None, location: str, local: Path, tmp_path: Path
) -> None:
    fill(location)
    (path,) = (tmp_path / "cache" / "stores").glob("*/store.db")
    path.unlink() if content is None else path.write_bytes(content)
    require_same(location, local)


def test_two_processes_may_make_room_at_once(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(location)
    (first,) = (path for path in (tmp_path / "cache" / "stores").iterdir() if path.is_dir())
    measure = mirror._size

    def measure_and_remove(folder: Path) -> int:
        size = measure(folder)
        if folder == first:
            shutil.rmtree(folder)  # As another process does.
        return size

    monkeypatch.setattr(mirror, "_size", measure_and_remove)
    fill(f"{location}-other")
    assert not first.exists()
    assert len(open_store(f"{location}-other").snapshot())


def test_local_copies_stay_within_their_limit(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "stores"
    fill(location)
    (first,) = (path for path in folder.iterdir() if path.is_dir())
    size = mirror._size(first)
    fill(f"{location}-other")
    assert mirror._size(folder) > 1.5 * size
    monkeypatch.setenv(mirror.BYTES_VARIABLE, str(int(1.5 * size)))
    open_store(f"{location}-other").snapshot()
    assert not first.exists()
    assert size / 2 < mirror._size(folder) <= 1.5 * size
    monkeypatch.setenv(mirror.BYTES_VARIABLE, "100")
    with pytest.raises(StoreError, match="increase EAGLENET_CACHE_BYTES"):
        open_store(location).snapshot()
    monkeypatch.setenv(mirror.BYTES_VARIABLE, "many")
    with pytest.raises(UsageError, match="a number of bytes, not 'many'"):
        open_store(location).snapshot()


def test_copies_that_another_process_removes_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "copy" / name / "inner").mkdir(parents=True)

    def remove_and_measure(status: os.stat_result) -> int:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return 1

    monkeypatch.setattr(mirror, "disk_bytes", remove_and_measure)
    assert mirror._size(tmp_path / "copy") == 1
    assert mirror._last_use(tmp_path / "copy") == 0.0


@pytest.mark.parametrize("part", one_in(2, chunks.PARTS))
@pytest.mark.parametrize("change", ["replaced", pytest.param("removed", marks=pytest.mark.slow)])
def test_damaged_objects_are_named_and_a_repair_keeps_the_rest(
    part: str, change: str, location: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MERGED_BYTES", 0)
    fill(location)
    folder = ObjectFolder(location)
    name = Head.read(folder).parts[part][2].name
    if change == "removed":
        folder.remove([name])
    else:
        folder.write(name, b"x" * 100)
    with pytest.raises(StoreError, match=f"{location}/{name}.* eaglenet store repair --store"):
        open_store(location).verify()
    repaired = BucketStore.repair(location)
    assert repaired.clips == (FILES - 1) * CLIPS
    assert open_store(location).verify().clips == (FILES - 1) * CLIPS
    assert name in str(repaired.details)
    if part == "log":
        assert f"eaglenet index /videos --store {location}" in repaired.details[-1]
    else:
        assert repaired.incomplete_files == (path_of(2),)
    fill(location)
    require_same(location, local)


def test_a_repair_of_an_intact_store_makes_the_copy_again(
    location: str, local: Path, tmp_path: Path
) -> None:
    fill(location)
    before = Head.read(ObjectFolder(location))
    repaired = BucketStore.repair(location)
    assert (repaired.clips, repaired.files, repaired.lines) == (FILES * CLIPS, FILES, 3 * FILES)
    assert repaired.incomplete_files == repaired.details == ()
    assert Head.read(ObjectFolder(location)).parts == before.parts
    require_same(location, local)


def test_a_damaged_head_is_named(location: str) -> None:
    fill(location)
    folder = ObjectFolder(location)
    content = folder.read(HEAD)[0]
    for damaged in (b"", b"[]", content[:-9], content.replace(b'"version": 7', b'"version": 8')):
        folder.write(HEAD, damaged)
        with pytest.raises(StoreError, match=f"{location}/store.json is damaged"):
            open_store(location)


def test_a_commit_is_done_although_old_objects_cannot_be_removed(
    location: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = ObjectFolder.remove

    def refuse(self: ObjectFolder, names: list[str]) -> None:
        if any(not name.endswith(lease.LEASE) for name in names):
            raise ObjectError("access denied")
        remove(self, names)  # Otherwise the next writer waits until the lease expires.

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "remove", refuse)
        with BucketStore.write(location, make_manifest()) as writer:
            for number in range(FILES):
                writer.commit(changes_of(number))
    fill(location)
    require_same(location, local)


def test_a_disk_without_room_for_the_copy_stores_nothing_by_halves(
    location: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit is published it fails, and after that it is stored."""
    fill(location, numbers=range(FILES - 2))
    append_rows = writer_module.append_rows

    def full(*arguments: Any) -> Any:
        append_rows(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    with BucketStore.write(location) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writer_module, "append_rows", full)
            with pytest.raises(StoreError, match="is full"):
                writer.commit(changes_of(FILES - 2))
        assert len(open_store(location).snapshot()) == (FILES - 2) * CLIPS
        writer.commit(changes_of(FILES - 2))
        publish = writer._publish

        def publish_and_fail(head: Head) -> None:
            publish(head)
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(writer, "_publish", publish_and_fail)
            with pytest.raises(StoreError, match="is full"):
                writer.commit(changes_of(FILES - 1))
        writer.finish()
    require_same(location, local)


def test_a_cache_folder_that_cannot_be_written_to_is_named(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(location)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        StoreError, match=r"/file/stores: .*set EAGLENET_CACHE to a writable folder"
    ):
        open_store(location).snapshot()


def test_small_chunks_are_merged_and_every_byte_stays(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MERGED_BYTES", 64)
    folder, whole = ObjectFolder(location), b""
    parts: chunks.Chunks = ()
    generator = np.random.default_rng(0)
    ends = [0]
    for _ in range(40):
        content = generator.bytes(int(generator.integers(1, 9)))
        whole += content
        ends.append(len(whole))
        parts = chunks.append(folder, "features", parts, content)
    assert len(parts) <= 10
    assert b"".join(chunk.read(folder) for chunk in parts) == whole
    spans = [*pairwise(ends), (5, 5)]
    assert chunks.read_spans(folder, parts, spans) == [whole[start:end] for start, end in spans]


def test_a_search_reads_features_with_few_requests(location: str, storage: Gate) -> None:
    fill(location)
    snapshot = open_store(location).snapshot()
    before = sum(storage.seen.values())
    snapshot.features_at(np.arange(snapshot.num_rows))
    assert sum(storage.seen.values()) - before <= 3
    before = sum(storage.seen.values())
    open_store(location).snapshot()
    assert sum(storage.seen.values()) - before <= 3


def test_other_settings_are_refused_before_anything_is_written(location: str) -> None:
    fill(location)
    before = Head.read(ObjectFolder(location))
    with (
        pytest.raises(StoreError, match="was made with model"),
        BucketStore.write(location, make_manifest(identity="2f")),
    ):
        pass
    assert Head.read(ObjectFolder(location)) == before
    with BucketStore.write(location, make_manifest(roots=("/more",))) as writer:
        assert writer.manifest.roots == ("/videos", "/more")
    assert open_store(location).manifest.roots == ("/videos", "/more")


def test_a_location_without_a_store_says_how_to_make_one(location: str) -> None:
    with pytest.raises(
        StoreError, match=f"no store at {location}; create one with: eaglenet index"
    ):
        open_store(location)
    fill(location)
    store = open_store(location)
    ObjectFolder(location).remove([HEAD])
    with pytest.raises(OSError, match="no such object"):
        store.stamp()


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[s3\]'"):
        open_store("s3://bucket/name")


def test_a_storage_that_cannot_be_reached_is_named(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglenet.store import object_storage

    monkeypatch.setattr(object_storage, "RETRY_SECONDS", 0.2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match=f"{location}/store.json: .*Try again later"):
        open_store(location)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_readers_and_a_writer_at_once_with_faults_never_see_a_wrong_answer(
    seed: int, location: str, local: Path, storage: Gate
) -> None:
    expected = contents_of(LocalStore.open(local))
    before = sum(storage.seen[fault] for fault in FAULTS)
    storage.choose = at_random(seed, 0.05, FAULTS)
    has_ended = threading.Event()

    def write() -> None:
        while not has_ended.is_set():
            with suppress(StoreError):
                fill(location)
                return

    def read() -> int:
        """Number of clips, all of them right; 0 if the storage failed."""
        try:
            contents = contents_of(open_store(location))
        except StoreError:
            return 0
        for part in ("clips", "files"):
            assert all(each in list(expected[part]) for each in contents[part])
        for name, clip in contents["clips"].items():
            assert clip == expected["clips"][name]
        assert len(contents["clips"]) % CLIPS == 0
        return len(contents["clips"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            read()
        # Faults go on; a test in which every read failed would say nothing.
        assert any(read() == FILES * CLIPS for _ in range(20))
        assert sum(storage.seen[fault] for fault in FAULTS) > before
    finally:
        has_ended.set()
        writer.join()
    storage.choose = lambda method, path: None
    require_same(location, local)


@pytest.mark.slow
def test_writers_killed_at_random_while_storage_fails_lose_nothing_they_reported(
    location: str, local: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    program = Path(__file__).with_name("fill_bucket.py")
    reported: set[int] = set()
    for trial in range(KILLS):
        storage.choose = at_random(trial, 0.05, FAULTS)
        process = subprocess.Popen(
            [sys.executable, str(program), location, str(FILES)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 1.5))
        process.kill()
        reported |= {int(line) for line in process.communicate()[0].split() if line.isdigit()}
    storage.choose = lambda method, path: None
    stored = {file.path for file in open_store(location).files()}
    assert {path_of(number) for number in reported} <= stored
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.5)
    fill(location)
    require_same(location, local)
    snapshot = open_store(location).snapshot()
    assert snapshot.num_rows == FILES * CLIPS
    assert open_store(location).verify().clips == FILES * CLIPS
    names = {entry.url.removeprefix(f"{location}/") for entry in ObjectFolder(location).list()}
    head = Head.read(ObjectFolder(location))
    assert len(names - head.names - {HEAD}) <= 3  # Those of the version before.
