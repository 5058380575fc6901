"""Rules of the ledger, tested without videos and without a store."""

from __future__ import annotations

import dataclasses

import pytest
from ledger_cases import WINDOWS, FakeWriter, batch_of, candidate, done_file, inspection

from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage
from eaglenet.indexing.ledger import FileResult, Ledger
from eaglenet.store.records import IndexedFile
from eaglenet.video import images


def ledger(*rows: IndexedFile, clips: int = 3, **tags: tuple[str, ...]) -> Ledger:
    """Of a store with these files, so many clips of each content stored."""
    keys = [(row.content, number) for row in rows for number in range(clips)]
    return Ledger(FakeWriter(list(rows), keys), tags)


def summary(results: list[FileResult]) -> list[tuple[str, str, bool]]:
    """Path, outcome, and whether a row is to be stored."""
    return [(each.file.path, each.outcome, each.is_new) for each in results]


def fail_all(book: Ledger, content: str) -> list[FileResult]:
    """No clip of a content decodes."""
    results = []
    for number in range(len(WINDOWS)):
        results += book.record_failure(ClipFailure((content, number), f"reason {number}"))
    return results


def test_file_is_settled_when_all_clips_were_tried() -> None:
    book = ledger()
    assert book.begin(inspection("/a.mp4", "A")) == []
    assert book.record_clips(batch_of(("A", 0), ("A", 2))) == []
    (results,) = book.record_failure(ClipFailure(("A", 1), "torn"))
    assert summary([results]) == [("/a.mp4", "encoded", True)]
    assert (results.file.status, results.file.num_clips) == ("done", 2)
    assert results.file.reason == "1 of 3 clips: torn"


@pytest.mark.parametrize("is_met_again", ["while it is worked on", "after it was given up"])
def test_copies_of_an_undecodable_file_fail_with_its_reason(
    is_met_again: str,
) -> None:
    book = ledger()
    book.begin(inspection("/a.mp4", "A"))
    if is_met_again == "while it is worked on":
        assert book.begin(inspection("/copy.mp4", "A")) == []
        results = fail_all(book, "A")
    else:
        results = [*fail_all(book, "A"), *book.begin(inspection("/copy.mp4", "A"))]
    assert summary(results) == [("/a.mp4", "failed", True), ("/copy.mp4", "failed", True)]
    assert {each.file.reason for each in results} == {"reason 0"}
    assert {each.file.status for each in results} == {"failed"}


def test_copies_of_a_file_finish_with_it() -> None:
    book = ledger()
    book.begin(inspection("/a.mp4", "A"))
    book.begin(inspection("/early.mp4", "A"))
    results = book.record_clips(batch_of(("A", 0), ("A", 1), ("A", 2)))
    results += book.begin(inspection("/late.mp4", "A"))
    assert summary(results) == [
        ("/a.mp4", "encoded", True),
        ("/early.mp4", "alias", True),
        ("/late.mp4", "alias", True),
    ]
    assert {each.file.num_clips for each in results} == {3}


def test_uninspected_file_is_reported_but_not_stored_as_failed() -> None:
    book = ledger()
    unseen = dataclasses.replace(
        inspection("/a.mp4", ""),
        file=candidate("/a.mp4", modified_ns=0),
        problem="Permission denied",
    )
    seen = dataclasses.replace(inspection("/b.mp4", "B"), problem="not a video")
    nameless = dataclasses.replace(
        inspection("/bad\udcff.mp4", ""), file=candidate("/bad\udcff.mp4"), problem="rename it"
    )
    assert summary([*book.begin(unseen), *book.begin(seen), *book.begin(nameless)]) == [
        ("/a.mp4", "failed", False),
        ("/b.mp4", "failed", True),
        ("/bad\udcff.mp4", "failed", False),
    ]


def test_unchanged_files_are_settled_at_once() -> None:
    good, bad = done_file("/a.mp4", "A", tags=("home",)), done_file("/b.mp4", "B")
    bad = dataclasses.replace(bad, status="failed", reason="torn", num_clips=0)
    book = ledger(good, bad)
    assert book.check_unchanged(candidate("/a.mp4"), retry=False) == FileResult(
        good, "unchanged", False
    )
    assert book.check_unchanged(candidate("/b.mp4"), retry=False) == FileResult(
        bad, "failed", False
    )
    assert book.check_unchanged(candidate("/b.mp4"), retry=True) is None
    assert book.check_unchanged(candidate("/a.mp4", modified_ns=6), retry=False) is None
    assert book.check_unchanged(candidate("/a.mp4", size=101), retry=False) is None
    assert book.check_unchanged(candidate("/new.mp4"), retry=False) is None


