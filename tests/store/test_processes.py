"""Several processes: kills, one writer at a time, readers during a writer."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from index_run import Report, found, index
from made_store import CLIPS, changes_of, fill, make_manifest, path_of

import processes
from eaglenet.core.errors import StoreError
from eaglenet.store import repair
from eaglenet.store.disk import DamageError
from eaglenet.store.records import Changes
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore


def kill_trial(folder: Path, seed: int) -> None:
    """Kill an index run at a random moment; everything it reported must be there."""
    folder.mkdir()
    store, report = folder / "store", folder / "reported"
    run = processes.start(lambda: index(store, 60, Report(str(report))))
    chance = random.Random(seed)
    while not report.exists() and processes.is_running(run):
        time.sleep(0.005)
    time.sleep(chance.random() * 0.6)
    processes.kill(run)
    processes.wait(run)
    reported_files = report.read_text().split()
    if reported_files:
        assert found(store) >= set(reported_files)
    index(store, 8)
    assert found(store) == {path_of(number) for number in range(8)}
    LocalStore.open(store).verify()


def test_a_kill_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    for seed in range(4):
        kill_trial(tmp_path / str(seed), seed)


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    for seed in range(50):
        kill_trial(tmp_path / str(seed), seed)


def test_several_readers_see_whole_versions_while_a_writer_commits(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, 1)

    def read() -> None:
        seen: list[int] = [0]
        while len(set(seen)) < 6:
            seen.append(len(found(store)))
            assert seen[-1] >= seen[-2], seen

    readers = [processes.start(read) for _ in range(3)]
    with LocalStore.write(store, make_manifest()) as writer:
        number = 1
        while any(map(processes.is_running, readers)):
            writer.commit(changes_of(number))
            number += 1
            time.sleep(0.02)
    assert [processes.wait(reader) for reader in readers] == [0] * 3


def test_a_store_is_verified_while_a_writer_commits_and_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that has changed is verified again; it is not called damaged."""
    folder = tmp_path / "store"
    store = fill(folder, 3)
    verify_segment, number = repair._verify_segment, itertools.count(3)

    def commit(*arguments: Any) -> None:
        monkeypatch.setattr(repair, "_verify_segment", verify_segment)
        with LocalStore.write(folder) as writer:
            writer.commit(changes_of(next(number)))
            writer.commit(Changes(removed_files=[path_of(1)]))
            writer.finish()  # Removes the segment, which has many removed clips.

    def snapshot() -> Snapshot:
        monkeypatch.setattr(store, "snapshot", make_snapshot)
        version = make_snapshot()
        with LocalStore.write(folder) as writer:
            writer.commit(changes_of(next(number)))
        return version

    make_snapshot = store.snapshot
    monkeypatch.setattr(store, "snapshot", snapshot)
    monkeypatch.setattr(repair, "_verify_segment", commit)
    assert store.verify().clips == 4 * CLIPS
    path = next((folder / "segments").glob("*.features"))
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamageError, match="features"):
        store.verify()


def test_a_store_that_changes_during_every_attempt_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, numbers = fill(tmp_path, 2), itertools.count(2)

    def fail(snapshot: Snapshot) -> None:
        with LocalStore.write(tmp_path) as writer:
            writer.commit(changes_of(next(numbers)))
        raise DamageError("a segment is missing")

    monkeypatch.setattr(repair, "verify", fail)
    with pytest.raises(OutdatedError, match="while nothing indexes"):
        store.verify()


def test_a_reader_does_not_wait_for_an_open_transaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, 2)
    with LocalStore.write(store) as writer, writer.database.writing() as connection:
        connection.execute("DELETE FROM files")
        began = time.monotonic()
        assert len(found(store)) == 2
        assert time.monotonic() - began < 15  # One that waits does for 30 s.
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, 1)
    with LocalStore.write(store):
        with pytest.raises(StoreError, match=r"is being written to by another eaglenet"):
            LocalStore.write(store).__enter__()
        (store / "writer.lock").unlink()
        with pytest.raises(StoreError, match=r"is being written to by another eaglenet"):
            LocalStore.write(store).__enter__()
    with LocalStore.write(store) as writer:
        assert len(writer.files()) == 1


def test_a_reader_that_was_open_sees_new_commits_and_a_replaced_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", 2)
    before, stamp = store.snapshot(), store.stamp()
    with LocalStore.write(tmp_path / "store") as writer:
        writer.commit(changes_of(2))
    assert store.stamp() != stamp
    assert len(store.snapshot()) == 3 * CLIPS
    assert len(before) == 2 * CLIPS
    fill(tmp_path / "other", 1)
    (tmp_path / "store").rename(tmp_path / "aside")
    stamp = store.snapshot().version
    with pytest.raises(OSError, match=r"store\.db"):
        store.stamp()
    (tmp_path / "other").rename(tmp_path / "store")
    assert store.stamp()[1] is None  # type: ignore[index]
    assert len(LocalStore.open(tmp_path / "store").snapshot()) == CLIPS


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", 3)
    snapshot, problems = store.snapshot(), list[BaseException]()

    def read() -> None:
        try:
            for row in range(snapshot.num_rows):
                assert snapshot.row(snapshot.clips([row])[0].id) == row
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    with LocalStore.write(tmp_path / "store") as writer:
        for number in range(3, 9):
            writer.commit(changes_of(number))
        writer.commit(Changes(removed_files=[path_of(8)]))
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_opens_its_own_connection(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(store.snapshot().clips([0])) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(store.snapshot()) == CLIPS


@pytest.mark.parametrize("kind", ["vectors", "codes", "labels"])
def test_a_segment_that_a_writer_removes_while_it_is_opened_is_opened_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    fill(folder, 3)
    store, read_status = LocalStore.open(folder), Path.stat

    def remove_after(path: Path, **options: Any) -> os.stat_result:
        status = read_status(path, **options)
        if path.suffix == f".{kind}":
            monkeypatch.setattr(Path, "stat", read_status)
            with LocalStore.write(folder) as writer:
                writer.commit(Changes(removed_files=[path_of(0), path_of(1)]))
                writer.finish()
            assert not path.exists()
        return status

    monkeypatch.setattr(Path, "stat", remove_after)
    assert len(store.snapshot()) == CLIPS
    assert store.usage()
