"""Decoding ahead: order, skips, workers that die, and no process left behind."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from videos import read_numbers, write_numbered

from eaglenet.errors import EagleNetError
from eaglenet.types import FrameSpec
from eaglenet.video.decoding import DecodedVideo, decode
from eaglenet.video.pool import Decoded, DecodeRequest, Skipped, decode_many, decode_request

SPEC = FrameSpec(num_frames=5, size=64)


def die_on_poison(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """As a crash in a codec: nothing can be caught."""
    if "poison" in request.video_id:
        os._exit(11)
    return decode_request(request, spec)


def wait_for_a_kill(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """The first attempt leaves its process number and hangs; the second decodes."""
    note = Path(request.path).with_suffix(".pid")
    if request.video_id == "killed" and not note.exists():
        note.write_text(str(os.getpid()))
        time.sleep(60)
    return decode_request(request, spec)


def end_at_once(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    raise SystemExit(3)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("films") / "a.mp4", 80)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order_and_equal_direct_decoding(
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
    assert [result.video_id for result in results] == [item[0] for item in items]
    for (_, path, window), result in zip(items, results, strict=True):
        if isinstance(result, Decoded):
            direct = decode(path, SPEC, window=window)
            assert torch.equal(result.video.frames, direct.frames)
            assert torch.equal(result.video.mask, direct.mask)
            assert torch.equal(result.video.seconds, direct.seconds)
            assert result.video.window == window
    skipped = {result.video_id: result.reason for result in results if isinstance(result, Skipped)}
    assert list(skipped) == ["broken", "outside", "reversed"]
    assert "not a video" in skipped["broken"]
    assert "outside the video" in skipped["outside"]
    report = caplog.records[-1].getMessage()
    assert str(tmp_path / "text.mp4") in report
    assert all(reason in report for reason in skipped.values())


def test_an_item_that_kills_its_worker_twice_is_skipped_and_the_rest_goes_on(film: Path) -> None:
    names = ["a", "b", "poison", "c", "d", "e"]
    items = [(name, film, None) for name in names]
    results = list(decode_many(items, SPEC, workers=2, decode_one=die_on_poison))
    assert [result.video_id for result in results] == names
    bad = results[2]
    assert isinstance(bad, Skipped)
    assert "the decoder process died (exit code 11)" in bad.reason
    assert sum(isinstance(result, Decoded) for result in results) == 5


def test_an_item_whose_worker_is_killed_from_outside_is_tried_again(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "b.mp4", 40)
    note = path.with_suffix(".pid")
    items = [("first", path, None), ("killed", path, None), ("last", path, None)]
    results = decode_many(items, SPEC, workers=1, decode_one=wait_for_a_kill)
    assert isinstance(next(results), Decoded)
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(int(note.read_text()), signal.SIGKILL)
    rest = list(results)
    assert [result.video_id for result in rest] == ["killed", "last"]
    assert isinstance(rest[0], Decoded)
    assert read_numbers(rest[0].video.frames) == [4, 12, 20, 28, 36]


def test_leaving_early_ends_the_workers_at_once(film: Path) -> None:
    def endless():
        while True:
            yield ("v", film, None)

    results = decode_many(endless(), SPEC, workers=2, prefetch=3)
    assert len(list(islice(results, 4))) == 4
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 5


def test_no_more_is_decoded_than_was_asked_for_ahead(film: Path) -> None:
    taken = 0

    def counted():
        nonlocal taken
        for n in range(100):
            taken += 1
            yield (str(n), film, None)

    results = decode_many(counted(), SPEC, workers=1, prefetch=2)
    next(results)
    time.sleep(0.5)
    assert taken <= 1 + 1 + 2 + 1  # given, in work, ahead, and the one whose place was made
    results.close()


def test_workers_that_cannot_work_at_all_end_in_an_error_or_skips_not_in_waiting(
    film: Path,
) -> None:
    results = list(decode_many([("a", film, None)], SPEC, workers=1, decode_one=end_at_once))
    assert isinstance(results[0], Skipped)
    with pytest.raises((EagleNetError, AttributeError, TypeError)):
        list(decode_many([("a", film, None)], SPEC, workers=1, decode_one=lambda *_: None))


def test_errors_of_the_items_themselves_are_raised(film: Path) -> None:
    def items():
        yield ("a", film, None)
        raise RuntimeError("the list of videos broke")

    with pytest.raises(RuntimeError, match="the list of videos broke"):
        list(decode_many(items(), SPEC, workers=1))
