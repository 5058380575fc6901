"""Counts that a run tells while it works and at its end."""

from __future__ import annotations

import dataclasses

import pytest
from ledger_cases import candidate, done_file

from eaglenet.indexing.ledger import FileProgress, FileResult
from eaglenet.indexing.run import CommitResult, Tally
from eaglenet.store.records import IndexedFile


def failed_file(path: str) -> IndexedFile:
    """A file of which nothing could be stored."""
    row = done_file(path, "X", num_clips=0, reason="torn", duration=0.0)
    return dataclasses.replace(row, status="failed")


def test_progress_counts_only_stored_files_of_this_run() -> None:
    tally = Tally()
    tally.begin(
        [
            candidate("/a.mp4", size=300),
            candidate("/b.mp4", size=100),
            candidate("/c.mp4", size=600),
        ]
    )
    first = tally.commit(CommitResult([done_file("/a.mp4", "A", size=300)], clips=3))
    assert (first.num_done, first.num_skipped, first.total, first.clips) == (1, 0, 3, 3)
    assert (first.bytes_done, first.bytes_total) == (300, 1000)
    assert first.path == "/a.mp4"
    # A file that only got other tags was no work; a part of a film is clips without a file.
    second = tally.commit(CommitResult([done_file("/retagged.mp4", "R")], clips=0))
    third = tally.commit(CommitResult([], clips=5))
    assert (second.num_done, third.num_done, third.clips, third.path) == (1, 1, 8, "")
    last = tally.commit(CommitResult([failed_file("/b.mp4")], clips=0))
    assert (last.num_done, last.num_skipped) == (1, 1)
    assert last.hours == pytest.approx(14 / 3600)


def test_progress_counts_unfinished_and_uncommitted_files() -> None:
    tally = Tally()
    tally.begin([candidate("/film.mp4", size=900), candidate("/b.mp4", size=100)])
    first = tally.progress([FileProgress(size=300, seconds=36.0)])
    assert (first.bytes_done, first.num_done, first.hours) == (300, 0, pytest.approx(0.01))
    row = done_file("/b.mp4", "B", size=100)
    tally.settle(FileResult(row, "encoded"))
    second = tally.progress([FileProgress(size=450, seconds=54.0)])
    assert (second.bytes_done, second.num_done) == (550, 0)
    third = tally.commit(CommitResult([row], clips=3), [FileProgress(size=450, seconds=54.0)])
    assert (third.bytes_done, third.num_done) == (550, 1)
    assert third.hours == pytest.approx(68 / 3600)


def test_report_counts_outcomes_and_lists_problems() -> None:
    tally = Tally()
    damaged = done_file("/cut.mp4", "C", reason="damaged: cut short")
    partial = done_file("/part.mp4", "P", reason="1 of 3 clips: torn")
    for row, outcome in (
        (done_file("/a.mp4", "A"), "encoded"),
        (damaged, "encoded"),
        (partial, "alias"),
        (done_file("/d.mp4", "D"), "unchanged"),
        (failed_file("/bad.mp4"), "failed"),
    ):
        tally.settle(FileResult(row, outcome))
    report = tally.report(num_dropped=1, num_missing=2, clips=11, unused_tags=("x",))
    assert (report.indexed, report.aliases, report.unchanged) == (2, 1, 1)
    assert (report.dropped, report.missing, report.clips) == (1, 2, 11)
    assert report.hours == pytest.approx(28 / 3600)
    assert [problem.path for problem in report.problems] == ["/part.mp4", "/bad.mp4"]
    assert [problem.path for problem in report.damaged] == ["/cut.mp4"]
    tally.forget(["/bad.mp4", "/cut.mp4", "/a.mp4"])
    report = tally.report(num_dropped=0, num_missing=0, clips=0, unused_tags=())
    assert ([p.path for p in report.problems], report.damaged) == (["/part.mp4"], ())
