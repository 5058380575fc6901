"""Hours of video indexed per hour, compared with plain loops; also decoding and encoding alone.

    python benchmarks/indexing.py                       # 240p, 720p and 1080p, 64 s each
    python benchmarks/indexing.py --seconds 32 --rounds 1 --cores 2
    python benchmarks/indexing.py --sizes 1080p --rounds 1 --whole-seconds 1200   # 11 minutes

All sides read the same frames: 6 per clip (10 s, 2 s of overlap), as ``small`` does. Neighbouring
clips share one frame, which our side encodes once, in the precision that `eaglenet index` chooses
on this machine. ``small`` has its own weights; ViT-B/32 has random weights on all sides. The plain
loops decode every frame with PyAV or OpenCV, resize those that are needed, and encode them in fp32
with transformers or open_clip. Decoding and encoding alone use one core, "whole" uses ``--cores``.
Our "whole" is `index` into a new store, including thumbnails and syncing, with a loaded model; that
of the plain loops is decoding and then encoding, with as many threads as the libraries start. Our
side first starts processes, which takes seconds whatever the length. "both" is without them, and
``--whole-seconds`` measures "whole" on a longer film.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import save_result
from decoding import FPS, Film, make_file
from eaglenet.core.platform import num_cores
from eaglenet.core.types import Clips
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.clip_config import ClipConfig
from eaglenet.encoders.hardware import autocast_for, choose_precision
from eaglenet.indexing.decoding import ClipFrames, decode_clips, fixed_windows, split_request
from eaglenet.indexing.encoding import BATCH_FRAMES, prepare_for_precision
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.methods.base import METHODS, Method
from eaglenet.methods.clip4clip import CLIP4ClipConfig
from eaglenet.models.folder import load
from eaglenet.research.small.run import FRAMES_PER_CLIP
from eaglenet.video.containers import pyav
from eaglenet.video.sampling import shared_step
from repeating import repeat_piece

CLIP_SECONDS, OVERLAP, NUM_FRAMES, BATCH = 10.0, 2.0, FRAMES_PER_CLIP, 48
SIZES = {"240p": (320, 240), "720p": (1280, 720), "1080p": (1920, 1080)}
PIECE = 32
"""Seconds of video that longer films repeat. With fewer, neighbouring clips could show the same
frames, which would be encoded once."""
WARMUP = 8
"""Seconds of a film that are decoded before time is measured."""
STEP = shared_step(CLIP_SECONDS, OVERLAP, NUM_FRAMES)
BEFORE = "PyAV + transformers, ViT-B/32"
Frames = torch.Tensor


@dataclass(frozen=True)
class Side:
    """Functions of one side; ``whole`` takes a file, its length and the number of cores."""

    decode: Callable[[Path, int, int], Frames]
    encode: Callable[[Frames], None]
    whole: Callable[[Path, int, int], None]


def ours(method: Method) -> Side:
    spec = method.frame_spec
    # A large file, for which the precision of large index runs is chosen.
    file = CandidateFile("film.mp4", 2**30, 0)
    encoder, precision = prepare_for_precision(method, "auto", [file])

    def decode(path: Path, seconds: int, cores: int) -> Frames:
        windows = dict(enumerate(fixed_windows(seconds, CLIP_SECONDS, OVERLAP)))
        frames = [
            clip.frames
            for request in split_request("film", str(path), windows, None, seconds)
            for clip in decode_clips(request, spec, STEP).clips
            if isinstance(clip, ClipFrames)
        ]
        return torch.cat(frames)

    def encode(frames: Frames) -> None:
        with autocast_for(torch.device("cpu"), precision):
            for part in frames.split(BATCH_FRAMES):
                pixels = part.unflatten(0, (-1, NUM_FRAMES))
                shape = pixels.shape[:2]
                clips = Clips(pixels, torch.ones(shape, dtype=torch.bool), torch.zeros(shape))
                encoder.encode_video(clips)

    def whole(path: Path, seconds: int, cores: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            options = IndexOptions(device="cpu", workers=cores, precision=precision)
            report = index_videos([path], store, "given", options=options, method=method)
        assert not report.problems, report.problems

    return Side(decode, encode, whole)


def frame_numbers(seconds: int) -> list[int]:
    """Return the numbers of the frames to encode, clip by clip."""
    numbers = []
    for start, end in fixed_windows(seconds, CLIP_SECONDS, OVERLAP):
        is_whole = end - start >= NUM_FRAMES * STEP
        step = STEP if is_whole else (end - start) / NUM_FRAMES
        middle = (start + end) / 2
        numbers += [
            int((middle + step * (i + 0.5 - NUM_FRAMES / 2)) * FPS + 1e-6)
            for i in range(NUM_FRAMES)
        ]
    return numbers


def stack_frames(frames: dict[int, Any], numbers: list[int]) -> Frames:
    """Stack frames by number; a number beyond the end stands for the last frame."""
    stack = np.stack([frames[min(number, max(frames))] for number in numbers])
    return torch.from_numpy(stack).permute(0, 3, 1, 2)


def decode_with_pyav(path: Path, seconds: int, cores: int) -> Frames:
    from PIL import Image

    numbers, frames = frame_numbers(seconds), {}
    needed_numbers = set(numbers)
    with pyav().open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = cores
        container.streams.video[0].thread_type = "AUTO"
        for number, frame in enumerate(container.decode(video=0)):
            if number in needed_numbers:
                image = frame.to_image()
                scale = 224 / min(image.size)
                width, height = (round(side * scale) for side in image.size)
                small = image.resize((width, height), Image.Resampling.BICUBIC)
                x, y = (width - 224) // 2, (height - 224) // 2
                frames[number] = np.asarray(small.crop((x, y, x + 224, y + 224)))
    return stack_frames(frames, numbers)


def decode_with_opencv(path: Path, seconds: int, cores: int) -> Frames:
    import cv2

    cv2.setNumThreads(cores)
    numbers, frames, number = frame_numbers(seconds), {}, 0
    needed_numbers = set(numbers)
    reader = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, cores])
    while reader.grab():
        if number in needed_numbers:
            frame = reader.retrieve()[1]
            height, width = frame.shape[:2]
            scale = 224 / min(height, width)
            height, width = round(height * scale), round(width * scale)
            small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
            x, y = (width - 224) // 2, (height - 224) // 2
            frames[number] = small[y : y + 224, x : x + 224, ::-1]
        number += 1
    return stack_frames(frames, numbers)


def plain_side(decode: Callable[[Path, int, int], Frames], model: Callable[[Frames], Any]) -> Side:
    def encode(frames: Frames) -> None:
        for part in frames.split(BATCH):
            model(part.float() / 127.5 - 1)

    def whole(path: Path, seconds: int, cores: int) -> None:
        encode(decode(path, seconds, cores))

    return Side(decode, encode, whole)


def transformers_model() -> Callable[[Frames], Any]:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(projection_dim=512)  # The other defaults are those of ViT-B/32.
    model = CLIPVisionModelWithProjection(config).eval()
    return lambda frames: model(pixel_values=frames)


def open_clip_model() -> Callable[[Frames], Any]:
    for package in ("cv2", "open_clip", "timm", "pytest"):
        # The import below would skip a test, which is not an ImportError.
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
    # The import replaces torchvision, which open_clip imports but does not need for a model.
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from timm_oracle import import_oracle

    model = import_oracle("open_clip").create_model("ViT-B-32-quickgelu").eval()
    return lambda frames: model.encode_image(frames)


def make_sides() -> dict[str, Side]:
    """Make the sides whose packages are installed, in the order in which they take turns."""
    small = load("small")
    spec = METHODS["clip4clip"]
    clip = spec.build(CLIP4ClipConfig(num_frames=NUM_FRAMES), ENCODERS["clip"].build(ClipConfig()))
    clip.tokenizer = small.tokenizer
    sides = {
        "eaglenet, small": ours(small.eval()),
        "eaglenet, ViT-B/32": ours(clip.eval()),
        BEFORE: plain_side(decode_with_pyav, transformers_model()),
    }
    try:
        sides["OpenCV + open_clip, ViT-B/32"] = plain_side(decode_with_opencv, open_clip_model())
    except ImportError as error:
        print(f"without OpenCV + open_clip: {error}")
    return sides


def make_film(
    path: Path,
    name: str,
    seconds: int,
    *,
    piece_seconds: int = 0,
    make_piece: Callable[[Path, Film], None] = make_file,
) -> None:
    """Write a film that repeats the packets of a piece; ``piece_seconds`` 0 chooses its length."""
    piece_seconds = piece_seconds or (PIECE if seconds >= 2 * PIECE else seconds)
    piece = path.with_name(f"piece-{path.name}")
    make_piece(piece, Film(name, piece_seconds, *SIZES[name], 2 * FPS))
    repeat_piece(piece, path, turns=seconds // piece_seconds, seconds=piece_seconds)
    piece.unlink()


@torch.inference_mode()
def measure(sides: dict[str, Side], path: Path, whole: Path, options: Any) -> dict[str, Any]:
    """Return the rates of each side: decoding and encoding ``path``, and indexing ``whole``."""
    seconds, length = options.seconds, options.whole_seconds
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            torch.set_num_threads(1)
            side.encode(side.decode(path, WARMUP, 1)[:NUM_FRAMES])  # Fills caches.
            marks = [time.perf_counter()]
            frames = side.decode(path, seconds, 1)
            marks.append(time.perf_counter())
            side.encode(frames)
            marks.append(time.perf_counter())
            torch.set_num_threads(options.cores)
            side.whole(whole, length, options.cores)
            marks.append(time.perf_counter())
            times[name].append(tuple(np.diff(marks)))
    rows: dict[str, Any] = {}
    for name, turns in times.items():
        columns = zip(*turns, strict=True)
        decoding, encoding, together = (statistics.median(column) for column in columns)
        rows[name] = {
            "decode_hours_per_hour": round(seconds / decoding, 1),
            "encode_hours_per_hour": round(seconds / encoding, 1),
            "both_hours_per_hour": round(seconds / (decoding + encoding), 2),
            "whole_hours_per_hour": round(length / together, 2),
        }
    for row in rows.values():
        for part in ("both", "whole"):
            before = rows[BEFORE][f"{part}_hours_per_hour"]
            row[f"{part}_against_plain_loop"] = round(row[f"{part}_hours_per_hour"] / before, 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=64, help="length of each film")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=num_cores(), help="cores of the whole run")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--whole-seconds",
        type=int,
        help="length of the film for the whole run (default: --seconds)",
    )
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    options.whole_seconds = options.whole_seconds or options.seconds
    results = {}
    sides = make_sides()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            path = whole = Path(folder) / f"{name}.mp4"
            make_film(path, name, options.seconds)
            if options.whole_seconds != options.seconds:
                whole = Path(folder) / f"{name}-whole.mp4"
                make_film(whole, name, options.whole_seconds)
            results[name] = measure(sides, path, whole, options)
            for side, row in results[name].items():
                print(f"{name:6} {side:32}" + "  ".join(f"{k} {v}" for k, v in row.items()))
    payload = {
        "benchmark": "indexing",
        "seconds": options.seconds,
        "whole_seconds": options.whole_seconds,
        "rounds": options.rounds,
        "cores": options.cores,
        "precision": choose_precision("cpu"),
        "load_average": [round(load, 1) for load in os.getloadavg()],  # This run: 1 per core.
        "files": results,
    }
    print(f"written to {save_result('indexing', payload, options.output)}")


if __name__ == "__main__":
    main()
