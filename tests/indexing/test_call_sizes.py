"""Number of clips per call to a worker of a cluster."""

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


def test_smaller_size_midway_drops_no_clip() -> None:
    sizes = iter([8, 8, 8, 2, 2, 2, 2, 8, 8] + [3] * 100)
    calls = list(
        group_requests([request("a", 5), request("b", 9), request("c", 7)], lambda: next(sizes))
    )
    assert sum(len(part.numbers) for call in calls for part in call) == 21


def test_slow_workers_get_short_calls() -> None:
    clock = Clock()
    sizer = CallSizer(2, clock)
    assert sizer.size() == FIRST_CALL
    sizer.record(8)
    assert sizer.size() == FIRST_CALL  # Of the first, most was the start.
    for _ in range(6):  # Two workers, 2.5 s a clip.
        clock.now += 10.0
        sizer.record(8)
    assert sizer.size() == CALL_SECONDS / 2.5
    for _ in range(20):
        clock.now += 400.0
        sizer.record(8)
    assert sizer.size() == MIN_CALL


def test_fast_workers_get_full_calls() -> None:
    clock = Clock()
    sizer = CallSizer(4, clock)
    for _ in range(4):
        sizer.record(8)
    assert sizer.size() == MAX_CALL  # All at one moment.
    clock.now += 1.0
    sizer.record(32)
    assert sizer.size() == MAX_CALL
