"""Decoded frames, which take megabytes each, are freed early."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from videos import write_numbered

from eaglenet.video import pixels, windows
from eaglenet.video.source import open_video


@pytest.mark.parametrize("rotation", [0, 90])
def test_converted_frame_is_freed(tmp_path: Path, rotation: int) -> None:
    path = write_numbered(tmp_path / "a.mp4", 3, width=64, height=96, rotation=rotation)
    reformatter = av.video.reformatter.VideoReformatter()
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        before = sys.getrefcount(frame)
        pixels.to_square(frame, 16, "crop", reformatter)
        pixels.to_short_side(frame, 24, reformatter, Fraction(1))
        # Another reference would be the frame's own, which only the cyclic collector removes.
        assert sys.getrefcount(frame) == before


@pytest.mark.parametrize("options", [{"bf": "0"}, {"bf": "3"}, {"x264-params": "bframes=8"}])
def test_frames_between_targets_are_freed(tmp_path: Path, options: dict[str, str]) -> None:
    path = write_numbered(tmp_path / "a.mp4", 120, options={"g": "200", **options})
    most = 0
    with open_video(path, threads=1) as source:
        frame_ticks = int(Fraction(1, 25) / source.tick)
        picker = windows._ExactPicker(source)
        collect = picker.collect

        def watch(frames: Any) -> None:
            nonlocal most
            collect(frames)
            most = max(most, len(picker.frames))

        picker.collect = watch  # type: ignore[method-assign]
        targets = [source.zero + number * frame_ticks for number in (4, 31, 31, 70, 115)]
        actual = [
            (position, frame.pts)
            for place, target in enumerate(targets)
            for position, frame in picker.pick(target, place)
        ]
        actual += [(position, frame.pts) for position, frame in picker.finish()]
    assert sorted(actual) == list(enumerate(targets))
    # What the decoder has shown by the time it gives a wanted one; 25 and more lie in between.
    assert most <= 10
