"""Processors that were not given to a process are not counted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from eaglenet.cores import num_cores
from eaglenet.search.indexing.executor import num_workers
from eaglenet.search.indexing.files import FoundFile


@pytest.fixture
def one_core() -> Iterator[None]:
    """This thread on one processor, as `taskset` does it for a process."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot give a process some of its processors")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_only_the_cores_given_to_a_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert num_cores() == 1


@pytest.mark.usefixtures("one_core")
def test_an_index_run_starts_no_process_for_cores_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    film = [FoundFile("/film.mp4", 2**30, 0)]
    assert num_workers(film, None) == 1
    assert num_workers(film, 500) == 1


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_a_system_that_does_not_tell_has_all_of_them(
    counted: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert num_cores() == expected
