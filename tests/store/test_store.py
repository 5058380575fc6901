"""Writing and reading a local store."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_store import (
    CLIPS,
    DIM,
    changes_of,
    content_of,
    fill,
    make_batch,
    make_file,
    make_lines,
    make_manifest,
    path_of,
)

from eaglenet.core.errors import StoreError, UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.store import disk, schema, segments
from eaglenet.store.disk import DATABASE
from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import Changes, ClipBatch
from eaglenet.store.segments import Segment, SegmentInfo
from eaglenet.store.snapshot import OutdatedError
from eaglenet.store.store import LocalStore, command_to_index_again


def rows_of(store: LocalStore) -> dict[str, bytes]:
    """Vectors of all clips that can be found, by clip id."""
    snapshot = store.snapshot()
    rows = np.arange(snapshot.num_rows)
    rows = rows if snapshot.visible is None else rows[snapshot.visible]
    vectors = snapshot.vectors_at(rows)
    return {
        clip.id: vector.tobytes()
        for clip, vector in zip(snapshot.clips(rows), vectors, strict=True)
    }


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    snapshot = fill(tmp_path / "store", 3).snapshot()
    batch = make_batch(1)
    clips = snapshot.clips_of_content(content_of(1))
    rows = np.array([clip.row for clip in clips])
    assert [(clip.number, clip.start, clip.end) for clip in clips] == [
        (number, 10.0 * number, 10.0 * number + 10) for number in range(CLIPS)
    ]
    assert np.array_equal(snapshot.vectors_at(rows), batch.vectors)
    assert (snapshot.features_at(rows) == batch.features).all()
    assert [snapshot.thumbnail(int(row)) for row in rows] == batch.thumbnails
    parts = list(snapshot.vector_parts(2, 7))
    assert [first for first, _ in parts] == [2]
    assert np.array_equal(parts[0][1][2:5], batch.vectors[:3])
    assert snapshot.files().paths == [[path_of(number)] for number in range(3)]
    assert snapshot.clips(rows)[2].id == f"{content_of(1)[:16]}-2"


def test_clips_are_hidden_until_their_file_is_done(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.commit(Changes([make_batch(0, [0, 1])]))
        store = LocalStore.open(folder)
        assert len(store.snapshot()) == 0
        assert writer.incomplete_contents() == {content_of(0): {0, 1}}
        assert writer.clip_numbers(content_of(0)) == {0, 1}
        writer.commit(Changes([make_batch(0, [2, 3])], [make_file(0)]))
        assert len(store.snapshot()) == CLIPS
        assert writer.incomplete_contents() == {}
        writer.commit(Changes(files=[make_file(0, status="failed")]))
        assert len(store.snapshot()) == 0


def test_clips_of_a_run_that_was_interrupted_stay_until_a_run_finishes(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.commit(Changes([make_batch(0, [0, 1])]))
    with LocalStore.write(folder) as writer:
        assert writer.clip_numbers(content_of(0)) == {0, 1}
        assert writer.finish() == 0
        assert writer.clip_numbers(content_of(0)) == frozenset()


def test_the_same_clip_is_stored_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LocalStore.write(folder, make_manifest()) as writer:
        twice = ClipBatch.concatenate([make_batch(0, [0, 1]), make_batch(0)])
        writer.commit(Changes([twice, make_batch(0)], [make_file(0)]))
        writer.commit(changes_of(0))
        assert writer.finish() == CLIPS
    assert LocalStore.open(folder).snapshot().num_rows == CLIPS


def test_a_copy_of_a_file_needs_no_clips_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 2)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(files=[make_file(0, path="/videos/copy.mp4", tags=("sea", "a"))]))
        files = store.snapshot().files()
        assert files.paths[0] == [path_of(0), "/videos/copy.mp4"]
        assert files.tags[0] == ["a", "sea"]
        writer.commit(Changes(removed_files=[path_of(0)]))
        assert len(store.snapshot()) == 2 * CLIPS
        writer.commit(Changes(removed_files=["/videos/copy.mp4"]))
        assert len(store.snapshot()) == CLIPS


def test_removed_clips_are_reclaimed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 6)
    before, old = rows_of(store), store.snapshot()
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_files=[path_of(number) for number in (1, 2, 4)]))
        assert writer.finish() == 3 * CLIPS
    removed_ids = {
        f"{content_of(number)[:16]}-{clip}" for number in (1, 2, 4) for clip in range(CLIPS)
    }
    assert rows_of(store) == {
        name: value for name, value in before.items() if name not in removed_ids
    }
    assert store.snapshot().num_rows == 3 * CLIPS
    assert not list((folder / "segments").glob("000001*"))
    store.verify()
    assert len(list(old.vector_parts())) == 1
    with pytest.raises(OutdatedError):
        old.clips(range(24))
    with LocalStore.write(folder) as writer:
        for number in range(6):
            writer.commit(changes_of(number))
        writer.finish()
    assert rows_of(store) == before
    store.verify()


def test_a_few_removed_clips_stay_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 6)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_files=[path_of(3)]))
        writer.finish()
    snapshot = store.snapshot()
    assert (snapshot.num_rows, len(snapshot)) == (6 * CLIPS, 5 * CLIPS)
    assert path_of(3) not in [path for paths in snapshot.files().paths for path in paths]
    assert not snapshot.clips_of_content(content_of(3))
    store.verify()


def test_many_segments_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CAPACITY", 10)
    monkeypatch.setattr(segments, "BLOCK", 4)
    store = fill(tmp_path / "store", 7)
    snapshot = store.snapshot()
    assert [len(segment) for segment in snapshot.segments] == [10, 10, 8]
    expected = np.concatenate([make_batch(number).vectors for number in range(7)])
    rows = np.array([27, 0, 9, 10, 19, 20])
    assert np.array_equal(snapshot.vectors_at(rows), expected[rows])
    parts = list(snapshot.vector_parts(5, 25))
    assert [first for first, _ in parts] == [5, 10, 20]
    assert np.array_equal(np.concatenate([part for _, part in parts]), expected[5:25])
    codes = snapshot.codes()
    assert codes.nearest(expected[13], 1).tolist() == [13]
    halves = [snapshot.codes(0, 13), snapshot.codes(13, 28)]
    assert [part.edges[-1] for part in halves] == [13, 15]
    with LocalStore.write(tmp_path / "store") as writer:
        writer.commit(Changes(removed_files=[path_of(3), path_of(4)]))
        writer.finish()
    store.verify()
    assert len(store.snapshot()) == 5 * CLIPS


def test_threads_that_open_a_store_at_once_see_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order: the second begins while the first opens a segment, and takes longer."""
    monkeypatch.setattr(segments, "CAPACITY", 10)
    fill(tmp_path / "store", 7)
    store, is_opening = LocalStore.open(tmp_path / "store"), threading.Event()
    init, to_values = Segment.__init__, SegmentInfo.to_values

    def open_slowly(self: Segment, folder: Path, info: SegmentInfo, manifest: Manifest) -> None:
        if info.id == 2:
            is_opening.set()
            time.sleep(0.1)
        init(self, folder, info, manifest)

    def compare_slowly(self: SegmentInfo) -> tuple[Any, ...]:
        time.sleep(0.2)
        return to_values(self)

    monkeypatch.setattr(Segment, "__init__", open_slowly)
    monkeypatch.setattr(SegmentInfo, "to_values", compare_slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.snapshot)
        assert is_opening.wait(60)
        second = threads.submit(store.snapshot)
    assert [first.result().num_rows, second.result().num_rows] == [7 * CLIPS, 7 * CLIPS]


