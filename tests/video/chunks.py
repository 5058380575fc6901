"""Helpers that decode files in chunks, as workers do, and compare the results."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import DecodedVideo, decode_windows
from eaglenet.video.sampling import Window
from eaglenet.video.source import open_video

SPEC = FrameSpec(num_frames=5, size=64)
FRAMES = 25 * 24
WINDOWS = [(start, start + 2.5) for start in range(0, 24, 2)]
"""Of which each overlaps the next by half a second."""


def write_damaged(film: Path, target: Path) -> Path:
    """Write a truncated copy with corrupted bytes."""
    content = bytearray(film.read_bytes())
    chance = random.Random(3)
    for _ in range(6):
        place = chance.randrange(len(content) // 4, len(content))
        content[place : place + 20] = chance.randbytes(20)
    target.write_bytes(content[: len(content) * 9 // 10])
    return target


def decode_in_chunks(
    path: Path, *, keep_open: bool, windows: Sequence[Window] = WINDOWS, at_once: int = 2
) -> dict[Window | None, DecodedVideo]:
    """Decode a few windows at a time."""
    with open_video(path) as source:
        end = source.seconds(source.span()[1])
    inside = [window for window in windows if window[0] < end]
    return {
        video.window: video
        for start in range(0, len(inside), at_once)
        for video in decode_windows(
            path,
            SPEC,
            inside[start : start + at_once],
            threads=1,
            skip_damaged=True,
            thumbnail_size=24,
            keep_open=keep_open,
        )
    }


def assert_equal(
    actual: dict[Window | None, DecodedVideo], expected: dict[Window | None, DecodedVideo]
) -> None:
    assert actual.keys() == expected.keys()
    for window, video in actual.items():
        assert torch.equal(video.frames, expected[window].frames), window
        assert torch.equal(video.seconds, expected[window].seconds), window
        assert (video.thumbnail == expected[window].thumbnail).all(), window


def open_files(name: str) -> int:
    folder = "/proc/self/fd"
    targets = []
    for entry in os.listdir(folder):
        try:
            targets.append(os.readlink(f"{folder}/{entry}"))
        except OSError:
            continue
    return sum(Path(target).name == name for target in targets)
