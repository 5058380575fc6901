"""A decoder on the GPU that a file has taken over: what it reaches, and what its parent does.

There need be no GPU: the worker is prepared and confined as on a machine with one, but for the CUDA
context.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_work import crash_on_gpu, escape_in_older_thread, host_without_gpu
from hostile_work import takes_memory
from takeover import ATTACKS, MEMORY, Target, escape, reply_with, secrets_in_reach
from test_confinement import SECRET, missing, target, with_attack  # noqa: F401 (fixtures)

from eaglenet.core.process import start_child
from eaglenet.video import worker_host
from eaglenet.video.input_file import share_file
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="workers are confined on Linux on x86-64 and arm64",
)
FOR_DRIVER = {
    "start_thread": "bound by the same filter",
    "make_memory_file": "no program starts from it, and files cannot grow",
    "socket_pair": "ends in the same process; no descriptor is sent over it",
    "look_at_file": "libraries look at files before they open them; older threads can read them",
    "look_at_file_like_a_descriptor": "as before: a filter does not see which path is meant",
    "take_addresses": "drivers reserve terabytes of them",
    "take_shared_memory": "memory that the driver shares with the GPU, not limited",
}
"""Attacks that are system calls of the driver, and why they may be; SECURITY.md says the same."""


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(host: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        return start_child(host_without_gpu, *arguments, **options)

    monkeypatch.setattr(worker_host, "start_child", start)


def gpu_access(**options: Any) -> Access[Any, Any]:
    return Access(gpu_workers=1, **options)


def test_it_reaches_nothing(target: Target, missing: tuple[str, ...]) -> None:  # noqa: F811
    if missing:
        pytest.skip(f"this kernel does not confine: {missing}")
    before = sorted(os.listdir(target.folder))
    attacks = [with_attack(target, name) for name in ATTACKS]
    access = gpu_access(share=lambda target: share_file(target.path))
    budget: Budget[Target] = Budget(MEMORY, lambda target: "", lambda target: 60.0)
    results = {
        outcome.request.attack: outcome.result if isinstance(outcome, Success) else outcome.reason
        for outcome in map_ahead(escape, attacks, workers=1, budget=budget, access=access)
    }
    allowed = {name for name, result in results.items() if not result.startswith("refused")}
    assert allowed == set(FOR_DRIVER)
    assert len(results) == len(ATTACKS)
    assert sorted(os.listdir(target.folder)) == before


def test_it_sees_no_secret(target: Target) -> None:  # noqa: F811
    (outcome,) = map_ahead(secrets_in_reach, [target], workers=1, access=gpu_access())
    assert isinstance(outcome, Success)
    assert not any(SECRET in line for line in outcome.result)


def test_hostile_replies_fail_their_own_request() -> None:
    requests = ["good", "a pickle", "a huge array", "good"]
    outcomes = list(map_ahead(reply_with, requests, workers=1, access=gpu_access()))
    assert [type(outcome) for outcome in outcomes] == [Success, Failure, Failure, Success]


def test_time_budget_ends_it() -> None:
    budget: Budget[str] = Budget(
        2**30, lambda request: request, lambda request: 60.0 if request == "good" else 1.0
    )
    outcomes = map_ahead(
        reply_with, ["good", "unread requests"], workers=1, budget=budget, access=gpu_access()
    )
    assert isinstance(next(outcomes), Success)
    began = time.monotonic()
    (slow,) = outcomes
    assert isinstance(slow, Failure)
    assert "the limit" in slow.reason
    assert time.monotonic() - began < 60


def test_what_crashes_it_goes_to_the_cpu() -> None:
    outcomes = list(map_ahead(crash_on_gpu, list("abc"), workers=2, access=gpu_access()))
    results = [outcome.result for outcome in outcomes if isinstance(outcome, Success)]
    assert results == [f"{name} on the CPU" for name in "abc"]


def test_memory_is_limited() -> None:
    budget: Budget[int] = Budget(2**29, lambda request: request, lambda request: 20.0)
    outcomes = list(map_ahead(takes_memory, [1, 2], workers=1, budget=budget, access=gpu_access()))
    assert isinstance(outcomes[0], Failure)
    assert "memory" in outcomes[0].reason
    assert isinstance(outcomes[1], Success)


def test_threads_of_the_driver_are_bound_by_the_filter(tmp_path: Path) -> None:
    """They exist before Landlock, so that they can still read; SECURITY.md says so."""
    (tmp_path / "secret").write_text("long")
    child = start_child(escape_in_older_thread, str(tmp_path))
    results = child.connection.recv()
    child.process.join()
    if results.pop("missing"):
        pytest.skip("this kernel does not confine")
    assert {name for name, result in results.items() if result == "allowed"} <= {"read"}
    assert (tmp_path / "secret").read_text() == "long"
    assert os.listdir(tmp_path) == ["secret"]