@pytest.mark.parametrize("kind", ["vectors", "features"])
def test_reads_are_announced_in_all_segments_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(segments, "CAPACITY", 10)
    snapshot = fill(tmp_path / "store", 7).snapshot()
    events: list[tuple[str, list[int]]] = []

    def record(name: str) -> None:
        call = getattr(Segment, name)

        def record_call(segment: Segment, *arguments: Any) -> Any:
            events.append((name, arguments[-1].tolist()))
            return call(segment, *arguments)

        monkeypatch.setattr(Segment, name, record_call)

    record("read_ahead")
    record(f"{kind}_at")
    rows = np.array([27, 0, 9, 10, 19, 20, 1, 11])
    getattr(snapshot, f"{kind}_at")(rows)
    parts = [[0, 1, 9], [0, 1, 9], [0, 7]]
    assert events == [("read_ahead", part) for part in parts] + [
        (f"{kind}_at", part) for part in parts
    ]
    events.clear()
    getattr(snapshot, f"{kind}_at")(rows[:3])
    assert "read_ahead" not in dict(events)


def test_a_snapshot_compares_what_is_new_only(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 2)
    first = store.snapshot()
    list(first.vector_parts())
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_files=[path_of(0)]))
    assert store.snapshot().segments[0] is first.segments[0]


