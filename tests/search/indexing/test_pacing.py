"""How many clips a call to a worker of a cluster has."""

from __future__ import annotations

import pytest

from eaglenet.cluster.ray_executor import (
    CALL_SECONDS,
    FIRST_CALL,
    MAX_CALL,
    MIN_CALL,
    CallSizer,
    group_requests,
)
from eaglenet.indexing.decoding import ClipRequest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(name: str, clips: int) -> ClipRequest:
    numbers = tuple(range(clips))
    return ClipRequest(name, name, numbers, tuple((8.0 * n, 8.0 * n + 10) for n in numbers))


@pytest.mark.parametrize("size", [1, 3, 8, 32])
def test_every_clip_is_in_one_call_in_order(size: int) -> None:
    given = [request("a", 20), request("b", 1), request("c", 16), request("d", 2)]
    calls = list(group_requests(given, lambda: size))
    found = [
        (part.content, number, window)
        for call in calls
        for part in call
        for number, window in zip(part.numbers, part.windows, strict=True)
    ]
    wanted = [
        (whole.content, number, window)
        for whole in given
        for number, window in zip(whole.numbers, whole.windows, strict=True)
    ]
    assert found == wanted
    sizes = [sum(len(part.numbers) for part in call) for call in calls]
    assert all(each == size for each in sizes[:-1])
    assert 0 < sizes[-1] <= size


def test_a_size_that_falls_in_between_leaves_nothing_out() -> None:
    sizes = iter([8, 8, 8, 2, 2, 2, 2, 8, 8] + [3] * 100)
    calls = list(
        group_requests([request("a", 5), request("b", 9), request("c", 7)], lambda: next(sizes))
    )
    assert sum(len(part.numbers) for call in calls for part in call) == 21


def test_slow_workers_get_calls_that_are_soon_over() -> None:
    clock = Clock()
    pace = CallSizer(2, clock)
    assert pace.size() == FIRST_CALL
    pace.record(8)
    assert pace.size() == FIRST_CALL  # Of the first, most was the start.
    for _ in range(6):  # Two workers, 2.5 s a clip.
        clock.now += 10.0
        pace.record(8)
    assert pace.size() == CALL_SECONDS / 2.5
    for _ in range(20):
        clock.now += 400.0
        pace.record(8)
    assert pace.size() == MIN_CALL


def test_fast_workers_get_as_much_as_a_call_takes() -> None:
    clock = Clock()
    pace = CallSizer(4, clock)
    for _ in range(4):
        pace.record(8)
    assert pace.size() == MAX_CALL  # All at one moment.
    clock.now += 1.0
    pace.record(32)
    assert pace.size() == MAX_CALL
