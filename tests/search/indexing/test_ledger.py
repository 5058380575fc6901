"""What becomes of each file, by rules that need neither videos nor a store."""

from __future__ import annotations

import dataclasses

import pytest
from ledger_cases import WINDOWS, FakeTables, done_row, found, inspected, rows_of

from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage
from eaglenet.indexing.ledger import FileResult, Ledger
from eaglenet.search.store.tables import FileRow


def ledger(*rows: FileRow, clips: int = 3, **tags: tuple[str, ...]) -> Ledger:
    """Of a store with these files, so many clips of each content stored."""
    keys = [(row.content, number) for row in rows for number in range(clips)]
    return Ledger(FakeTables(list(rows), keys), tags)


def told(settled: list[FileResult]) -> list[tuple[str, str, bool]]:
    """Path, outcome, and whether a row is to be stored."""
    return [(each.row.path, each.outcome, each.is_new) for each in settled]


def fail_all(book: Ledger, content: str) -> list[FileResult]:
    """No clip of a content decodes."""
    settled = []
    for number in range(len(WINDOWS)):
        settled += book.record_failure(ClipFailure((content, number), f"reason {number}"))
    return settled


def test_a_file_is_settled_when_all_its_clips_have_been_tried() -> None:
    book = ledger()
    assert book.begin(inspected("/a.mp4", "A")) == []
    assert book.record_clips(rows_of(("A", 0), ("A", 2))) == []
    (settled,) = book.record_failure(ClipFailure(("A", 1), "torn"))
    assert told([settled]) == [("/a.mp4", "encoded", True)]
    assert (settled.row.status, settled.row.num_clips) == ("done", 2)
    assert settled.row.reason == "1 of 3 clips: torn"


@pytest.mark.parametrize("is_met_again", ["while it is worked on", "after it was given up"])
def test_copies_of_a_hopeless_file_fail_with_its_reason_whenever_they_are_met(
    is_met_again: str,
) -> None:
    book = ledger()
    book.begin(inspected("/a.mp4", "A"))
    if is_met_again == "while it is worked on":
        assert book.begin(inspected("/copy.mp4", "A")) == []
        settled = fail_all(book, "A")
    else:
        settled = [*fail_all(book, "A"), *book.begin(inspected("/copy.mp4", "A"))]
    assert told(settled) == [("/a.mp4", "failed", True), ("/copy.mp4", "failed", True)]
    assert {each.row.reason for each in settled} == {"reason 0"}
    assert {each.row.status for each in settled} == {"failed"}


def test_copies_of_a_good_file_are_finished_with_it() -> None:
    book = ledger()
    book.begin(inspected("/a.mp4", "A"))
    book.begin(inspected("/early.mp4", "A"))
    settled = book.record_clips(rows_of(("A", 0), ("A", 1), ("A", 2)))
    settled += book.begin(inspected("/late.mp4", "A"))
    assert told(settled) == [
        ("/a.mp4", "encoded", True),
        ("/early.mp4", "alias", True),
        ("/late.mp4", "alias", True),
    ]
    assert {each.row.num_clips for each in settled} == {3}


def test_a_file_that_could_not_be_looked_at_is_reported_and_not_remembered_as_bad() -> None:
    book = ledger()
    unseen = dataclasses.replace(
        inspected("/a.mp4", ""), file=found("/a.mp4", modified_ns=0), problem="Permission denied"
    )
    seen = dataclasses.replace(inspected("/b.mp4", "B"), problem="not a video")
    nameless = dataclasses.replace(
        inspected("/bad\udcff.mp4", ""), file=found("/bad\udcff.mp4"), problem="rename it"
    )
    assert told([*book.begin(unseen), *book.begin(seen), *book.begin(nameless)]) == [
        ("/a.mp4", "failed", False),
        ("/b.mp4", "failed", True),
        ("/bad\udcff.mp4", "failed", False),
    ]


def test_files_that_are_as_they_were_are_settled_before_any_work() -> None:
    good, bad = done_row("/a.mp4", "A", tags=("home",)), done_row("/b.mp4", "B")
    bad = dataclasses.replace(bad, status="failed", reason="torn", num_clips=0)
    book = ledger(good, bad)
    assert book.check_unchanged(found("/a.mp4"), retry=False) == FileResult(
        good, "unchanged", False
    )
    assert book.check_unchanged(found("/b.mp4"), retry=False) == FileResult(bad, "failed", False)
    assert book.check_unchanged(found("/b.mp4"), retry=True) is None
    assert book.check_unchanged(found("/a.mp4", modified_ns=6), retry=False) is None
    assert book.check_unchanged(found("/a.mp4", size=101), retry=False) is None
    assert book.check_unchanged(found("/new.mp4"), retry=False) is None