def test_rows_of_contents(tmp_path: Path) -> None:
    snapshot = fill(tmp_path / "store", 4).snapshot()
    files = snapshot.files()
    mask = snapshot.rows_of_contents(files.ids[[1, 3]])
    assert np.flatnonzero(mask).tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    assert snapshot.files([int(files.ids[2])]).paths == [[path_of(2)]]


def test_clip_ids(tmp_path: Path) -> None:
    snapshot = fill(tmp_path / "store", 5).snapshot()
    for row in range(snapshot.num_rows):
        name = snapshot.clips([row])[0].id
        assert snapshot.row(name) == row
        assert name in snapshot
        short = snapshot.short_id(name)
        assert len(short) < len(name)
        assert snapshot.full_id(short) == name
        assert snapshot.row(short) == snapshot.row(name)
    assert "0" * 16 + "-0" not in snapshot
    with pytest.raises(UsageError, match="no clip '3f9c-0'"):
        snapshot.row("3f9c-0")
    assert snapshot.full_id("what-0") == "what-0"


def test_an_ambiguous_id_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LocalStore.write(folder, make_manifest()) as writer:
        for ending in "ab":
            content = "abcd" * 4 + ending * 16
            batch = make_batch(1)
            batch = ClipBatch(
                [(content[: 15] + ending + content[16:], number) for _, number in batch.keys],
                batch.starts, batch.ends, batch.vectors, batch.features, batch.thumbnails,
            )  # fmt: skip
            name = batch.keys[0][0]
            file = make_file(1, path=f"/{ending}.mp4", content=name)
            writer.commit(Changes([batch], [file]))
    snapshot = LocalStore.open(folder).snapshot()
    with pytest.raises(UsageError, match=r"is ambiguous \(2 clips\); type more characters"):
        snapshot.full_id("abcda-0")
    assert snapshot.short_id("abcd" * 3 + "abca-0") == "abcdabcdabcdabca-0"


def test_hubness_offsets_are_those_of_the_bank(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill(folder, 2)
    assert store.snapshot().hubness_offsets is None
    bank = HubnessBank("given", make_batch(9).vectors, 0.5, 20.0, ("a", "b", "c", "d"))
    with LocalStore.write(folder) as writer:
        writer.set_hubness(bank)
        writer.set_hubness(bank)
        writer.commit(changes_of(2))
        writer.finish()
    snapshot = store.snapshot()
    expected = bank.offsets(snapshot.vectors_at(np.arange(12)))
    assert np.array_equal(snapshot.hubness_offsets, expected)
    assert snapshot.hubness_bank == bank
    assert str(snapshot.hubness_bank) == "4 texts given, weight 0.5"
    assert [path.name for path in (folder / "segments").glob("*.labels")] == ["000001-2.labels"]
    store.verify()
    with LocalStore.write(folder) as writer:
        writer.set_hubness(None)
    assert store.snapshot().hubness_offsets is None


def test_features_of_another_size_are_refused(tmp_path: Path) -> None:
    batch = make_batch(0)
    vectors = np.zeros((CLIPS, DIM + 1), np.float32)
    wrong = ClipBatch(
        batch.keys, batch.starts, batch.ends, vectors, batch.features, batch.thumbnails
    )
    with LocalStore.write(tmp_path / "store", make_manifest()) as writer:
        with pytest.raises(StoreError, match="features of another size"):
            writer.commit(Changes([wrong], [make_file(0)]))
        assert writer.files() == []
        writer.commit(changes_of(0))
        assert writer.finish() == CLIPS


def test_another_model_is_refused_and_roots_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 1)
    other = make_manifest(identity="2e", model="other")
    with pytest.raises(StoreError, match=r"was made with model 'bag' \(now 'other'\)"):
        LocalStore.write(folder, other).__enter__()
    with pytest.raises(StoreError, match=r"clip_seconds 5.0 \(now 10.0\)"):
        make_manifest(splitting=Splitting(clip_seconds=5.0)).require_same(make_manifest(), "a")
    make_manifest(splitting=Splitting(frame_step=0.5)).require_same(make_manifest(), "a")
    with LocalStore.write(folder, make_manifest(roots=("/more",))):
        pass
    assert LocalStore.open(folder).manifest.roots == ("/videos", "/more")


