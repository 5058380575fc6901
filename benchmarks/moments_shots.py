"""Moments in clips that start at shot changes (`index --shots`), and in clips of fixed length.

python benchmarks/moments_shots.py --clips FOLDER --captions manifest.tsv [--arrays CACHE.npz]

Clips of FOLDER are encoded once, a frame every 0.4 s, and joined by hard cuts as in
benchmarks/moments.py, which also describes the options. Shot changes are detected as by the index:
inside a source by `shot_boundaries`, between two sources by the same difference of the last and the
first frame. Moments follow the rule that ships.

``video``: each caption is searched in its joined video. ``store``: every source is in one joined
video, and each caption is searched in all of them; a hit in another video has an IoU of 0. ``5 s``
are clips of five seconds that overlap by one. There are about as many of them as start at shots, so
this is the comparison at equal cost. ``known joins`` start only at the joins, as if a detector were
perfect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
import moments
from common import save_result
from eaglenet.indexing.decoding import fixed_windows, shot_windows
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.folder import load
from eaglenet.research.evaluation.moments import span_ious
from eaglenet.video.decoding import shot_boundaries
from moments import (
    Source,
    Window,
    apply_rule,
    describe_material,
    encode_clips,
    load_sources,
    save_sources,
)

VIDEO_DRAWS, STORE_DRAWS = 3, 20
"""Draws of 200 joined videos, and of stores of all sources."""
SPLITTINGS = ("10 s", "5 s", "shots", "known joins")
PER_VIDEO = 5
"""Sources per joined video of a store."""
CHANGE = 0.08
"""Threshold of `shot_boundaries`."""
IOUS = (0.3, 0.5, 0.7)
Pixels = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Shots:
    """Shot changes inside a source, in seconds, and its first and last frame in HSV."""

    cuts: list[float]
    first: Pixels
    last: Pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--model", default="small")
    parser.add_argument("--arrays", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    moments.SAMPLE_STEP = 0.4
    if options.arrays is not None and options.arrays.exists():
        sources = load_sources(options.arrays)
    else:
        sources = encode_clips(options)
        if options.arrays is not None:
            save_sources(options.arrays, sources)
    shots = {source.name: find_shots(options.clips / source.name, source) for source in sources}
    bank = model_hubness_bank(load(options.model).eval(), options.model)
    rows = []
    for splitting in SPLITTINGS:
        draws = [moments.join_videos(sources, seed) for seed in range(1, VIDEO_DRAWS + 1)]
        stores = [join_all(sources, seed) for seed in range(1, STORE_DRAWS + 1)]
        for where, groups in (("video", draws), ("store", stores)):
            measurements = [
                measure(videos, shots, splitting, where == "store", bank, sources)
                for videos in groups
            ]
            row = {"searched": where, "clips": splitting, "draws": len(measurements)}
            for name in measurements[0]:
                values = [each[name] for each in measurements]
                row[name] = [round(float(np.mean(values)), 1), round(float(np.std(values)), 1)]
            print(row, flush=True)
            rows.append(row)
    result = {
        "model": options.model,
        "material": describe_material(sources),
        "cuts_inside_sources": sum(len(each.cuts) for each in shots.values()),
        "videos_per_draw": moments.VIDEOS,
        "rows": rows,
    }
    print(save_result("moments-shots", result, options.output))


def join_all(sources: Sequence[Source], seed: int) -> list[list[Source]]:
    """Make joined videos in which every source occurs once."""
    order = np.random.default_rng(seed).permutation(len(sources))
    return [
        [sources[number] for number in order[start : start + PER_VIDEO]]
        for start in range(0, len(order), PER_VIDEO)
    ]


def find_shots(path: Path, source: Source) -> Shots:
    """Detect the shot changes of a source as the index does, and read its first and last frame."""
    import av
    from PIL import Image

    ends: list[Pixels] = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if frame.time is None or frame.time > moments.MAX_SECONDS:
                continue
            small = frame.to_ndarray(width=32, height=32, format="rgb24", interpolation="AREA")
            ends[1:] = [np.asarray(Image.fromarray(small).convert("HSV"), np.int16)]
            if len(ends) == 1:
                ends.append(ends[0])
    cuts = [cut for cut in shot_boundaries(path) if cut < source.duration]
    return Shots(cuts, ends[0], ends[-1])


def spans_of(
    sources: Sequence[Source], shots: dict[str, Shots], splitting: str
) -> list[tuple[float, float]]:
    """Return the spans of the clips of a joined video."""
    ends = np.cumsum([source.duration for source in sources])
    if splitting == "10 s":
        return fixed_windows(float(ends[-1]), moments.CLIP_SECONDS, moments.OVERLAP)
    if splitting == "5 s":
        return fixed_windows(float(ends[-1]), moments.CLIP_SECONDS / 2, moments.OVERLAP / 2)
    cuts: list[float] = []
    for number, source in enumerate(sources):
        own, start = shots[source.name], float(ends[number]) - source.duration
        if number:
            last = shots[sources[number - 1].name].last
            change = float(np.abs(own.first - last).mean()) / 255
            if splitting == "known joins" or change > CHANGE:
                cuts.append(start)
        if splitting == "shots":
            cuts += [start + cut for cut in own.cuts]
    return shot_windows(cuts, float(ends[-1]), moments.CLIP_SECONDS, moments.OVERLAP)


def make_window(
    sources: Sequence[Source], ends: NDArray[np.float64], start: float, end: float
) -> Window:
    """Select the frames of a clip as a store does: every 1.6 s, or evenly in a shorter clip."""
    step = min(moments.FRAME_STEP, (end - start) / moments.NUM_FRAMES)
    times = start + step * (np.arange(moments.NUM_FRAMES) + 0.5)
    frames = []
    for time in times:
        number = min(int(np.searchsorted(ends, time, side="right")), len(sources) - 1)
        own = time - (ends[number] - sources[number].duration)
        frames.append(sources[number].frames[np.abs(sources[number].seconds - own).argmin()])
    return Window(start, end, times, np.stack(frames))


def measure(
    videos: Sequence[Sequence[Source]],
    shots: dict[str, Shots],
    splitting: str,
    in_store: bool,
    bank: Any,
    sources: Sequence[Source],
) -> dict[str, float]:
    """Search every caption in its video, or in all of them; compare the best moment."""
    files = []
    for members in videos:
        ends = np.cumsum([source.duration for source in members])
        spans = spans_of(members, shots, splitting)
        files.append([make_window(members, ends, start, end) for start, end in spans])
    flat = [(number, window) for number, windows in enumerate(files) for window in windows]
    owners = np.array([number for number, _ in flat])
    positions = np.concatenate([np.arange(len(windows)) for windows in files])
    vectors = np.stack([window.frames.mean(axis=0) for _, window in flat])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    offsets = bank.offsets(vectors.astype(np.float32))
    ious, is_right_file = [], []
    for number, members in enumerate(videos):
        ends = np.cumsum([source.duration for source in members])
        names = {source.name for source in members}
        others = np.concatenate([each.frames for each in sources if each.name not in names])
        for source, end in zip(members, ends, strict=True):
            scores = vectors @ source.text - offsets
            if not in_store:
                scores = np.where(owners == number, scores, -np.inf)
            best = int(scores.argmax())
            is_right_file.append(owners[best] == number)
            background = float((others @ source.text).mean())
            windows = files[owners[best]]
            moment = apply_rule("largest sum", windows, positions[best], source.text, background)
            moments_of_clip = np.array([[moment.start, moment.end]])
            span = np.array([[float(end) - source.duration, float(end)]])
            is_right = owners[best] == number
            ious.append(float(span_ious(moments_of_clip, span)[0, 0]) if is_right else 0.0)
    values = np.array(ious)
    seconds = sum(source.duration for members in videos for source in members)
    return {
        "texts": len(values),
        "clips_per_minute": 60 * len(flat) / seconds,
        "right_file": 100 * float(np.mean(is_right_file)),
        **{f"R@1 IoU={limit}": 100 * float((values >= limit).mean()) for limit in IOUS},
        "mean_iou": 100 * float(values.mean()),
    }


if __name__ == "__main__":
    main()
