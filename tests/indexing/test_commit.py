"""Clips, then files, then the snapshot; and nothing is forgotten that could not be stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from ledger_cases import done_row, rows_of

from eaglenet.core.errors import StoreError
from eaglenet.indexing import commit as commits
from eaglenet.indexing.commit import Commit
from eaglenet.search.store.tables import ClipKey, ClipRows, FileRow


@dataclass(frozen=True)
class SmallManifest:
    """All that a commit asks of a manifest."""

    dim: int = 2


@dataclass
class Notebook:
    """A store and its tables that write down what is asked of them, and refuse some of it."""

    calls: list[str] = field(default_factory=list)
    refused: str = ""
    keys: list[ClipKey] = field(default_factory=list)
    manifest: SmallManifest = field(default_factory=SmallManifest)

    def note(self, call: str) -> None:
        if self.refused and call.startswith(self.refused):
            raise StoreError(f"no {call}")
        self.calls.append(call)

    def add_clips(self, rows: ClipRows) -> None:
        self.note(f"clips {[number for _, number in rows.keys]}")

    def put_files(self, rows: Sequence[FileRow]) -> None:
        self.note(f"files {[row.path for row in rows]}")

    def publish(self, tables: object, *, anew: bool = False) -> int:
        self.note("publish")
        return len(self.keys)

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        return self.keys

    def remove_contents(self, contents: Sequence[str]) -> None:
        self.note(f"remove {contents}")

    def set_path(self, content: str, path: str) -> None:
        self.note(f"path {content} {path}")

    def optimize(self) -> None:
        self.note("optimize")

    def sync(self) -> None:
        self.note("sync")


def started(store: Notebook) -> Commit:
    """Two batches of clips and the file that they complete."""
    commit = Commit(store, store)
    commit.add_clips(rows_of(("A", 0), ("A", 1)))
    commit.add_clips(rows_of(("A", 2)))
    commit.add_row(done_row("/a.mp4", "A"))
    return commit


def test_stores_clips_before_files_and_publishes_last() -> None:
    store = Notebook()
    commit = started(store)
    committed = commit.write()
    assert store.calls == ["clips [0, 1, 2]", "files ['/a.mp4']", "publish"]
    assert ([row.path for row in committed.rows], committed.clips) == (["/a.mp4"], 3)
    store.calls.clear()
    assert not commit.write().rows
    assert store.calls == []


def test_clips_of_an_unfinished_file_are_stored_but_not_published() -> None:
    store = Notebook()
    commit = Commit(store, store)
    commit.add_clips(rows_of(("A", 0)))
    commit.add_clips(rows_of())
    assert commit.write().clips == 1
    assert store.calls == ["clips [0]", "sync"]
    assert commit.write().clips == 0
    assert store.calls == ["clips [0]", "sync"]


@pytest.mark.parametrize(
    ("refused", "again"),
    [
        ("clips", ["clips [0, 1, 2]", "files ['/a.mp4']", "publish"]),
        ("files", ["files ['/a.mp4']", "publish"]),
        ("publish", ["files ['/a.mp4']", "publish"]),
    ],
)
def test_failed_commit_is_repeated_without_duplicates(refused: str, again: list[str]) -> None:
    store = Notebook(refused=refused)
    commit = started(store)
    with pytest.raises(StoreError):
        commit.write()
    store.calls.clear()
    store.refused = ""
    commit.write()
    assert store.calls == again


def test_commit_is_due_by_clips_or_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "COMMIT_CLIPS", 3)
    commit = Commit(Notebook(), Notebook())
    commit.add_clips(rows_of(("A", 0), ("A", 1)))
    assert not commit.is_due
    commit.add_clips(rows_of(("A", 2)))
    assert commit.is_due
    commit.write()
    assert not commit.is_due
    now += commits.COMMIT_SECONDS
    assert commit.is_due


def test_clean_up_removes_unused_clips_and_moves_those_of_copies() -> None:
    store = Notebook(keys=[("A", 0), ("B", 0), ("B", 1), ("C", 0)])
    commit = Commit(store, store)
    assert commit.clean_up({"A": "/a.mp4", "C": "/copy.mp4"}, {"C", "gone"}) == 4
    assert store.calls == ["remove ['B']", "path C /copy.mp4", "optimize", "publish"]


def test_slow_commit_is_followed_by_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    class SlowNotebook(Notebook):
        """A store whose commits take two seconds."""

        def publish(self, tables: object, *, anew: bool = False) -> int:
            nonlocal now
            now += 2.0
            return super().publish(tables, anew=anew)

    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "COMMIT_CLIPS", 1)
    monkeypatch.setattr(commits, "MAX_CLIPS", 3)
    store = SlowNotebook()
    commit = started(store)
    commit.write()
    commit.add_clips(rows_of(("B", 0)))
    assert not commit.is_due
    now += 2.0 * commits.PAUSE_FACTOR
    assert commit.is_due
    now -= 0.5
    assert not commit.is_due
    commit.add_clips(rows_of(("B", 1), ("B", 2)))
    assert commit.is_due
