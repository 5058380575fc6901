"""Thumbnails of clips, at the frame sizes of real models and of the demo model."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from eaglenet.search.indexing.decoding import THUMBNAIL_SIZE, make_thumbnail


@pytest.mark.parametrize("size", [THUMBNAIL_SIZE, 224, 336])
def test_frames_of_real_models_become_upright_thumbnails(size: int) -> None:
    frames = torch.zeros(3, 3, size, size, dtype=torch.uint8)
    frames[1, 0, : size // 2] = 250  # The middle frame is red in its upper half.
    mask = torch.ones(3, dtype=torch.bool)

    jpeg = make_thumbnail("unread.mp4", frames, torch.arange(3.0), mask)

    picture = Image.open(io.BytesIO(jpeg))
    assert picture.size == (size, size)
    assert picture.getpixel((size // 2, size // 4))[0] > 200  # type: ignore[index]
    assert picture.getpixel((size // 2, 3 * size // 4))[0] < 50  # type: ignore[index]
