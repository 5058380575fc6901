"""What a disk refuses is said in words that tell what to do."""

from __future__ import annotations

import errno

import pytest

from eaglenet.core.errors import StoreError
from eaglenet.search.store.faults import disk_errors


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk of /store is full"),
        (errno.EDQUOT, "the disk of /store is full"),
        (errno.EACCES, "/store cannot be written to"),
        (errno.EPERM, "/store cannot be written to"),
        (errno.EROFS, "/store cannot be written to"),
        (errno.EIO, "/store: "),
    ],
)
def test_refusals_are_told_by_their_number(number: int, words: str) -> None:
    with pytest.raises(StoreError, match=words), disk_errors("/store"):
        raise OSError(number, "anything")


@pytest.mark.parametrize("is_searched", [True, False])
def test_a_store_that_can_be_searched_is_said_to_be(is_searched: bool) -> None:
    with pytest.raises(StoreError) as caught, disk_errors("/store", is_searched=is_searched):
        raise PermissionError(errno.EACCES, "no")
    assert ("searching it still works" in str(caught.value)) == is_searched


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), disk_errors("/store"):
        raise ZeroDivisionError
    with pytest.raises(StoreError, match=r"^own words$"), disk_errors("/store"):
        raise StoreError("own words")
