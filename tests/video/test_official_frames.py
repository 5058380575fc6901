"""Frames that the authors' readers sample, compared with those of the method's frame spec.

`golden/other/frames.json` has the indices that the official code computes for a number of frames
and a frame rate; a list shorter than ``num_frames`` is padded there. Code that compares times reads
a clock of ``ticks`` per frame.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from videos import write_numbered

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import FrameSpec
from eaglenet.methods.eaglenet import RELEASED_FRAMES
from eaglenet.research.recipes.authors import ORIGINALS
from eaglenet.video.decoding import decode
from eaglenet.video.inputs import clips_of_image
from eaglenet.video.pixels import padded_size
from eaglenet.video.sampling import clip_window, plan_targets

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "other" / "frames.json").read_text())
SAME_READER = {
    "clip4clip": ("eaglenet", "prost", "ts2net", "ucofia"),
    "clipvip": ("tvproxynet",),
    "xpool": ("tmass",),
}


@dataclass(frozen=True)
class Source:
    """A video of ``count`` frames whose clock has ``ticks`` per frame."""

    count: int
    rate: Fraction
    ticks: int = 1
    path: str = "a.mp4"
    zero: int = 0

    @property
    def tick(self) -> Fraction:
        return 1 / (self.rate * self.ticks)

    def span(self) -> tuple[int, int]:
        return 0, self.count * self.ticks

    def seconds(self, tick: Fraction) -> float:
        return float(tick * self.tick)


@pytest.mark.parametrize("method", sorted({row["method"] for row in ROWS}))
def test_frames_are_those_of_the_official_reader(method: str) -> None:
    for row in (row for row in ROWS if row["method"] == method):
        for name in (method, *SAME_READER.get(method, ())):
            settings: Any = RELEASED_FRAMES
            if name != "eaglenet":
                settings, _ = ORIGINALS[name].inputs_with(row["num_frames"])
            spec = FrameSpec(num_frames=row["num_frames"], **settings)
            ticks = row.get("ticks", 1)
            source: Any = Source(row["count"], Fraction(row["rate"]), ticks)
            window = None if row["window"] is None else (*map(float, row["window"]),)
            start, end = (Fraction(tick) for tick in source.span())
            if window is not None:
                start, end = clip_window(source, window)
            times = range(0, source.count * ticks, ticks)
            plan = plan_targets(source, spec, window, (start, end), times, 0.0)
            targets = [plan.targets[index or 0] // ticks for index in plan.frame_indices]
            is_real = [number < len(row["indices"]) for number in range(spec.num_frames)]
            mask = is_real if spec.short == "mask" else [True] * spec.num_frames
            assert (targets[: sum(is_real)], plan.mask) == (row["indices"], mask), (name, row)
            assert spec.square_pixels


# Widths and heights, and their sizes at 448 pixels in ClipBERT's code.
PADDED = {
    (320, 240): (448, 336), (640, 360): (448, 252), (480, 640): (336, 448), (202, 360): (251, 448),
    (853, 480): (448, 252), (7, 50): (62, 448), (100, 100): (448, 448), (854, 480): (448, 251),
    (1920, 816): (448, 190), (49, 28): (448, 256),
}  # fmt: skip


@pytest.mark.parametrize("size", PADDED)
def test_padded_frames_have_the_size_of_the_official_code(size: tuple[int, int]) -> None:
    assert padded_size(*size, Fraction(1), 448) == PADDED[size]


def test_padding_is_black_on_the_right_or_below(tmp_path: Path) -> None:
    spec = FrameSpec(num_frames=1, size=48, resize="pad", square_pixels=True)
    white = np.full((40, 80, 3), 255, np.uint8)
    for width, height, inside in ((80, 40, (24, 48)), (40, 80, (48, 24))):
        path = write_numbered(tmp_path / f"{width}.mp4", 3, width=width, height=height)
        image = Image.fromarray(white if width > height else white.transpose(1, 0, 2))
        video = decode(path, spec).frames[0].numpy()
        assert video[:, : inside[0], : inside[1]].any(axis=0).all()
        for pixels in (video, clips_of_image(image, spec).frames[0, 0]):
            assert pixels.shape == (3, 48, 48)
            assert not pixels[:, inside[0] :].any()
            assert not pixels[..., inside[1] :].any()
    assert (pixels[:, :48, :24] == 255).all()


def test_pairs_need_an_even_number_of_frames() -> None:
    with pytest.raises(ConfigError, match=r"num_frames is 5; .* it must be even"):
        FrameSpec(num_frames=5, sampling="second_pairs")