def test_new_tags_of_an_unchanged_file_are_stored() -> None:
    book = ledger(done_row("/a.mp4", "A", tags=("home",)), **{"a.mp4": ("garden",)})
    settled = book.check_unchanged(found("/a.mp4"), retry=False)
    assert settled is not None
    assert (settled.row.tags, settled.is_new) == (("garden",), True)


def test_a_file_whose_clips_got_lost_is_worked_on_again() -> None:
    book = ledger(done_row("/a.mp4", "A"), clips=2)
    assert book.check_unchanged(found("/a.mp4"), retry=False) is None
    assert list(book.requests([inspected("/a.mp4", "A")]))[1:] == [
        ClipRequest("A", "/a.mp4", (2,), (WINDOWS[2],), duration=14.0)
    ]


def test_clips_that_were_given_up_are_tried_again_when_asked_to() -> None:
    row = done_row("/a.mp4", "A", num_clips=2, reason="1 of 3 clips: the decoder process died")
    book = ledger(row, clips=2)
    assert book.check_unchanged(found("/a.mp4"), retry=False) is not None
    assert book.check_unchanged(found("/a.mp4"), retry=True) is None
    requests = list(book.requests([inspected("/a.mp4", "A")]))[1:]
    assert [request.numbers for request in requests] == [(2,)]
    book.begin(inspected("/a.mp4", "A"))
    settled = book.record_clips(rows_of(("A", 2)))
    assert (settled[0].row.num_clips, settled[0].row.reason) == (3, "")


def test_what_could_not_be_read_for_the_moment_is_not_remembered() -> None:
    book = Ledger(FakeTables(), {})
    passing = inspected("/a.mp4", "", problem="Permission denied", is_temporary=True)
    assert told(book.begin(passing)) == [("/a.mp4", "failed", False)]
    lasting = inspected("/b.mp4", "B", problem="no video stream in it")
    assert told(book.begin(lasting)) == [("/b.mp4", "failed", True)]


def test_only_clips_that_an_interrupted_run_did_not_store_are_asked_for() -> None:
    book = Ledger(FakeTables(keys=[("A", 1)]), {})
    first, request, *rest = book.requests([inspected("/a.mp4", "A"), inspected("/b.mp4", "A")])
    assert first == inspected("/a.mp4", "A")
    windows = (WINDOWS[0], WINDOWS[2])
    assert request == ClipRequest("A", "/a.mp4", (0, 2), windows, duration=14.0)
    assert rest == [inspected("/b.mp4", "A")]  # The same content is asked for once.
    book.begin(inspected("/a.mp4", "A"))
    assert told(book.record_clips(rows_of(("A", 0), ("A", 2)))) == [("/a.mp4", "encoded", True)]


def test_clips_that_come_twice_are_taken_once() -> None:
    book = ledger()
    book.begin(inspected("/a.mp4", "A"))
    first = rows_of(("A", 0), ("A", 1))
    assert book.select_pending(first) is first
    book.record_clips(first)
    again = book.select_pending(rows_of(("A", 1), ("A", 2), ("A", 2), ("B", 0)))
    assert again.keys == [("A", 2)]
    assert again.thumbnails == [b"A2"]
    assert again.coarse.tolist() == [[2.0, 2.0]]
    assert told(book.record_clips(again)) == [("/a.mp4", "encoded", True)]
    assert len(book.select_pending(first)) == 0
    assert book.record_failure(ClipFailure(("A", 0), "late")) == []
    book.record_damage(Damage("A", 1.0))  # Late as well, and no error.


@pytest.mark.parametrize(
    ("is_cut_short", "seconds", "reason"),
    [
        (False, 0.0, ""),
        (True, 0.0, "damaged: cut short, only the first 14.0 s are in the file"),
        (False, 2.5, "damaged: unreadable frames replaced by others up to 2.5 s away"),
    ],
)
def test_damage_is_noted_with_the_file(is_cut_short: bool, seconds: float, reason: str) -> None:
    book = ledger()
    book.begin(inspected("/a.mp4", "A", is_cut_short=is_cut_short))
    book.record_damage(Damage("A", seconds))
    book.record_damage(Damage("A", seconds / 2))
    (settled,) = book.record_clips(rows_of(("A", 0), ("A", 1), ("A", 2)))
    assert settled.row.reason == reason


def test_contents_that_went_from_their_path_are_told_and_the_first_copy_is_their_home() -> None:
    book = ledger(done_row("/b.mp4", "A"), done_row("/a.mp4", "A"), done_row("/c.mp4", "C"))
    assert (book.content_paths(), book.moved_contents()) == ({"A": "/a.mp4", "C": "/c.mp4"}, set())
    book.forget(["/a.mp4"])
    book.record_commit([done_row("/c.mp4", "D")])
    assert (book.content_paths(), book.moved_contents()) == (
        {"A": "/b.mp4", "D": "/c.mp4"},
        {"A", "C"},
    )