def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "new" / "store"
        fill(folder, 2)
        with LocalStore.write(folder) as writer:
            writer.commit(changes_of(2))
            paths = [folder.parent, folder, *folder.rglob("*")]
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    finally:
        os.umask(before)
    assert any(path.name.endswith("-wal") for path in paths)
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_new_segments_are_shared_where_the_database_is(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 1)
    (folder / DATABASE).chmod(0o640)
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.set_hubness(HubnessBank("given", make_batch(9).vectors, 0.5, 20.0))
    assert stat.S_IMODE((folder / "segments" / "000001-2.labels").stat().st_mode) == 0o640


def test_an_old_store_is_recognised(tmp_path: Path) -> None:
    folder = tmp_path / "My store"
    (folder / "clips.lance").mkdir(parents=True)
    values = {"roots": ["/my videos"], "model": "small"}
    (folder / "manifest.json").write_text(json.dumps(values))
    command = f"eaglenet store upgrade --store '{folder}'"
    for act in (LocalStore.open, LocalStore.exists):
        with pytest.raises(StoreError, match=f"made by an earlier eaglenet.*{command}"):
            act(folder)
    with pytest.raises(StoreError, match="earlier eaglenet"):
        LocalStore.write(folder, make_manifest()).__enter__()
    assert command_to_index_again(folder) == (
        f"mv '{folder}' '{folder}'.old && eaglenet index '/my videos' --model small --store "
        f"'{folder}'"
    )


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"has other files in it \('letter.txt'\)"):
        LocalStore.exists(tmp_path)
    with pytest.raises(StoreError, match=r"is not a store; name the folder of a store"):
        LocalStore.open(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        LocalStore.exists(tmp_path / "letter.txt" / "store")
    assert not LocalStore.exists(tmp_path / "none")
    with pytest.raises(StoreError, match="create one with: eaglenet index PATH"):
        LocalStore.open(tmp_path / "none")
    with pytest.raises(StoreError, match="no store at"):
        LocalStore.write(tmp_path / "none").__enter__()
    assert not (tmp_path / "none").exists()


def test_network_disks_get_no_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglenet.store.database.is_network_disk", lambda folder: True)
    store = fill(tmp_path / "store", 2)
    assert store.database.value("PRAGMA journal_mode") == "delete"
    with LocalStore.write(tmp_path / "store") as writer:
        writer.commit(changes_of(2))
        assert not list((tmp_path / "store").glob("*-wal"))
        assert len(store.snapshot()) == 3 * CLIPS
    monkeypatch.setattr("eaglenet.store.database.is_network_disk", lambda folder: False)
    store.database.close()
    with LocalStore.write(tmp_path / "store") as writer:
        assert writer.database.value("PRAGMA journal_mode") == "wal"


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/srv/videos", "nfs4", True),
        ("/srv/videos/a b/c", "cifs", True),
        ("/srv", "ext4", False),
        ("/srv/videos2", "ext4", False),
        ("/mnt/host", "9p", True),
        ("/mnt/stick", "fuseblk", False),
        ("/mnt/far", "fuse.sshfs", True),
    ],
)
def test_network_disks_are_recognised(
    path: str, kind: str, is_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = """21 1 0:1 / / rw - ext4 /dev/sda rw
22 21 0:2 / /srv/videos rw,noatime shared:1 - nfs4 host:/x rw
23 22 0:3 / /srv/videos/a\\040b rw - cifs //host/x rw
24 21 0:4 / /mnt/host rw - 9p host rw
25 21 0:5 / /mnt/stick rw - fuseblk /dev/sdb rw
26 21 0:6 / /mnt/far rw - fuse.sshfs host: rw
"""
    monkeypatch.setattr(Path, "read_text", lambda self, **options: mounts)
    monkeypatch.setattr(sys, "platform", "linux")
    assert disk.file_system_type(Path(path)) == kind
    assert disk.is_network_disk(Path(path)) is is_network


def test_a_newer_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "store", 1).database.close()
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 0)
    monkeypatch.setattr(schema, "STATEMENTS", ("CREATE TABLE earlier (a)",))
    with pytest.raises(StoreError, match=r"made by a newer eaglenet \(schema \d+, .* up to 0"):
        LocalStore.open(tmp_path / "store")


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    fill(folder, 1).database.close()

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE more (a)")
        raise sqlite3.OperationalError("disk I/O error")

    now = schema.SCHEMA_VERSION
    totals = schema._totals(now)
    statements = (each for each in schema.STATEMENTS if each != totals)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 1)
    monkeypatch.setattr(schema, "STATEMENTS", (*statements, schema._totals(now + 1)))
    monkeypatch.setitem(schema.MIGRATIONS, now, fail)
    with pytest.raises(StoreError), LocalStore.write(folder):
        pass
    monkeypatch.undo()
    assert LocalStore.open(folder).verify().clips == CLIPS


