"""The worker pool: order, failures and crashed workers; no process remains."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from pool_work import (
    SPEC,
    compute,
    die_on_poison,
    end_at_once,
    share_request,
    wait,
    wait_for_a_kill,
    wrong_type,
)
from videos import read_numbers, write_numbered

from eaglenet.core.errors import EagleNetError
from eaglenet.video import worker_host
from eaglenet.video.decoding import DecodedVideo, DecodeRequest, decode, decode_many
from eaglenet.video.input_file import share_file
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Failure, Success, map_ahead
from eaglenet.video.worker import IsolatedProcess
from eaglenet.video.worker_host import Host
from processes import descendants

ACCESS: Access[DecodeRequest, DecodedVideo] = Access(share=share_request)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a video whose frames show their number."""
    return write_numbered(tmp_path_factory.mktemp("films") / "a.mp4", 80)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Check after each test that no worker is alive."""
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("real_hosts")
@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_ordered_and_equal_direct_decoding(
    film: Path, tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.mp4").write_text("no video" * 99)
    items: list[tuple[str, Path, tuple[float, float] | None]] = [
        (f"v{n}", film, (n / 10, n / 10 + 1)) for n in range(9)
    ]
    items[3] = ("broken", tmp_path / "text.mp4", None)
    items[6] = ("outside", film, (50.0, 60.0))
    items[7] = ("reversed", film, (2.0, 1.0))
    with caplog.at_level(logging.WARNING):
        results = list(decode_many(items, SPEC, workers=workers))
    assert [result.request.video_id for result in results] == [item[0] for item in items]
    for (_, path, window), result in zip(items, results, strict=True):
        if isinstance(result, Success):
            direct = decode(path, SPEC, window=window)
            assert torch.equal(result.result.frames, direct.frames)
            assert torch.equal(result.result.mask, direct.mask)
            assert torch.equal(result.result.seconds, direct.seconds)
            assert result.result.window == window
    reasons = {
        result.request.video_id: result.reason for result in results if isinstance(result, Failure)
    }
    assert list(reasons) == ["broken", "outside", "reversed"]
    assert "not a video" in reasons["broken"]
    assert "outside the video" in reasons["outside"]
    report = caplog.records[-1].getMessage()
    assert str(tmp_path / "text.mp4") in report
    assert all(reason in report for reason in reasons.values())


def test_request_that_crashes_two_workers_fails_alone(film: Path) -> None:
    names = ["a", "b", "poison", "c", "d", "e"]
    items = [DecodeRequest(name, film) for name in names]
    results = list(map_ahead(die_on_poison, items, workers=2, access=ACCESS))
    assert [result.request.video_id for result in results] == names
    bad = results[2]
    assert isinstance(bad, Failure)
    assert "the decoder process died (exit code 11)" in bad.reason
    assert sum(isinstance(result, Success) for result in results) == 5


def test_request_of_a_killed_worker_is_retried(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "b.mp4", 40)
    os.utime(path, (1, 1))
    items = [DecodeRequest(name, path) for name in ("first", "killed", "last")]
    results = map_ahead(wait_for_a_kill, items, workers=1, access=ACCESS)
    assert isinstance(next(results), Success)
    time.sleep(0.5)
    # The process started last is that of the file.
    worker = descendants(os.getpid())[-1]
    os.utime(path)
    os.kill(worker, signal.SIGKILL)
    rest = list(results)
    assert [result.request.video_id for result in rest] == ["killed", "last"]
    assert isinstance(rest[0], Success)
    assert read_numbers(rest[0].result.frames) == [4, 12, 20, 28, 36]


def test_closing_early_ends_the_workers(film: Path) -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield ("v", film, None)

    results = decode_many(endless(), SPEC, workers=2, prefetch=3)
    assert len(list(islice(results, 4))) == 4
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 30


def test_a_host_that_died_is_replaced(film: Path) -> None:
    """It serves the workers of several pools; each request of one that was killed is retried."""
    host = Host(wait_for_a_kill, 2**30)
    items = [DecodeRequest(str(number), film) for number in range(3)]
    for _ in range(2):
        results = map_ahead(
            wait_for_a_kill, items, workers=2, access=Access(share_request, host=host)
        )
        assert [isinstance(result, Success) for result in results] == [True] * 3
        assert host._child is not None
        os.kill(host._child.process.pid, signal.SIGKILL)
    host.close()
    # After Ctrl-C, pools may still run.
    with pytest.raises(EagleNetError, match="closed"):
        list(map_ahead(wait_for_a_kill, items, workers=2, access=Access(share_request, host=host)))


def test_processor_time_of_the_last_file_counts(film: Path) -> None:
    """Benchmarks compare processor time of child processes, which the kernel adds up on waiting."""
    before = child_seconds()
    access: Access[Path, float] = Access(share=share_file)
    assert len(list(map_ahead(compute, [film], workers=1, access=access))) == 1
    # 0.5 s of the work, and those of starting the host.
    assert child_seconds() - before >= 0.5


def child_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def test_prefetch_limits_the_work_ahead(film: Path) -> None:
    num_taken = 0

    def count_requests() -> Iterator[Any]:
        nonlocal num_taken
        for n in range(100):
            num_taken += 1
            yield (str(n), film, None)

    results = decode_many(count_requests(), SPEC, workers=1, prefetch=2)
    next(results)
    time.sleep(0.5)
    assert (
        num_taken <= 1 + 1 + 2 + 1
    )  # returned, in progress, ahead, and one more for the returned one
    results.close()


def test_unusable_workers_do_not_hang(
    film: Path,
) -> None:
    results = list(map_ahead(end_at_once, [DecodeRequest("a", film)], workers=1))
    assert isinstance(results[0], Failure)
    with pytest.raises((EagleNetError, AttributeError, TypeError, pickle.PicklingError)):
        list(map_ahead(lambda request: None, [DecodeRequest("a", film)], workers=1))


def test_errors_of_the_request_iterator_are_raised(film: Path) -> None:
    def items() -> Iterator[Any]:
        yield ("a", film, None)
        raise RuntimeError("the list of videos broke")

    with pytest.raises(RuntimeError, match="the list of videos broke"):
        list(decode_many(items(), SPEC, workers=1))


def test_result_of_another_type_fails_its_request_only() -> None:
    first, second = map_ahead(wrong_type, [0, 4], workers=1)
    assert isinstance(first, Failure)
    assert "does not fit" in first.reason
    assert isinstance(second, Success)
    assert second.result == 4


@pytest.mark.parametrize(
    ("duration", "size", "expected"),
    [
        (0.0, 2**20, 600.0),
        (30.0, 2**30, 660.0),
        (1e12, 2**20, 660.0),  # A small file that claims to last for millennia.
        (1e12, 2**40, 24 * 3600.0),
        (-5.0, 2**20, 600.0),
    ],
)
def test_time_budget_is_bounded_whatever_a_file_claims(
    duration: float, size: int, expected: float, tmp_path: Path
) -> None:
    path = tmp_path / "a.mp4"
    with path.open("wb") as file:
        file.truncate(size)
    assert Limits().time_for(duration, str(path)) == expected
    assert Limits().time_for(duration, "s3://bucket/missing.mp4") <= 24 * 3600.0


def test_a_process_does_not_end_with_the_thread_that_called_it_first() -> None:
    """A service ends idle threads, while others use the processes that they started."""
    process = IsolatedProcess(wait, 2**30, 60.0)
    is_started, may_end = threading.Event(), threading.Event()

    def call_first() -> None:
        process(0.0)
        is_started.set()
        may_end.wait(60)

    try:
        threading.Thread(target=call_first).start()
        assert is_started.wait(60)
        threading.Timer(0.3, may_end.set).start()
        assert process(1.0) == 1.0
    finally:
        may_end.set()
        process.close()


def test_a_process_starts_in_a_thread_that_outlives_the_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python shuts down all pools of threads when the main thread ends, then waits for others."""
    starter = ThreadPoolExecutor(1)
    starter.shutdown()
    monkeypatch.setattr(worker_host, "_starter", starter)
    process = IsolatedProcess(wait, 2**30, 60.0)
    with ThreadPoolExecutor(1) as thread:
        try:
            assert thread.submit(process, 0.0).result() == 0.0
        finally:
            process.close()
