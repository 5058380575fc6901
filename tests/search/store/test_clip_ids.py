"""Ids of clips: found, shortened no further than they differ, and completed where that is clear."""

from __future__ import annotations

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.search.store.clip_ids import ClipIds

CONTENTS = ["abcdef" + "0" * 58, "abcdxy" + "1" * 58, "9" * 64]
NUM_CLIPS = [3, 2, 1]
FIRST_ROW = [0, 3, 5]


def row_in_file(file: int, number: int) -> int | None:
    return FIRST_ROW[file] + number if number < NUM_CLIPS[file] else None


@pytest.fixture
def ids() -> ClipIds:
    """Ids of the clips of a few files."""
    return ClipIds(CONTENTS, row_in_file)


def test_every_clip_is_found_by_its_id_and_by_its_short_one(ids: ClipIds) -> None:
    for file, content in enumerate(CONTENTS):
        for number in range(NUM_CLIPS[file]):
            short = ids.short((content, number))
            assert ids.row(f"{content[:16]}-{number}") == FIRST_ROW[file] + number
            assert ids.full(short) == f"{content[:16]}-{number}"
    assert ids.short((CONTENTS[0], 1)) == "abcde-1"  # The shortest that tells all files apart.


def test_an_id_of_no_clip_is_given_back_as_it_is(ids: ClipIds) -> None:
    for text in ("", "-", "abcdef0000000000-3", "abcdef0000000000-01", "999-0", "zzzz-0"):
        assert ids.row(text) is None
        assert ids.full(text) == text


def test_a_beginning_of_several_ids_is_refused(ids: ClipIds) -> None:
    with pytest.raises(UsageError, match="begins the ids of 2 clips"):
        ids.full("abcd-1")
    assert ids.full("abcd-2") == "abcdef0000000000-2"  # Only one of the files has a third clip.
