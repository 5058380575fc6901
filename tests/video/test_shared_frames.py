"""Overlapping windows share frames."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from videos import read_numbers, write_numbered

from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import decode, decode_windows
from eaglenet.video.sampling import shared_step, stepped_targets

SPEC = FrameSpec(num_frames=6, size=64)
STEP = 0.4
WINDOWS = [(0.0, 2.5), (2.0, 4.5), (4.0, 6.5)]


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 6.4 s at 25 frames per second; the last window is shorter."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_numbered(path, 160)
    return path


@pytest.mark.parametrize(
    ("clip_seconds", "overlap", "num_frames", "step"),
    [
        (10.0, 2.0, 12, 0.8),  # 10 of 12 are new
        (10.0, 5.0, 12, 5 / 6),  # 6 of 12
        (2.5, 0.5, 6, STEP),
        (10.0, 0.0, 12, 0.0),  # nothing overlaps
        (10.0, 0.5, 12, 0.0),  # too little for a frame
        (3.0, 2.9, 1, 0.0),
    ],
)
def test_shared_step_divides_the_hop(
    clip_seconds: float, overlap: float, num_frames: int, step: float
) -> None:
    actual = shared_step(clip_seconds, overlap, num_frames)
    assert actual == pytest.approx(step)
    if actual:
        steps = (clip_seconds - overlap) / actual
        assert steps == pytest.approx(round(steps))
        assert steps < num_frames
        assert actual * num_frames <= clip_seconds


def test_stepped_targets_are_centred() -> None:
    tick = Fraction(1, 1000)
    actual = stepped_targets(Fraction(0), Fraction(10_000), 12, Fraction(800), tick)
    assert actual == [600 + 800 * place for place in range(12)]


def test_full_windows_share_frames(film: Path) -> None:
    actual = list(decode_windows(film, SPEC, WINDOWS, step=STEP))
    numbers = [read_numbers(video.frames) for video in actual]
    assert numbers[0] == [6, 16, 26, 36, 46, 56]  # 0.25 s, and on by 0.4 s
    assert numbers[1] == [number + 50 for number in numbers[0]]
    assert numbers[0][-1] == numbers[1][0]
    assert torch.equal(actual[0].frames[-1], actual[1].frames[0])
    assert numbers[1][-1] == numbers[2][0]
    assert all(
        window[0] <= second < window[1]
        for window, video in zip(WINDOWS, actual, strict=True)
        for second in video.seconds.tolist()
    )


def test_window_equals_itself_among_others(film: Path) -> None:
    together = list(decode_windows(film, SPEC, WINDOWS, step=STEP))
    for window, video in zip(WINDOWS, together, strict=True):
        (alone,) = decode_windows(film, SPEC, [window], step=STEP)
        assert torch.equal(alone.frames, video.frames)
        assert torch.equal(alone.seconds, video.seconds)


def test_short_window_is_sampled_evenly(film: Path) -> None:
    (actual,) = decode_windows(film, SPEC, [(4.0, 6.0)], step=STEP)
    plain = decode(film, SPEC, window=(4.0, 6.0))
    assert torch.equal(actual.frames, plain.frames)
    assert torch.equal(actual.seconds, plain.seconds)
