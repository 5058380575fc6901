"""Workers may be lost at any time; every item gets one outcome."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from eaglenet.cluster import workers
from eaglenet.cluster.workers import LostWorkerError, WorkerPool
from eaglenet.core.errors import EagleNetError
from eaglenet.video.pool import Failure, Success


@pytest.fixture(autouse=True)
def _items_are_looked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)


class FragileBackend:
    """Squares numbers. A call is lost with a probability, and its worker's other calls with it."""

    def __init__(self, loss: float, seed: int, bad_starts: int = 0) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.bad_starts = bad_starts
        self.alive: set[int] = set()
        self.calls: dict[int, tuple[int, Any]] = {}
        self.started = self.most_alive = 0

    def start(self) -> int:
        self.started += 1
        self.alive.add(self.started)
        self.most_alive = max(self.most_alive, len(self.alive))
        return self.started

    def is_ready(self, worker: int) -> int:
        if self.started <= self.bad_starts:
            self.alive.discard(worker)
        return self.call(worker, None)

    def call(self, worker: int, item: Any) -> int:
        number = len(self.calls)
        self.calls[number] = worker, item
        return number

    def wait(self, calls: Sequence[int], seconds: float) -> list[int]:
        return [self.random.choice(list(calls))]

    def result(self, call: int) -> Any:
        worker, item = self.calls[call]
        if item is not None and self.random.random() < self.loss:
            self.alive.discard(worker)
        if worker not in self.alive:
            raise LostWorkerError("killed")
        return None if item is None else item * item

    def end(self, worker: int) -> None:
        self.alive.discard(worker)


@pytest.mark.parametrize("seed", range(20))
def test_every_item_gets_one_outcome_despite_lost_workers(seed: int) -> None:
    backend = FragileBackend(loss=0.3, seed=seed, bad_starts=seed % 3)
    outcomes = list(WorkerPool(backend, size=1 + seed % 4).map(iter(range(57))))
    assert sorted(outcome.request for outcome in outcomes) == list(range(57))
    for outcome in outcomes:
        if isinstance(outcome, Success):
            assert outcome.result == outcome.request**2
    assert backend.most_alive <= 1 + seed % 4
    assert not backend.alive


def test_item_that_kills_workers_fails_alone() -> None:
    class Poisoned(FragileBackend):
        def result(self, call: int) -> Any:
            if self.calls[call][1] == 5:
                self.alive.discard(self.calls[call][0])
            return super().result(call)

    outcomes = list(WorkerPool(Poisoned(0.0, seed=1), size=1).map(iter(range(40))))
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [outcome.request for outcome in failed if outcome.request == 5] == [5]
    assert len(outcomes) == 40
    assert "workers were lost while processing it" in failed[0].reason


def test_cluster_without_workers_is_an_error() -> None:
    backend = FragileBackend(0.0, seed=0, bad_starts=1000)
    with pytest.raises(EagleNetError, match=r"no worker of the cluster can start \(killed\)"):
        list(WorkerPool(backend, size=2).map(iter(range(3))))


def test_error_of_the_items_ends_the_work() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise EagleNetError("the list ends early")

    backend = FragileBackend(0.0, seed=0)
    with pytest.raises(EagleNetError, match="the list ends early"):
        list(WorkerPool(backend, size=2).map(items()))
    assert not backend.alive


def test_items_are_read_only_a_little_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    outcomes = WorkerPool(FragileBackend(0.0, seed=0), size=2).map(items())
    next(outcomes)
    outcomes.close()
    assert len(taken) <= 2 * 2 + workers.DEPTH * 2 + 2
