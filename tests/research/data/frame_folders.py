"""A folder of frames of plain colours, for tests."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from eaglenet.research.data.frame_folder import FrameFolderWriter, FrameItem

COLOURS = {"red": (230, 20, 20), "green": (20, 210, 20), "blue": (20, 20, 230)}


def jpeg(colour: tuple[int, int, int], size: int = 32) -> bytes:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), colour, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_frame_folder(place: Path, *, train: int = 12, validation: int = 5, test: int = 0) -> Path:
    """Item n shows its colour in 1 + n % 4 pictures and has two captions."""
    writer = FrameFolderWriter(place, 32)
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        for number in range(count):
            name, colour = list(COLOURS.items())[number % 3]
            captions = {"people": [f"a {name} circle", f"the {name} square {number}"]}
            frames = 1 + number % 4
            item = FrameItem(f"{split}-{number}", split, "test", frames, captions)
            writer.add(item, [jpeg(colour)] * frames)
    writer.close()
    return place
