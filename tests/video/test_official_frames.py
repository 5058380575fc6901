"""Frames that the authors' readers choose, and those of the frame spec of the same method.

`golden/other/frames.json` has the indices that the official code computes for a number of frames
and a frame rate; a list shorter than ``num_frames`` is padded there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.types import FrameSpec
from eaglenet.methods.eaglenet import RELEASED_FRAMES
from eaglenet.research.recipes.authors import ORIGINALS
from eaglenet.video.sampling import clip_window, plan_targets

ROWS = json.loads((Path(__file__).parents[1] / "golden" / "other" / "frames.json").read_text())
SAME_READER = {
    "clip4clip": ("eaglenet", "prost", "ts2net", "ucofia"),
    "clipvip": ("tvproxynet",),
    "frozen": ("bridgeformer",),
    "xpool": ("tmass",),
}


@dataclass(frozen=True)
class Source:
    """A video of ``count`` frames whose clock ticks once per frame."""

    count: int
    rate: Fraction
    path: str = "a.mp4"
    zero: int = 0

    @property
    def tick(self) -> Fraction:
        return 1 / self.rate

    def span(self) -> tuple[int, int]:
        return 0, self.count

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
            source: Any = Source(row["count"], Fraction(row["rate"]))
            window = None if row["window"] is None else (*map(float, row["window"]),)
            start, end = (Fraction(tick) for tick in source.span())
            if window is not None:
                start, end = clip_window(source, window)
            plan = plan_targets(source, spec, window, (start, end), range(source.count), 0.0)
            targets = [plan.targets[index or 0] for index in plan.frame_indices]
            is_real = [number < len(row["indices"]) for number in range(spec.num_frames)]
            mask = is_real if spec.short == "mask" else [True] * spec.num_frames
            assert (targets[: sum(is_real)], plan.mask) == (row["indices"], mask), (name, row)
            assert spec.square_pixels
