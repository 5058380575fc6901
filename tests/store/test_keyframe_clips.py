"""Clips encoded from keyframes only: marked in the store until exact ones replace them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_store import CLIPS, content_of, make_batch, make_file, make_manifest

from eaglenet.cluster import log
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing.exchange import export_store, import_store, read_table, write_table
from eaglenet.store import schema
from eaglenet.store.records import Changes, ClipBatch
from eaglenet.store.snapshot import OutdatedError
from eaglenet.store.store import LocalStore


def from_keyframes(number: int) -> ClipBatch:
    """The clips of a file as a first pass stores them: other vectors, and marked."""
    batch = make_batch(number)
    return replace(batch, vectors=-batch.vectors, keyframe_keys=frozenset(batch.keys))


def make_quick(folder: Path, files: int = 3) -> LocalStore:
    with LocalStore.write(folder, make_manifest()) as writer:
        for number in range(files):
            writer.commit(Changes([from_keyframes(number)], [make_file(number)]))
        writer.finish()
    return LocalStore.open(folder)


def keyframe_keys(store: LocalStore) -> set[tuple[str, int]]:
    snapshot = store.snapshot()
    mask = snapshot.from_keyframes
    rows = [] if mask is None else np.flatnonzero(mask).tolist()
    return {(clip.content, clip.number) for clip in snapshot.clips(rows)}


def contents(store: LocalStore) -> dict[str, tuple[bytes, ...]]:
    """Every visible clip, whatever its row."""
    snapshot = store.snapshot()
    rows = np.arange(snapshot.num_rows)
    rows = rows if snapshot.visible is None else rows[snapshot.visible]
    clips, vectors = snapshot.clips(rows), snapshot.vectors_at(rows)
    features = snapshot.features_at(rows)
    return {
        f"{clip.id} {clip.start} {clip.end}": (
            vectors[number].tobytes(),
            features[number].tobytes(),
            snapshot.thumbnail(clip.row),
        )
        for number, clip in enumerate(clips)
    }


def test_exact_clips_replace_those_from_keyframes_and_nothing_replaces_exact_ones(
    tmp_path: Path,
) -> None:
    store = make_quick(tmp_path / "quick")
    assert keyframe_keys(store) == {
        (content_of(n), clip) for n in range(3) for clip in range(CLIPS)
    }
    with LocalStore.write(tmp_path / "quick") as writer:
        assert writer.keyframe_clips() == {content_of(n): frozenset(range(4)) for n in range(3)}
        writer.commit(Changes([make_batch(1, [2])]))
        assert writer.keyframe_clips()[content_of(1)] == {0, 1, 3}
        assert len(LocalStore.open(tmp_path / "quick").snapshot()) == 3 * CLIPS
        writer.commit(Changes([make_batch(n) for n in range(3)], [make_file(n) for n in range(3)]))
        writer.commit(Changes([from_keyframes(0)]))
        assert writer.finish() == 3 * CLIPS
    exact_store = LocalStore.open(tmp_path / "quick")
    exact_store.verify()
    assert keyframe_keys(exact_store) == set()
    assert exact_store.snapshot().num_rows == 3 * CLIPS  # The others were compacted away.
    plain = tmp_path / "plain"
    with LocalStore.write(plain, make_manifest()) as writer:
        for number in range(3):
            writer.commit(Changes([make_batch(number)], [make_file(number)]))
        writer.finish()
    assert contents(exact_store) == contents(LocalStore.open(plain))
    assert exact_store.files() == LocalStore.open(plain).files()


def test_a_repair_and_removed_files_keep_the_marks_right(tmp_path: Path) -> None:
    make_quick(tmp_path).database.close()
    with closing(sqlite3.connect(tmp_path / schema.DATABASE)) as connection:
        connection.execute("UPDATE totals SET num_rows = 1 WHERE name = 'keyframe_clips'")
        connection.commit()
    with pytest.raises(StoreError, match="keyframe_clips"):
        LocalStore.open(tmp_path).verify()
    LocalStore.repair(tmp_path)
    store = LocalStore.open(tmp_path)
    store.verify()
    assert len(keyframe_keys(store)) == 3 * CLIPS
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes(removed_files=[make_file(1).path]))
        writer.finish()
    store = LocalStore.open(tmp_path)
    store.verify()
    assert {content for content, _ in keyframe_keys(store)} == {content_of(0), content_of(2)}


def test_exports_and_the_log_carry_the_marks(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    quick = make_quick(tmp_path / "quick", 1)
    export_store(tmp_path / "quick", tmp_path / "tables", "parquet")
    import_store(tmp_path / "tables", tmp_path / "copy")
    assert keyframe_keys(LocalStore.open(tmp_path / "copy")) == keyframe_keys(quick)

    changes = Changes([from_keyframes(0)], [make_file(0)])
    batch = replace(changes.clips[0], features=np.zeros(CLIPS, log.POINTER))
    for keys in (batch.keyframe_keys, frozenset[tuple[str, int]]()):
        content = log.encode(Changes([replace(batch, keyframe_keys=keys)]))
        ((_, operation),) = log.decode(content)
        assert isinstance(operation, Changes)
        assert operation.clips[0].keyframe_keys == keys


def test_an_export_with_other_marks_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    make_quick(tmp_path / "quick", 1)
    export_store(tmp_path / "quick", tmp_path / "tables", "parquet")
    chunks = [
        {**chunk, "from_keyframes": np.arange(CLIPS)}
        for chunk in read_table(tmp_path / "tables", "clips", "parquet")
    ]
    write_table(tmp_path / "tables", "clips", "parquet", chunks)
    with pytest.raises(UsageError, match="from_keyframes"):
        import_store(tmp_path / "tables", tmp_path / "copy")


def test_a_snapshot_does_not_leave_out_clips_that_exact_ones_replaced(tmp_path: Path) -> None:
    """Others would stand for them: a line at second 5 would belong to the clip from second 10."""
    store = make_quick(tmp_path)
    snapshot, (clip, *_) = store.snapshot(), store.snapshot().clips_of_content(content_of(0))
    with LocalStore.write(tmp_path) as writer:
        writer.commit(Changes([make_batch(0, [0, 2])]))
    assert snapshot.clips_of_content(content_of(1)) == store.snapshot().clips_of_content(
        content_of(1)
    )
    with pytest.raises(OutdatedError):
        snapshot.clips_at([(clip.content_id, 5.0)])
    (new_clip,) = store.snapshot().clips_at([(clip.content_id, 5.0)])
    assert new_clip is not None
    assert (new_clip.number, new_clip.start) == (0, 0.0)
