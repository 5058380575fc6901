"""Windows of transcript lines: stored with their lines, searched, compacted, verified, repaired."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from made_store import changes_of, content_of, fill, make_lines
from numpy.typing import NDArray

from eaglenet.store.disk import DamageError
from eaglenet.store.records import Changes, SourceKey, SourceWindows, WindowHit
from eaglenet.store.snapshot import OutdatedError, Snapshot
from eaglenet.store.store import LocalStore
from eaglenet.store.windows import CANDIDATES, read_window_segments

WIDTH = 40
ENCODER = "test 1"
KINDS = ("subtitle", "speech", "text")


def key_of(number: int) -> SourceKey:
    return content_of(number), "subtitle", ""


def vectors_of(number: int, count: int = 2) -> NDArray[np.float32]:
    vectors = np.random.default_rng(100 + number).standard_normal((count, WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def windows_of(number: int, encoder: str = ENCODER) -> SourceWindows:
    """Windows of the first two lines, and of the last two."""
    firsts, sizes = np.array([0, 1], np.uint32), np.array([2, 2], np.uint32)
    return SourceWindows(key_of(number), encoder, firsts, sizes, vectors_of(number))


def fill_windows(folder: Path, files: int = 6) -> LocalStore:
    fill(folder, files)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[windows_of(number) for number in range(files)]))
        writer.finish()
    return LocalStore.open(folder)


def search(snapshot: Snapshot, number: int, **options: object) -> list[WindowHit]:
    return snapshot.find_windows(ENCODER, vectors_of(number)[1], 3, **{"kinds": KINDS, **options})  # type: ignore[arg-type]


def texts_of(hit: WindowHit) -> list[str]:
    return [line.text for line in hit.lines]


def test_finds_the_nearest_windows_with_their_lines(tmp_path: Path) -> None:
    store = fill_windows(tmp_path / "store")
    snapshot = store.snapshot()
    assert (snapshot.encoders, snapshot.num_windows) == (frozenset({ENCODER}), 12)
    hits = search(snapshot, 4)
    assert len(hits) == 3
    assert hits[0].content == content_of(4)
    assert texts_of(hits[0]) == ["The dogs are running home 4", "No entry without a ticket 4"]
    assert hits[0].cosine == pytest.approx(1, abs=0.01)
    assert hits[0].cosine > hits[1].cosine >= hits[2].cosine
    expected = np.concatenate([vectors_of(number) for number in range(6)]) @ vectors_of(4)[1]
    assert [hit.cosine for hit in hits] == pytest.approx(np.sort(expected)[::-1][:3], abs=0.02)
    assert store.verify().lines == 18
    assert store.usage()["meanings"] == 12 * WIDTH


def test_kinds_and_contents_restrict_windows(tmp_path: Path) -> None:
    snapshot = fill_windows(tmp_path / "store").snapshot()
    assert search(snapshot, 4, kinds=("text",)) == []
    assert search(snapshot, 4, content_ids=[]) == []
    content_id = search(snapshot, 2)[0].content_id
    hits = search(snapshot, 4, content_ids=[content_id])
    assert {hit.content for hit in hits} == {content_of(2)}
    assert len(hits) == 2


def test_an_encoder_that_made_none_finds_none(tmp_path: Path) -> None:
    snapshot = fill_windows(tmp_path / "store").snapshot()
    assert len(snapshot.windows("another")) == 0


def test_new_lines_forget_the_windows_of_the_old_ones(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill_windows(folder)
    with LocalStore.write(folder) as writer:
        assert not writer.sources(without_windows_of=ENCODER)
        assert len(writer.sources(without_windows_of="another")) == 6
        writer.commit(Changes(transcripts=[make_lines(4)]))
        assert list(writer.sources(without_windows_of=ENCODER)) == [key_of(4)]
        before = store.snapshot()  # As of now: the rows are there, and belong to nothing.
        assert content_of(4) not in {hit.content for hit in search(before, 4)}
        writer.commit(Changes(windows=[windows_of(4)]))
        writer.finish()
    assert search(store.snapshot(), 4)[0].content == content_of(4)


def test_windows_of_a_source_that_is_gone_are_not_stored(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 1)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[windows_of(7)]))
        assert read_window_segments(writer.database) == []


def test_a_source_that_cannot_be_encoded_is_not_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 1)
    none = np.zeros(0, np.uint32)
    empty = SourceWindows(key_of(0), ENCODER, none, none, np.zeros((0, WIDTH), np.float32))
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[empty]))
        assert not writer.sources(without_windows_of=ENCODER)
        writer.finish()
    store = LocalStore.open(folder)
    assert store.snapshot().num_windows == 0
    store.verify()


def test_segments_are_written_again_without_removed_rows(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = fill_windows(folder)
    (before,) = read_window_segments(store.database)
    old_snapshot = store.snapshot()
    assert search(old_snapshot, 5)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(removed_files=["/videos/1.mp4", "/videos/4.mp4"]))
        writer.finish()
    (info,) = read_window_segments(store.database)
    assert (info.num_rows, info.id > before.id) == (8, True)
    assert not any(path.exists() for path in before.paths(folder))
    assert search(store.snapshot(), 5)[0].content == content_of(5)
    assert content_of(4) not in {hit.content for hit in search(store.snapshot(), 4)}
    with pytest.raises(OutdatedError):  # Not: nothing is near.
        search(old_snapshot, 5)
    store.verify()


def test_another_encoder_replaces_all_windows(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill_windows(folder)
    with LocalStore.write(folder) as writer:
        for number in range(6):
            writer.commit(Changes(windows=[windows_of(number, "test 2")]))
        writer.finish()
    store = LocalStore.open(folder)
    assert store.snapshot().encoders == frozenset({"test 2"})
    store.verify()


def test_a_killed_commit_leaves_the_windows_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 3)

    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[windows_of(0)]))
        with suppress(KeyboardInterrupt), writer.transaction() as change:
            writer._add_windows(change, [windows_of(1)])
            raise KeyboardInterrupt
    store = LocalStore.open(folder)
    assert store.snapshot().num_windows == 2
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[windows_of(2)]))
    hits = search(store.snapshot(), 2)
    assert hits[0].content == content_of(2)
    store.verify()


def test_the_nearest_of_many_windows_are_found_by_their_codes(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, 1)
    count = 2 * CANDIDATES
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((count, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    firsts, sizes = np.zeros(count, np.uint32), np.ones(count, np.uint32)
    with LocalStore.write(folder) as writer:
        writer.commit(Changes(windows=[SourceWindows(key_of(0), ENCODER, firsts, sizes, vectors)]))
    index = LocalStore.open(folder).snapshot().windows(ENCODER)
    for row in (0, 1234, count - 1):
        near = index.nearest(vectors[row])
        assert (near.rows[0], len(near.rows)) == (row, CANDIDATES)
        assert near.cosines[0] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("kind", ["windows", "meanings"])
@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_damage_is_noticed_and_a_repair_keeps_everything_else(
    tmp_path: Path, kind: str, change: str
) -> None:
    folder = tmp_path / "store"
    fill_windows(folder, 2)
    (path,) = folder.glob(f"segments/*.{kind}")
    content = bytearray(path.read_bytes())
    if change == "flip":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif change == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(DamageError, match=f"segments/{path.name}"):
        LocalStore.open(folder).verify()
    with pytest.raises(DamageError, match=f"segments/{path.name}"):
        search(LocalStore.open(folder).snapshot(), 0)
    outcome = LocalStore.repair(folder)
    assert (outcome.lines, outcome.incomplete_files) == (6, ())
    assert "2 transcripts lost the vectors of their meaning" in outcome.details[0]
    with LocalStore.write(folder) as writer:
        assert len(writer.sources(without_windows_of=ENCODER)) == 2
        writer.commit(Changes(windows=[windows_of(0), windows_of(1)]))
        writer.finish()
    store = LocalStore.open(folder)
    store.verify()
    assert search(store.snapshot(), 1)[0].content == content_of(1)


def test_a_repair_keeps_intact_windows(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill_windows(folder, 3)
    assert LocalStore.repair(folder).details == ()
    store = LocalStore.open(folder)
    store.verify()
    assert search(store.snapshot(), 2)[0].content == content_of(2)
    with LocalStore.write(folder) as writer:
        writer.commit(changes_of(3))
        writer.finish()
    store.verify()
