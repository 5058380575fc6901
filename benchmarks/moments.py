"""Moments in joined videos with known boundaries: the current rule compared with the previous one.

python benchmarks/moments.py --clips FOLDER --captions manifest.tsv [--arrays CACHE.npz]
python benchmarks/moments.py --demo [--arrays CACHE.npz]

Clips of FOLDER (columns ``file`` and ``caption`` of the table) are encoded once, a frame every
0.8 s. For each half of the clips, 200 videos are joined from three to seven clips and cut as a
store does: ten seconds, two of them shared, six frames. Each caption is searched in its joined
video, and the moment of the best clip is compared with the span of the source. ``single`` videos
are one clip each, which shows its caption throughout. ``--demo`` uses scenes of the demo world
instead. The threshold of the rule was chosen on the first halves. The second halves are not an
unbiased test either, because they were used to compare variants of the rule, which differed by a
few points.

The result describes its material: results of different material differ by several points, because
the joined videos depend on the number and the order of the clips.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.core.types import Clips
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.folder import load
from eaglenet.research.data.annotation_files import MomentText
from eaglenet.research.evaluation.moments import moment_metrics
from eaglenet.search.hit import Moment
from eaglenet.search.selection import NEIGHBOURS, find_moment

CLIP_SECONDS, OVERLAP, FRAME_STEP, NUM_FRAMES = 10.0, 2.0, 1.6, 6
SAMPLE_STEP = 0.8
MIN_SECONDS, MAX_SECONDS = 2.0, 20.0
VIDEOS = 200
"""Joined videos per half."""


@dataclass(frozen=True, eq=False)
class Source:
    """Clip: unit frames, their times, the length in seconds, and the vector of the caption."""

    name: str
    caption: str
    frames: NDArray[np.float32]
    seconds: NDArray[np.float64]
    duration: float
    text: NDArray[np.float32]


@dataclass(frozen=True)
class Window:
    """Clip of a joined video, as in a store."""

    start: float
    end: float
    seconds: NDArray[np.float64]
    frames: NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, default=None)
    parser.add_argument("--captions", type=Path, default=None)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--scenes", type=int, default=120, help="scenes of the demo world")
    parser.add_argument("--model", default="small")
    parser.add_argument("--arrays", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    name = "demo" if options.demo else options.model
    if options.arrays is None or not options.arrays.exists():
        sources = encode_demo(options.scenes) if options.demo else encode_clips(options)
        if options.arrays is not None:
            save_sources(options.arrays, sources)
    else:
        sources = load_sources(options.arrays)
    bank = model_hubness_bank(load(name).eval(), name)
    order = np.random.default_rng(0).permutation(len(sources))
    halves = {"first": order[: len(order) // 2], "second": order[len(order) // 2 :]}
    rows = []
    for seed, (half, members) in enumerate(halves.items(), 1):
        own = [sources[number] for number in members]
        others = [source for source in sources if source not in own]
        store = np.concatenate([source.frames for source in others])
        for kind, videos in (
            ("joined", join_videos(own, seed)),
            ("single", [[source] for source in own]),
        ):
            for rule in ("half-way", "largest sum", "largest sum, clip alone"):
                metrics = measure(videos, rule, bank, store)
                rows.append({"half": half, "videos": kind, "rule": rule, **metrics.to_dict()})
                print(half, kind, rule, metrics)
    result = {
        "model": name,
        "material": describe_material(sources),
        "videos_per_half": VIDEOS,
        "rows": rows,
    }
    print(save_result("moments-demo" if options.demo else "moments", result, options.output))


def join_videos(sources: list[Source], seed: int) -> list[list[Source]]:
    """Draw the sources of each joined video."""
    generator = np.random.default_rng(seed)
    videos = []
    for _ in range(VIDEOS):
        count = min(int(generator.integers(3, 8)), len(sources))
        numbers = generator.choice(len(sources), count, replace=False)
        videos.append([sources[number] for number in numbers])
    return videos


def measure(videos: list[list[Source]], rule: str, bank: Any, store: NDArray[np.float32]) -> Any:
    """Search every caption in its video and compare the moments; ``store`` has other frames."""
    texts, moments = [], []
    for number, sources in enumerate(videos):
        ends = np.cumsum([source.duration for source in sources])
        windows = cut(sources, ends)
        vectors = np.stack([window.frames.mean(axis=0) for window in windows])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        offsets = 0.0 if bank is None else bank.offsets(vectors.astype(np.float32))
        for source, end in zip(sources, ends, strict=True):
            span = (float(end) - source.duration, float(end))
            texts.append(MomentText(f"joined {number}", source.name, (span,)))
            best = int((vectors @ source.text - offsets).argmax())
            background = float((store @ source.text).mean())
            moment = apply_rule(rule, windows, best, source.text, background)
            moments.append([(moment.start, moment.end)])
    return moment_metrics(texts, moments)


def apply_rule(
    rule: str, windows: list[Window], best: int, text: NDArray[np.float32], background: float
) -> Any:
    """Return the moment of the best clip."""
    own = windows[best]
    if rule == "half-way":
        return half_way(own.frames @ text, own.seconds, own.start, own.end)
    reach = 0 if rule.endswith("alone") else NEIGHBOURS
    near = windows[max(0, best - reach) : best + reach + 1]
    return find_moment(
        np.concatenate([window.frames @ text for window in near]).tolist(),
        np.concatenate([window.seconds for window in near]).tolist(),
        (own.start, own.end),
        (near[0].start, near[-1].end),
        background,
    )


def half_way(
    scores: NDArray[np.float32], seconds: NDArray[np.float64], start: float, end: float
) -> Moment:
    """Apply the previous rule: the frames around the best that exceed (mean + best) / 2."""
    best = int(scores.argmax())
    bound = (scores.mean() + scores.max()) / 2
    first = last = best
    while first > 0 and scores[first - 1] >= bound:
        first -= 1
    while last + 1 < len(scores) and scores[last + 1] >= bound:
        last += 1
    begin = start if first == 0 else float(seconds[first - 1] + seconds[first]) / 2
    finish = end if last + 1 == len(scores) else float(seconds[last] + seconds[last + 1]) / 2
    return Moment(begin, finish, float(seconds[best]))


def cut(sources: list[Source], ends: NDArray[np.float64]) -> list[Window]:
    """Cut a joined video into clips; each frame is the nearest one that was encoded."""
    total, windows, start = float(ends[-1]), [], 0.0
    while True:
        end = min(start + CLIP_SECONDS, total)
        times = start + FRAME_STEP * (np.arange(NUM_FRAMES) + 0.5)
        times = times[times < end] if (times < end).any() else np.array([(start + end) / 2])
        frames = []
        for time in times:
            number = min(int(np.searchsorted(ends, time, side="right")), len(sources) - 1)
            source = sources[number]
            own = time - (ends[number] - source.duration)
            frames.append(source.frames[np.abs(source.seconds - own).argmin()])
        windows.append(Window(start, end, times, np.stack(frames)))
        if end >= total:
            return windows
        start += CLIP_SECONDS - OVERLAP


@torch.no_grad()
def encode(method: Any, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the unit features of single frames ``[frames, height, width, 3]``."""
    parts = []
    for batch in torch.from_numpy(frames).permute(0, 3, 1, 2)[:, None].split(16):
        count = len(batch)
        clips = Clips(
            batch.contiguous(), torch.ones(count, 1, dtype=torch.bool), torch.zeros(count, 1)
        )
        parts.append(method.encode_video(clips).frames[:, 0].float())
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1).numpy()