def test_images_are_tried_again_once_their_decoder_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = f"not an image that can be read ({images.NEEDS_HEIF})"
    file = done_file("/a.heic", "A")
    book = ledger(dataclasses.replace(file, status="failed", reason=reason, num_clips=0))
    monkeypatch.setattr(images, "image_formats", lambda: images.FORMATS)
    assert book.check_unchanged(candidate("/a.heic"), retry=False) is not None
    monkeypatch.setattr(images, "image_formats", lambda: (*images.FORMATS, images.HEIF))
    assert book.check_unchanged(candidate("/a.heic"), retry=False) is None


def test_stores_new_tags_of_an_unchanged_file() -> None:
    book = ledger(done_file("/a.mp4", "A", tags=("home",)), **{"a.mp4": ("garden",)})
    results = book.check_unchanged(candidate("/a.mp4"), retry=False)
    assert results is not None
    assert (results.file.tags, results.is_new) == (("garden",), True)


def test_file_with_lost_clips_is_encoded_again() -> None:
    book = ledger(done_file("/a.mp4", "A"), clips=2)
    assert book.check_unchanged(candidate("/a.mp4"), retry=False) is None
    assert list(book.requests([inspection("/a.mp4", "A")]))[1:] == [
        ClipRequest("A", "/a.mp4", (2,), (WINDOWS[2],), duration=14.0)
    ]


def test_retries_failed_clips_on_request() -> None:
    row = done_file("/a.mp4", "A", num_clips=2, reason="1 of 3 clips: the decoder process died")
    book = ledger(row, clips=2)
    assert book.check_unchanged(candidate("/a.mp4"), retry=False) is not None
    assert book.check_unchanged(candidate("/a.mp4"), retry=True) is None
    requests = list(book.requests([inspection("/a.mp4", "A")]))[1:]
    assert [request.numbers for request in requests] == [(2,)]
    book.begin(inspection("/a.mp4", "A"))
    results = book.record_clips(batch_of(("A", 2)))
    assert (results[0].file.num_clips, results[0].file.reason) == (3, "")


def test_temporary_failure_is_not_stored() -> None:
    book = Ledger(FakeWriter(), {})
    passing = inspection("/a.mp4", "", problem="Permission denied", is_temporary=True)
    assert summary(book.begin(passing)) == [("/a.mp4", "failed", False)]
    lasting = inspection("/b.mp4", "B", problem="no video stream in it")
    assert summary(book.begin(lasting)) == [("/b.mp4", "failed", True)]


def test_requests_only_clips_that_are_not_stored() -> None:
    book = Ledger(FakeWriter(keys=[("A", 1)]), {})
    first, request, *rest = book.requests([inspection("/a.mp4", "A"), inspection("/b.mp4", "A")])
    assert first == inspection("/a.mp4", "A")
    windows = (WINDOWS[0], WINDOWS[2])
    assert request == ClipRequest("A", "/a.mp4", (0, 2), windows, duration=14.0)
    assert rest == [inspection("/b.mp4", "A")]  # The same content is asked for once.
    book.begin(inspection("/a.mp4", "A"))
    assert summary(book.record_clips(batch_of(("A", 0), ("A", 2)))) == [("/a.mp4", "encoded", True)]


def test_repeated_clips_count_once() -> None:
    book = ledger()
    book.begin(inspection("/a.mp4", "A"))
    first = batch_of(("A", 0), ("A", 1))
    assert book.select_pending(first) is first
    book.record_clips(first)
    again = book.select_pending(batch_of(("A", 1), ("A", 2), ("A", 2), ("B", 0)))
    assert again.keys == [("A", 2)]
    assert again.thumbnails == [b"A2"]
    assert again.vectors.tolist() == [[2.0, 2.0]]
    assert summary(book.record_clips(again)) == [("/a.mp4", "encoded", True)]
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
def test_damage_is_stored_with_the_file(is_cut_short: bool, seconds: float, reason: str) -> None:
    book = ledger()
    book.begin(inspection("/a.mp4", "A", is_cut_short=is_cut_short))
    book.record_damage(Damage("A", seconds))
    book.record_damage(Damage("A", seconds / 2))
    (results,) = book.record_clips(batch_of(("A", 0), ("A", 1), ("A", 2)))
    assert results.file.reason == reason
