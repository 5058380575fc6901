"""Thumbnails of clips: the whole frame, whatever the model sees of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eaglenet.core.types import FrameSpec
from eaglenet.indexing.decoding import THUMBNAIL_SIZE, ClipFrames, ClipRequest, decode_clips
from eaglenet.video.decoding import write_video


@pytest.mark.parametrize("size", [16, 224])
@pytest.mark.parametrize(("width", "height"), [(480, 160), (160, 480)])
def test_wide_and_tall_thumbnails_are_whole_and_upright(
    tmp_path: Path, size: int, width: int, height: int
) -> None:
    """Their corners, which a square would cut off, are in it: red and green above, blue below."""
    frames = np.zeros((7, height, width, 3), np.uint8)
    frames[:, : height // 2, : width // 2, 0] = 250
    frames[:, : height // 2, width // 2 :, 1] = 250
    frames[:, height // 2 :, :, 2] = 250
    write_video(tmp_path / "film.mp4", frames, fps=5)
    request = ClipRequest("content", str(tmp_path / "film.mp4"), (0,), ((0.0, 1.4),))
    (clip,) = decode_clips(request, FrameSpec(num_frames=3, size=size)).clips
    assert isinstance(clip, ClipFrames)
    picture = Image.open(io.BytesIO(clip.thumbnail)).convert("RGB")
    assert min(picture.size) == THUMBNAIL_SIZE
    assert picture.width / picture.height == pytest.approx(width / height, rel=0.02)
    last = (picture.width - 6, picture.height - 6)
    corners = [(5, 5), (last[0], 5), (5, last[1]), last]
    colours = [np.argmax(picture.getpixel(corner)) for corner in corners]
    assert colours == [0, 1, 2, 2]