@torch.no_grad()
def encode_text(method: Any, text: str) -> NDArray[np.float32]:
    vector: NDArray[np.float32] = method.coarse_vectors(method.encode_text([text]))[0].numpy()
    return vector


def encode_clips(options: argparse.Namespace) -> list[Source]:
    """Decode and encode the clips of a folder."""
    import av
    from PIL import Image

    method = load(options.model).eval()
    size = method.frame_spec.size
    with options.captions.open() as stream:
        captions = {row["file"]: row["caption"] for row in csv.DictReader(stream, delimiter="\t")}
    sources = []
    for name, caption in sorted(captions.items()):
        images, seconds, end = [], [], 0.0
        with av.open(str(options.clips / name)) as container:
            for frame in container.decode(video=0):
                if frame.time is None or frame.time > MAX_SECONDS:
                    continue
                if not seconds or frame.time - seconds[-1] >= SAMPLE_STEP - 0.01:
                    image = frame.to_image().resize((size, size), Image.Resampling.BICUBIC)
                    images.append(np.asarray(image))
                    seconds.append(frame.time)
                end = frame.time + float((frame.duration or 0) * frame.time_base)
        times = np.array(seconds) - seconds[0]
        # Rounded to milliseconds, so that a clip of two seconds does not become one of 1.9999.
        duration = round(end - seconds[0], 3)
        if duration >= MIN_SECONDS:
            frames = encode(method, np.stack(images))
            text = encode_text(method, caption)
            sources.append(Source(name, caption, frames, times, duration, text))
    return sources


def encode_demo(count: int) -> list[Source]:
    """Render and encode scenes of the demo world, with the first caption of each."""
    from eaglenet.research.data.demo.dataset import render
    from eaglenet.research.data.demo.world import FRAMES_PER_SECOND, NUM_FRAMES, DemoWorld

    method = load("demo").eval()
    sources = []
    for scene in DemoWorld(0).scenes("test", count):
        images = render(scene, method.frame_spec.size)[::6]
        seconds = np.arange(len(images)) * 6 / FRAMES_PER_SECOND
        duration = NUM_FRAMES / FRAMES_PER_SECOND
        text = encode_text(method, scene.captions[0])
        frames = encode(method, np.ascontiguousarray(images))
        caption = scene.captions[0]
        sources.append(Source(caption, caption, frames, seconds, duration, text))
    return sources


def describe_material(sources: list[Source]) -> dict[str, Any]:
    """Return number and length of the sources, and a digest of names, lengths and captions."""
    lines = [f"{source.name}\t{source.duration:.3f}\t{source.caption}" for source in sources]
    return {
        "sources": len(sources),
        "seconds": round(sum(source.duration for source in sources), 1),
        "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
    }


def save_sources(path: Path, sources: list[Source]) -> None:
    np.savez(
        path,
        names=np.array([source.name for source in sources]),
        captions=np.array([source.caption for source in sources]),
        counts=np.array([len(source.frames) for source in sources]),
        frames=np.concatenate([source.frames for source in sources]),
        seconds=np.concatenate([source.seconds for source in sources]),
        durations=np.array([source.duration for source in sources]),
        texts=np.stack([source.text for source in sources]),
    )


def load_sources(path: Path) -> list[Source]:
    arrays = np.load(path)
    if "captions" not in arrays:
        raise SystemExit(f"{path} has no captions; delete it and run benchmarks/moments.py again")
    ends = np.cumsum(arrays["counts"])[:-1]
    parts = zip(
        arrays["names"],
        arrays["captions"],
        np.split(arrays["frames"], ends),
        np.split(arrays["seconds"], ends),
        arrays["durations"],
        arrays["texts"],
        strict=True,
    )
    return [Source(str(name), str(caption), *rest) for name, caption, *rest in parts]


if __name__ == "__main__":
    main()
