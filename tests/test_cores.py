"""Processors that were not given to a process are not counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglenet.core import platform
from eaglenet.core.platform import num_cores
from eaglenet.indexing.executor import num_workers
from eaglenet.indexing.files import CandidateFile


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
    film = [CandidateFile("/film.mp4", 2**30, 0)]
    assert num_workers(film, None) == 1
    assert num_workers(film, 500) == 1


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_a_system_that_does_not_tell_has_all_of_them(
    counted: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert num_cores() == expected


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of sixteen processors with control groups of our own."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(platform, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(platform, "OWN_GROUPS", tmp_path / "own")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000", 16),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("9900000 100000", 16),
        ("nonsense", 16),
        ("", 16),
        ("0 0", 16),
    ],
)
def test_a_container_has_as_many_as_it_was_granted_time_for(
    groups: Path, limit: str, expected: int
) -> None:
    write(groups / "own", "0::/\n")
    write(groups / "groups/cpu.max", limit + "\n")
    assert num_cores() == expected


def test_the_narrowest_of_nested_groups_counts(groups: Path) -> None:
    write(groups / "own", "0::/user.slice/a.scope\n")
    write(groups / "groups/user.slice/cpu.max", "300000 100000")
    write(groups / "groups/user.slice/a.scope/cpu.max", "max 100000")
    write(groups / "cpu.max", "100000 100000")  # Above the root of the groups: none of ours.
    assert num_cores() == 3


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_groups_of_the_first_version(groups: Path, folder: str) -> None:
    # The name is that of the machine's tree, which a container does not see.
    write(groups / "own", "5:memory:/x\n4:cpu,cpuacct:/docker/1234\n0::/\n")
    write(groups / f"groups/{folder}/cpu.cfs_quota_us", "400000")
    write(groups / f"groups/{folder}/cpu.cfs_period_us", "100000")
    assert num_cores() == 4
    write(groups / f"groups/{folder}/cpu.cfs_quota_us", "-1")
    assert num_cores() == 16


def test_a_system_without_groups_has_no_limit(groups: Path) -> None:
    assert num_cores() == 16


def test_torch_is_told_of_a_limit_unless_someone_told_it_more(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(platform.THREADS, "7")
    monkeypatch.delenv(platform.THREADS)
    write(groups / "own", "0::/\n")
    write(groups / "groups/cpu.max", "max 100000")
    platform.limit_threads()
    assert platform.THREADS not in os.environ
    write(groups / "groups/cpu.max", "200000 100000")
    platform.limit_threads()
    assert os.environ[platform.THREADS] == "2"
    monkeypatch.setenv(platform.THREADS, "5")
    platform.limit_threads()
    assert os.environ[platform.THREADS] == "5"
