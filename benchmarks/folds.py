"""How often different recordings of one fixed camera are taken for near copies.

    python benchmarks/folds.py --clips DIR     # backgrounds are frames of the videos in DIR

For each background, ten seconds are made in which nothing happens, and others in which an object of
a twelfth, a sixth or a third of the height crosses the frame, early, late or in the middle. No two
of these videos are copies. Each is also compressed strongly at half its size, which is a copy. The
camera noise has a deviation of two grey values. The result counts the pairs of one background, and
the copies, that are folded into one hit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.core.types import FrameSpec
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.search.engine import Engine
from eaglenet.search.model import ClipFeatures
from eaglenet.search.selection import ClipDetails, NearCopies
from eaglenet.video.decoding import decode, write_video

FPS, SECONDS, SIDE = 6, 10, 192
EVENTS = {
    "nothing": None,
    "small early": (1 / 12, 1.0),
    "small late": (1 / 12, 6.5),
    "medium early": (1 / 6, 1.0),
    "medium middle": (1 / 6, 3.8),
    "large early": (1 / 3, 1.0),
    "large late": (1 / 3, 6.5),
}
"""Height of the object as a fraction of the frame, and the second at which it appears; it crosses
the frame in 2.5 seconds."""


def film(background: NDArray[np.uint8], event: tuple[float, float] | None, seed: int) -> Any:
    """Return the frames of a video, ``[frames, height, width, 3]``."""
    draw = np.random.default_rng(seed)
    frames = np.repeat(background[None].astype(np.float32), FPS * SECONDS, axis=0)
    if event is not None:
        size, begin = round(event[0] * SIDE), event[1]
        colour, top = draw.integers(0, 256, 3), int(draw.integers(0, SIDE - size))
        for number in range(len(frames)):
            progress = (number / FPS - begin) / 2.5
            if 0 <= progress < 1:
                x = round(progress * (SIDE - size))
                frames[number, top : top + size, x : x + size] = colour
    frames += draw.normal(0, 2, frames.shape)
    return frames.clip(0, 255).astype(np.uint8)


def make(folder: Path, clips: Path, count: int) -> None:
    """Write the videos of ``count`` backgrounds, and a copy of each."""
    paths = sorted(path for path in clips.rglob("*") if path.suffix in (".mp4", ".avi"))
    for number, index in enumerate(np.linspace(0, len(paths) - 1, count).astype(int)):
        video = decode(paths[index], FrameSpec(num_frames=1, size=SIDE))
        background = video.frames[0].permute(1, 2, 0).numpy()
        for offset, (name, event) in enumerate(EVENTS.items()):
            frames = film(background, event, 100 * number + offset)
            write_video(folder / f"{number:03} {name}.mp4", frames, FPS)
            small = torch.from_numpy(frames[:, ::2, ::2].copy())
            write_video(folder / f"{number:03} {name} copy.mp4", small, FPS, options={"crf": "34"})


def measure(base: Path, clips: Path, count: int) -> dict[str, Any]:
    """Count folded pairs that are not copies, and folded copies."""
    if not (base / "films").exists():
        (base / "films").mkdir(parents=True)
        make(base / "films", clips, count)
        options = IndexOptions(workers=0, precision="fp32")
        index_videos([base / "films"], base / "store", "small", options=options)
    engine = Engine.open(base / "store")
    snapshot = engine.snapshot
    rows = np.arange(len(snapshot))
    details = ClipDetails(snapshot, snapshot.clips(rows))
    names = [Path(details.files.paths[details.file(row)][0]).stem for row in rows.tolist()]
    features = ClipFeatures(engine.manifest.layout.unpack(snapshot.features_at(rows)))
    near = NearCopies(details, rows, features)
    pairs = [
        (names[one], names[other], near.find_copy(one, {other}) is not None)
        for one, other in combinations(range(len(names)), 2)
        if names[one][:3] == names[other][:3]
    ]
    copies = [is_folded for one, other, is_folded in pairs if _film(one) == _film(other)]
    others = [pair for pair in pairs if _film(pair[0]) != _film(pair[1])]
    wrong = [(one, other) for one, other, is_folded in others if is_folded]
    with_large = [is_folded for one, other, is_folded in others if "large" in one + other]
    return {
        "films": len(names),
        "backgrounds": len({name[:3] for name in names}),
        "copies": len(copies),
        "copies_folded": sum(copies),
        "other_pairs": len(others),
        "other_pairs_folded": len(wrong),
        "other_pairs_with_a_large_thing": len(with_large),
        "other_pairs_with_a_large_thing_folded": sum(with_large),
        "folded_wrongly": wrong[:20],
    }


def _film(name: str) -> str:
    return name.removesuffix(" copy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--backgrounds", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="keep the films here and use them again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = measure(options.folder or Path(temporary), options.clips, options.backgrounds)
    print(json.dumps(result, indent=2))
    print(save_result("folds", result))


if __name__ == "__main__":
    main()
