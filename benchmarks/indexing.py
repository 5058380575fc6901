"""Hours of video an hour, decoding and encoding apart and together, beside plain loops, in turns.

    python benchmarks/indexing.py                       # 240p, 720p and 1080p, 64 s each
    python benchmarks/indexing.py --seconds 32 --rounds 1 --cores 2
    python benchmarks/indexing.py --sizes 1080p --rounds 1 --whole-seconds 1200   # 11 minutes

Everyone looks at the same moments: 6 of each clip (10 s, 2 s of overlap), as ``small`` does, of
which neighbouring clips share one; ours encodes that once. It encodes in the precision that
`eaglenet index` takes on this machine; ``small`` has its own weights, ViT-B/32 random ones on all
sides. The plain loops decode every frame with PyAV or OpenCV, shrink the wanted ones, and encode
them in fp32 with transformers or open_clip. Decoding and encoding apart are with one core; "whole"
has all of ``--cores``: ours is `index` into a new store, thumbnails and syncing included, the model
loaded before; theirs one after the other with as many threads as they take. Ours starts processes
first, which takes seconds whatever the length: "both" is without that, and ``--whole-seconds``
gives the whole a longer film than the parts.
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
from eaglenet.core.hardware import autocast_for, choose_precision
from eaglenet.core.platform import num_cores
from eaglenet.core.types import Clips
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.clip_config import ClipConfig
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
"""Seconds that are made; longer films repeat them. So many that a clip and the next never show the
same twice, which would be encoded once."""
WARMING = 8
"""Seconds of a film that are looked at before time is taken."""
STEP = shared_step(CLIP_SECONDS, OVERLAP, NUM_FRAMES)
BEFORE = "PyAV + transformers, ViT-B/32"
Frames = torch.Tensor


@dataclass(frozen=True)
class Way:
    """One side. ``whole`` takes a file, its length and the number of cores."""

    decode: Callable[[Path, int, int], Frames]
    encode: Callable[[Frames], None]
    whole: Callable[[Path, int, int], None]


def ours(method: Method) -> Way:
    spec = method.frame_spec
    much = CandidateFile("film.mp4", 2**30, 0)
    twin, precision = prepare_for_precision(method, "auto", [much])

    def decode(path: Path, seconds: int, cores: int) -> Frames:
        windows = dict(enumerate(fixed_windows(seconds, CLIP_SECONDS, OVERLAP)))
        found = [
            clip.frames
            for request in split_request("film", str(path), windows, None, seconds)
            for clip in decode_clips(request, spec, STEP).clips
            if isinstance(clip, ClipFrames)
        ]
        return torch.cat(found)

    def encode(frames: Frames) -> None:
        with autocast_for(torch.device("cpu"), precision):
            for part in frames.split(BATCH_FRAMES):
                pixels = part.unflatten(0, (-1, NUM_FRAMES))
                shape = pixels.shape[:2]
                clips = Clips(pixels, torch.ones(shape, dtype=torch.bool), torch.zeros(shape))
                twin.encode_video(clips)

    def whole(path: Path, seconds: int, cores: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            options = IndexOptions(device="cpu", workers=cores, precision=precision)
            report = index_videos([path], store, "given", options=options, method=method)
        assert not report.problems, report.problems

    return Way(decode, encode, whole)


def moments(seconds: int) -> list[int]:
    """Numbers of the frames that are looked at, clip after clip."""
    found = []
    for start, end in fixed_windows(seconds, CLIP_SECONDS, OVERLAP):
        is_whole = end - start >= NUM_FRAMES * STEP
        step = STEP if is_whole else (end - start) / NUM_FRAMES
        middle = (start + end) / 2
        found += [
            int((middle + step * (i + 0.5 - NUM_FRAMES / 2)) * FPS + 1e-6)
            for i in range(NUM_FRAMES)
        ]
    return found


def stacked(kept: dict[int, Any], wanted: list[int]) -> Frames:
    frames = np.stack([kept[min(number, max(kept))] for number in wanted])
    return torch.from_numpy(frames).permute(0, 3, 1, 2)


def decode_with_pyav(path: Path, seconds: int, cores: int) -> Frames:
    from PIL import Image

    wanted = moments(seconds)
    numbers, kept = set(wanted), {}
    with pyav().open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = cores
        container.streams.video[0].thread_type = "AUTO"
        for number, frame in enumerate(container.decode(video=0)):
            if number in numbers:
                picture = frame.to_image()
                scale = 224 / min(picture.size)
                width, height = (round(side * scale) for side in picture.size)
                small = picture.resize((width, height), Image.Resampling.BICUBIC)
                left, top = (width - 224) // 2, (height - 224) // 2
                kept[number] = np.asarray(small.crop((left, top, left + 224, top + 224)))
    return stacked(kept, wanted)


def decode_with_opencv(path: Path, seconds: int, cores: int) -> Frames:
    import cv2

    cv2.setNumThreads(cores)
    wanted = moments(seconds)
    numbers, kept, number = set(wanted), {}, 0
    reader = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, cores])
    while reader.grab():
        if number in numbers:
            frame = reader.retrieve()[1]
            height, width = frame.shape[:2]
            scale = 224 / min(height, width)
            height, width = round(height * scale), round(width * scale)
            small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
            left, top = (width - 224) // 2, (height - 224) // 2
            kept[number] = small[top : top + 224, left : left + 224, ::-1]
        number += 1
    return stacked(kept, wanted)


def plain(decode: Callable[[Path, int, int], Frames], model: Callable[[Frames], Any]) -> Way:
    def encode(frames: Frames) -> None:
        for part in frames.split(BATCH):
            model(part.float() / 127.5 - 1)

    def whole(path: Path, seconds: int, cores: int) -> None:
        encode(decode(path, seconds, cores))

    return Way(decode, encode, whole)


def transformers_model() -> Callable[[Frames], Any]:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(projection_dim=512)  # its defaults are ViT-B/32
    model = CLIPVisionModelWithProjection(config).eval()
    return lambda frames: model(pixel_values=frames)


def open_clip_model() -> Callable[[Frames], Any]:
    for package in ("cv2", "open_clip", "timm", "pytest"):
        # The tests' import below would skip a test, which is no ImportError.
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
    # Building a model needs nothing of torchvision, which open_clip imports all the same.
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from timm_oracle import import_oracle

    model = import_oracle("open_clip").create_model("ViT-B-32-quickgelu").eval()
    return lambda frames: model.encode_image(frames)


def ways() -> dict[str, Way]:
    """Sides whose packages are installed, in the order in which they take turns."""
    small = load("small")
    spec = METHODS["clip4clip"]
    clip = spec.build(CLIP4ClipConfig(num_frames=NUM_FRAMES), ENCODERS["clip"].build(ClipConfig()))
    clip.tokenizer = small.tokenizer
    every = {
        "eaglenet, small": ours(small.eval()),
        "eaglenet, ViT-B/32": ours(clip.eval()),
        BEFORE: plain(decode_with_pyav, transformers_model()),
    }
    try:
        every["OpenCV + open_clip, ViT-B/32"] = plain(decode_with_opencv, open_clip_model())
    except ImportError as error:
        print(f"without OpenCV + open_clip: {error}")
    return every


def make_film(
    path: Path,
    name: str,
    seconds: int,
    *,
    piece_seconds: int = 0,
    make_piece: Callable[[Path, Film], None] = make_file,
) -> None:
    """A piece of film, its packets repeated; ``piece_seconds`` 0: as many as is best."""
    piece_seconds = piece_seconds or (PIECE if seconds >= 2 * PIECE else seconds)
    piece = path.with_name(f"piece-{path.name}")
    make_piece(piece, Film(name, piece_seconds, *SIZES[name], 2 * FPS))
    repeat_piece(piece, path, turns=seconds // piece_seconds, seconds=piece_seconds)
    piece.unlink()


@torch.inference_mode()
def measure(every: dict[str, Way], path: Path, whole: Path, options: Any) -> dict[str, Any]:
    """Rates of every side: of decoding and encoding ``path``, and of all of ``whole``."""
    seconds, length = options.seconds, options.whole_seconds
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in every}
    for _ in range(options.rounds):
        for name, way in every.items():
            torch.set_num_threads(1)
            way.encode(way.decode(path, WARMING, 1)[:NUM_FRAMES])  # memory and caches are warm now
            marks = [time.perf_counter()]
            frames = way.decode(path, seconds, 1)
            marks.append(time.perf_counter())
            way.encode(frames)
            marks.append(time.perf_counter())
            torch.set_num_threads(options.cores)
            way.whole(whole, length, options.cores)
            marks.append(time.perf_counter())
            spent[name].append(tuple(np.diff(marks)))
    rows: dict[str, Any] = {}
    for name, turns in spent.items():
        columns = zip(*turns, strict=True)
        decoding, encoding, together = (statistics.median(column) for column in columns)
        rows[name] = {
            "decode_hours_an_hour": round(seconds / decoding, 1),
            "encode_hours_an_hour": round(seconds / encoding, 1),
            "both_hours_an_hour": round(seconds / (decoding + encoding), 2),
            "whole_hours_an_hour": round(length / together, 2),
        }
    for row in rows.values():
        for part in ("both", "whole"):
            before = rows[BEFORE][f"{part}_hours_an_hour"]
            row[f"{part}_against_plain_loop"] = round(row[f"{part}_hours_an_hour"] / before, 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=64, help=f"of each film, {PIECE} at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=num_cores(), help="for the whole")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--whole-seconds", type=int, help="of the film for the whole (as above)")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    options.whole_seconds = options.whole_seconds or options.seconds
    results = {}
    every = ways()
    import lancedb  # noqa: F401 - seconds that are no part of a run

    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            path = whole = Path(folder) / f"{name}.mp4"
            make_film(path, name, options.seconds)
            if options.whole_seconds != options.seconds:
                whole = Path(folder) / f"{name}-whole.mp4"
                make_film(whole, name, options.whole_seconds)
            results[name] = measure(every, path, whole, options)
            for way, row in results[name].items():
                print(f"{name:6} {way:32}" + "  ".join(f"{k} {v}" for k, v in row.items()))
    payload = {
        "benchmark": "indexing",
        "seconds": options.seconds,
        "whole_seconds": options.whole_seconds,
        "rounds": options.rounds,
        "cores": options.cores,
        "precision": choose_precision("cpu"),  # int8 only where its frames are as good
        "load_average": [round(load, 1) for load in os.getloadavg()],  # 1 a core is this run itself
        "files": results,
    }
    print(f"written to {save_result('indexing', payload, options.output)}")


if __name__ == "__main__":
    main()
