"""Skipping unreferenced frames does not change other frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from videos import read_numbers, write_numbered

from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import decode, decode_windows
from eaglenet.video.reader import VideoReader, has_one_layer

SPEC = FrameSpec(num_frames=5, size=64)
HEVC = "log-level=none:keyint=60:bframes=4:b-pyramid=1:"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "h264": ("h264.mp4", {"options": {"x264-params": "bframes=3:b-pyramid=normal:keyint=60"}}),
    "hevc": ("hevc.mp4", {"code": "hevc", "options": {"x265-params": HEVC}}),
    "hevc in Matroska": ("hevc.mkv", {"code": "hevc", "options": {"x265-params": HEVC}}),
}


@pytest.fixture
def num_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of decoded frames for each packet."""
    counts: list[int] = []
    send = VideoReader.send

    def count_frames(self: VideoReader, packet: Any, *, keep: bool = True) -> list[Any]:
        frames = send(self, packet, keep=keep)
        counts.append(len(frames))
        return frames

    monkeypatch.setattr(VideoReader, "send", count_frames)
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_dropping_unreferenced_frames_changes_no_other(
    kind: str, tmp_path: Path, num_decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = KINDS[kind]
    write_numbered(tmp_path / name, 150, **options)
    windows = [(0.0, 2.0), (1.5, 3.5), (4.0, 6.0)]
    actual = list(decode_windows(tmp_path / name, SPEC, windows, threads=1))
    total = sum(num_decoded)
    num_decoded.clear()
    monkeypatch.setattr("eaglenet.video.reader.SAFE_TO_DROP", ())
    monkeypatch.setattr("eaglenet.video.reader.has_one_layer", lambda extradata: False)
    plain = list(decode_windows(tmp_path / name, SPEC, windows, threads=1))
    assert total < 0.8 * sum(num_decoded)
    for mine, its in zip(actual, plain, strict=True):
        assert torch.equal(mine.frames, its.frames)
        assert mine.largest_error == 0
    assert read_numbers(actual[0].frames) == [5, 15, 25, 35, 45]


def test_drops_nothing_with_temporal_layers(tmp_path: Path, num_decoded: list[int]) -> None:
    params = {"x265-params": HEVC + "temporal-layers=2"}
    path = tmp_path / "layers.mp4"
    write_numbered(path, 60, code="hevc", options=params)
    actual = decode(path, SPEC, window=(0.0, 2.4), threads=1)
    # On a busy machine, x265 writes one file in a hundred whose later frames are damaged.
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    every_number = read_numbers(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2))
    assert len(set(every_number)) > 20
    assert read_numbers(actual.frames) == [every_number[row] for row in (6, 18, 30, 42, 54)]
    assert sum(num_decoded) > 0.8 * 60


@pytest.mark.parametrize(
    ("extradata", "is_one"),
    [
        (None, False),
        (b"\x00\x00\x00\x01" + bytes(40), False),  # as MPEG-TS has it
        (b"\x01" + bytes(20) + b"\x0f", False),  # cut off
        (b"\x01" + bytes(20) + b"\x0f\x00", True),
        (b"\x01" + bytes(20) + b"\x17\x00", False),  # two layers
        (b"\x01" + bytes(20) + b"\x07\x00", False),  # 0: does not say
    ],
)
def test_reads_number_of_temporal_layers(extradata: bytes | None, is_one: bool) -> None:
    assert has_one_layer(extradata) == is_one
