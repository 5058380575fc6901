"""Clips and files go into one commit, and nothing is forgotten that could not be stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from ledger_cases import batch_of, done_file

from eaglenet.core.errors import StoreError
from eaglenet.indexing import run as commits
from eaglenet.indexing.run import Commit
from eaglenet.store.records import Changes


@dataclass
class Notebook:
    """A writer that writes down what is committed, or refuses it."""

    calls: list[tuple[list[int], list[str]]] = field(default_factory=list)
    is_full: bool = False

    def commit(self, changes: Changes) -> None:
        if self.is_full:
            raise StoreError("the disk is full")
        numbers = [number for batch in changes.clips for _, number in batch.keys]
        if changes:
            self.calls.append((numbers, [file.path for file in changes.files]))


def started(writer: Notebook) -> Commit:
    """Two batches of clips and the file that they complete."""
    commit = Commit(writer)
    commit.add_clips(batch_of(("A", 0), ("A", 1)))
    commit.add_clips(batch_of(("A", 2)))
    commit.add_file(done_file("/a.mp4", "A"))
    return commit


def test_clips_and_the_file_they_complete_are_one_commit() -> None:
    writer = Notebook()
    commit = started(writer)
    result = commit.write()
    assert writer.calls == [([0, 1, 2], ["/a.mp4"])]
    assert ([file.path for file in result.files], result.clips) == (["/a.mp4"], 3)
    assert not commit.write().files
    assert len(writer.calls) == 1


def test_clips_of_an_unfinished_file_are_stored() -> None:
    writer = Notebook()
    commit = Commit(writer)
    commit.add_clips(batch_of(("A", 0)))
    commit.add_clips(batch_of())
    assert commit.write().clips == 1
    assert commit.write().clips == 0
    assert writer.calls == [([0], [])]


def test_failed_commit_is_repeated() -> None:
    writer = Notebook(is_full=True)
    commit = started(writer)
    with pytest.raises(StoreError):
        commit.write()
    writer.is_full = False
    assert commit.write().clips == 3
    assert writer.calls == [([0, 1, 2], ["/a.mp4"])]


def test_commit_is_due_by_clips_or_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "COMMIT_CLIPS", 3)
    commit = Commit(Notebook())
    commit.add_clips(batch_of(("A", 0), ("A", 1)))
    assert not commit.is_due
    commit.add_clips(batch_of(("A", 2)))
    assert commit.is_due
    commit.write()
    assert not commit.is_due
    now += commits.COMMIT_SECONDS
    assert commit.is_due


def test_slow_commit_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    class SlowNotebook(Notebook):
        """A writer whose commits take two seconds."""

        def commit(self, changes: Changes) -> None:
            nonlocal now
            now += 2.0
            super().commit(changes)

    monkeypatch.setattr(commits.time, "monotonic", lambda: now)
    monkeypatch.setattr(commits, "COMMIT_CLIPS", 1)
    monkeypatch.setattr(commits, "MAX_CLIPS", 3)
    commit = started(SlowNotebook())
    commit.write()
    commit.add_clips(batch_of(("B", 0)))
    assert not commit.is_due
    now += 2.0 * commits.PAUSE_FACTOR
    assert commit.is_due
    now -= 0.5
    assert not commit.is_due
    commit.add_clips(batch_of(("B", 1), ("B", 2)))
    assert commit.is_due