def test_migrations_run_when_a_store_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "store", 1).database.close()
    statement, now = "CREATE TABLE more (a)", schema.SCHEMA_VERSION
    totals = schema._totals(now)
    statements = (each for each in schema.STATEMENTS if each != totals)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 1)
    monkeypatch.setattr(schema, "STATEMENTS", (*statements, schema._totals(now + 1), statement))
    monkeypatch.setitem(schema.MIGRATIONS, now, lambda connection: connection.execute(statement))
    with LocalStore.write(tmp_path / "store") as writer:
        assert writer.database.value("SELECT count(*) FROM more") == 0
    assert LocalStore.open(tmp_path / "store").database.value("PRAGMA user_version") == now + 1


def test_a_store_on_a_read_only_disk_can_be_searched(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 2).database.close()
    command = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        assert len(LocalStore.open(folder).snapshot()) == 2 * CLIPS
        with pytest.raises(StoreError, match="cannot be written to"):
            LocalStore.write(folder).__enter__()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_usage_names_the_parts(tmp_path: Path) -> None:
    usage = fill(tmp_path / "store", 2).usage()
    assert usage["vectors"] == 2 * CLIPS * DIM * 4
    assert set(usage) == {"vectors", "codes", "labels", "features", "thumbnails", "database"}


def test_searching_imports_nothing_heavy(tmp_path: Path) -> None:
    fill(tmp_path / "store", 2).database.close()
    code = (
        "import sys; from eaglenet.store.store import LocalStore, command_to_index_again\n"
        "from eaglenet.store.records import LineQuery\n"
        "snapshot = LocalStore.open(sys.argv[1]).snapshot()\n"
        "snapshot.find_lines(LineQuery(('car',)), 5), snapshot.clips([0])\n"
        "heavy = {'torch', 'lancedb', 'pyarrow', 'typer', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    subprocess.run(command, env=environment, check=True)


def test_transcripts_alone_are_a_commit(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LocalStore.write(folder, make_manifest()) as writer:
        writer.commit(Changes(transcripts=[make_lines(0)]))
        assert list(writer.sources()) == [(content_of(0), "subtitle", "")]
        writer.finish()
        assert writer.sources() == {}


def test_rows_with_long_blobs_are_compared_as_now_and_as_they_were_stored_before() -> None:
    blob = bytes(schema.LONG_BLOB)
    values = ("the model", 0.75, 20.0, blob, "")
    row = schema.row_of("hubness", 1, values)
    earlier = (1, *values, zlib.crc32(repr(("hubness", 1, *values)).encode()))
    assert row[-1] != earlier[-1]
    for row_form in (row, earlier):
        assert schema.is_intact("hubness", row_form)
        for other_blob in (blob[:-1] + b"\1", blob[:-1]):
            assert not schema.is_intact("hubness", (*row_form[:4], other_blob, *row_form[5:]))
