"""Number of processors available to this process: affinity and container quotas."""

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
    """Pin this thread to one processor, like `taskset`."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no processor affinity on this system")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_counts_only_processors_in_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert num_cores() == 1


@pytest.mark.usefixtures("one_core")
def test_index_run_starts_no_more_workers_than_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    film = [CandidateFile("/film.mp4", 2**30, 0)]
    assert num_workers(film, None) == 1
    assert num_workers(film, 500) == 1


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_counts_all_processors_without_affinity(
    counted: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert num_cores() == expected


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate sixteen processors and control groups in a temporary folder."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(platform, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(platform, "PROC", tmp_path / "proc")
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
def test_container_quota_limits_the_count(groups: Path, limit: str, expected: int) -> None:
    write(groups / "proc/self/cgroup", "0::/\n")
    write(groups / "groups/cpu.max", limit + "\n")
    assert num_cores() == expected


def test_smallest_quota_of_nested_groups_counts(groups: Path) -> None:
    write(groups / "proc/self/cgroup", "0::/user.slice/a.scope\n")
    write(groups / "groups/user.slice/cpu.max", "300000 100000")
    write(groups / "groups/user.slice/a.scope/cpu.max", "max 100000")
    write(groups / "cpu.max", "100000 100000")  # Outside the control groups: ignored.
    assert num_cores() == 3


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_reads_quota_of_cgroup_v1(groups: Path, folder: str) -> None:
    # The name is a path in the host's tree, which a container does not see.
    write(groups / "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/1234\n0::/\n")
    write(groups / f"groups/{folder}/cpu.cfs_quota_us", "400000")
    write(groups / f"groups/{folder}/cpu.cfs_period_us", "100000")
    assert num_cores() == 4
    write(groups / f"groups/{folder}/cpu.cfs_quota_us", "-1")
    assert num_cores() == 16


def test_no_control_groups_means_no_limit(groups: Path) -> None:
    assert num_cores() == 16


def test_quota_sets_torch_threads_unless_the_user_did(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(platform.THREADS_VARIABLE, "7")
    monkeypatch.delenv(platform.THREADS_VARIABLE)
    write(groups / "proc/self/cgroup", "0::/\n")
    write(groups / "groups/cpu.max", "max 100000")
    platform.limit_threads()
    assert platform.THREADS_VARIABLE not in os.environ
    write(groups / "groups/cpu.max", "200000 100000")
    platform.limit_threads()
    assert os.environ[platform.THREADS_VARIABLE] == "2"
    monkeypatch.setenv(platform.THREADS_VARIABLE, "5")
    platform.limit_threads()
    assert os.environ[platform.THREADS_VARIABLE] == "5"
