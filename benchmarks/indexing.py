"""Hours of video an hour, decoding and encoding apart, beside a plain loop, interleaved.

    python benchmarks/indexing.py                       # 240p, 720p and 1080p, 60 s each
    python benchmarks/indexing.py --seconds 20 --rounds 1

Ours takes 12 frames of each clip (10 s, 2 s of overlap) and encodes them with the image tower in
the precision that the machine is fast in; ``small`` has its own weights, ViT-B/32 random ones. The
plain loop decodes every frame with PyAV, shrinks the same moments with PIL, and encodes them with
transformers' CLIP in fp32; ours writes the thumbnails too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import save_result
from decoding import FPS, Film, make_file
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.config import ClipConfig
from eaglenet.hardware import choose_precision, encoding_in
from eaglenet.methods.folder import load
from eaglenet.search.indexing.clips import fixed_windows
from eaglenet.search.indexing.decoding import ClipFrames, decode_clips, split_request
from eaglenet.types import FrameSpec

CLIP_SECONDS, OVERLAP, NUM_FRAMES, BATCH = 10.0, 2.0, 12, 48
SIZES = {"240p": (320, 240), "720p": (1280, 720), "1080p": (1920, 1080)}
Decode = Callable[[Path, int], Any]
Encode = Callable[[Any], Any]


def ours(tower: Any, size: int) -> tuple[Decode, Encode]:
    spec = FrameSpec(num_frames=NUM_FRAMES, size=size)
    device = torch.device("cpu")
    precision = choose_precision(device)

    def decode(path: Path, seconds: int) -> torch.Tensor:
        windows = dict(enumerate(fixed_windows(seconds, CLIP_SECONDS, OVERLAP)))
        found = [
            clip.frames
            for request in split_request("film", str(path), windows, None, seconds)
            for clip in decode_clips(request, spec).clips
            if isinstance(clip, ClipFrames)
        ]
        return torch.cat(found)

    def encode(frames: torch.Tensor) -> None:
        with encoding_in(device, precision):
            for part in frames.split(BATCH):
                tower(part)

    return decode, encode


def moments(seconds: int) -> list[int]:
    """Numbers of the frames that are looked at, clip after clip."""
    return [
        int((start + (end - start) * (2 * i + 1) / (2 * NUM_FRAMES)) * FPS)
        for start, end in fixed_windows(seconds, CLIP_SECONDS, OVERLAP)
        for i in range(NUM_FRAMES)
    ]


def plain_loop() -> tuple[Decode, Encode]:
    import av
    from PIL import Image
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(projection_dim=512)  # its defaults are ViT-B/32
    model = CLIPVisionModelWithProjection(config).eval()

    def decode(path: Path, seconds: int) -> torch.Tensor:
        wanted = moments(seconds)
        kept: dict[int, Any] = {}
        with av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    picture = frame.to_image()
                    scale = 224 / min(picture.size)
                    width, height = (round(side * scale) for side in picture.size)
                    small = picture.resize((width, height), Image.Resampling.BICUBIC)
                    left, top = (width - 224) // 2, (height - 224) // 2
                    kept[number] = np.asarray(small.crop((left, top, left + 224, top + 224)))
        stacked = np.stack([kept[min(number, max(kept))] for number in wanted])
        return torch.from_numpy(stacked).permute(0, 3, 1, 2)

    def encode(frames: torch.Tensor) -> None:
        for part in frames.split(BATCH):
            model(pixel_values=part.float() / 127.5 - 1)

    return decode, encode


def ways() -> dict[str, tuple[Decode, Encode]]:
    small = load("small")
    small.eval()
    clip = ClipEncoder(ClipConfig()).eval()
    return {
        "eaglenet, small": ours(small.encoder.vision, small.frame_spec.size),
        "eaglenet, ViT-B/32": ours(clip.vision, 224),
        "PyAV + transformers, ViT-B/32": plain_loop(),
    }


@torch.inference_mode()
def measure(path: Path, seconds: int, rounds: int) -> dict[str, dict[str, float]]:
    every = ways()
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
    for turn in range(rounds + 1):
        for name, (decode, encode) in every.items():
            start = time.perf_counter()
            frames = decode(path, seconds)
            middle = time.perf_counter()
            encode(frames)
            if turn > 0:  # the first round warms caches
                spent[name].append((middle - start, time.perf_counter() - middle))
    rows = {}
    for name, pairs in spent.items():
        decoding, encoding = (statistics.median(column) for column in zip(*pairs, strict=True))
        rows[name] = {
            "decode_hours_an_hour": round(seconds / decoding, 1),
            "encode_hours_an_hour": round(seconds / encoding, 1),
            "both_hours_an_hour": round(seconds / (decoding + encoding), 1),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="of each film")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder for the result")
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (width, height) in SIZES.items():
            path = Path(folder) / f"{name}.mp4"
            make_file(path, Film(name, arguments.seconds, width, height, 2 * FPS))
            results[name] = measure(path, arguments.seconds, arguments.rounds)
            for way, row in results[name].items():
                print(f"{name:6} {way:32}" + "  ".join(f"{k} {v}" for k, v in row.items()))
    payload = {
        "benchmark": "indexing",
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "precision": choose_precision("cpu"),
        "load_average": [round(load, 1) for load in os.getloadavg()],  # 1 is this run itself
        "files": results,
    }
    print(f"written to {save_result('indexing', payload, arguments.output)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
