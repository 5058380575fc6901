"""Milliseconds for 12 exact frames of four files, compared with decord2 and OpenCV.

    python benchmarks/decoding.py            # makes the files (about two minutes), then measures
    python benchmarks/decoding.py --folder DIR --rounds 9

Every reader returns 12 RGB frames, shorter side 224, centre crop. The number of each frame is drawn
into it as a grid of 4 x 4 cells, by which exact frames are counted. The other libraries scale
without antialiasing, or inside their decoder if that is faster, which is in their favour. Readers
take turns, because the speed of a machine drifts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import save_result
from eaglenet.core.types import FrameSpec
from eaglenet.video.decoding import decode, write_video

FPS = 25
NUM_FRAMES = 12
SIZE = 224
Frames = np.ndarray[Any, Any]
Reader = Callable[[Path, int], tuple[Frames, float]]


@dataclass(frozen=True)
class Film:
    name: str
    seconds: int
    width: int
    height: int
    gop: int

    @property
    def num_frames(self) -> int:
        return self.seconds * FPS


FILMS = (
    Film("10s_320x240", 10, 320, 240, 60),
    Film("3min_320x240", 180, 320, 240, 90),
    Film("10s_720p", 10, 1280, 720, 60),
    Film("3min_720p", 180, 1280, 720, 250),
)


class Footage:
    """Frames made on demand: soft moving shapes with grain, and a scene change every 4 s."""

    ndim, dtype = 4, np.dtype(np.uint8)

    def __init__(self, film: Film) -> None:
        self.shape = (film.num_frames, film.height, film.width, 3)
        self.film = film
        self.scenes: dict[int, Frames] = {}
        generator = np.random.default_rng(0)
        self.grain = generator.integers(0, 9, (8, film.height, film.width, 1), dtype=np.uint8)

    def __len__(self) -> int:
        return self.film.num_frames

    def __iter__(self) -> Any:
        return (self.frame(number) for number in range(len(self)))

    def frame(self, number: int) -> Frames:
        scene, step = divmod(number, 4 * FPS)
        if scene not in self.scenes:
            self.scenes = {scene: self.make_scene(scene)}
        height, width = self.shape[1:3]
        y, x = step, 2 * step
        frame = self.scenes[scene][y : y + height, x : x + width].copy()
        frame += self.grain[number % 8]
        return paint_number(frame, number)

    def make_scene(self, scene: int) -> Frames:
        from PIL import Image

        height, width = self.shape[1] + 4 * FPS, self.shape[2] + 8 * FPS
        coarse = np.random.default_rng(scene).integers(0, 240, (14, 20, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(smooth).clip(0, 246)  # At most 255 with the grain.


def make_file(path: Path, film: Film) -> None:
    """Write a file with keyframes only at fixed distances, so that seeking costs the most."""
    options = {"g": str(film.gop), "sc_threshold": "0", "preset": "veryfast"}
    partial = path.with_name(f"partial-{path.name}")
    write_video(partial, Footage(film), FPS, options=options)
    partial.replace(path)


def paint_number(frame: Frames, number: int) -> Frames:
    height, width = frame.shape[:2]
    cell = min(height, width) // 8
    top, left = (height - 4 * cell) // 2, (width - 4 * cell) // 2
    for bit in range(16):
        row, column = divmod(bit, 4)
        y, x = top + row * cell, left + column * cell
        frame[y : y + cell, x : x + cell] = 235 if number >> bit & 1 else 20
    return frame


def read_numbers(frames: Frames) -> list[int]:
    """Read the numbers painted into frames ``[frames, height, width, 3]``."""
    cell = SIZE / 8
    numbers = []
    for frame in frames:
        number = 0
        for bit in range(16):
            row, column = divmod(bit, 4)
            y, x = int((row + 2.25) * cell), int((column + 2.25) * cell)
            half = int(cell / 2)
            number |= int(frame[y : y + half, x : x + half].mean() > 128) << bit
        numbers.append(number)
    return numbers


def sample_numbers(num_frames: int) -> list[int]:
    return [(2 * i + 1) * num_frames // (2 * NUM_FRAMES) for i in range(NUM_FRAMES)]


def read_eaglenet(fast: bool, threads: int) -> Reader:
    spec = FrameSpec(num_frames=NUM_FRAMES, size=SIZE, fast=fast)

    def read(path: Path, num_frames: int) -> tuple[Frames, float]:
        video = decode(path, spec, threads=threads)
        return video.frames.permute(0, 2, 3, 1).numpy(), video.largest_error

    return read


def crop(frames: Frames) -> Frames:
    top, left = (frames.shape[1] - SIZE) // 2, (frames.shape[2] - SIZE) // 2
    return frames[:, top : top + SIZE, left : left + SIZE]


def shrink(frames: list[Frames]) -> Frames:
    import cv2

    height, width = frames[0].shape[:2]
    scale = SIZE / min(height, width)
    size = (round(width * scale), round(height * scale))
    return crop(np.stack([cv2.resize(one, size, interpolation=cv2.INTER_CUBIC) for one in frames]))


def read_decord(scale_inside: bool, threads: int) -> Reader:
    import decord

    def read(path: Path, num_frames: int) -> tuple[Frames, float]:
        options: dict[str, int] = {}
        if scale_inside:
            width, height = (1280, 720) if "720p" in path.name else (320, 240)
            options = {"width": SIZE * width // height, "height": SIZE}
        reader = decord.VideoReader(str(path), num_threads=threads, **options)
        batch = reader.get_batch(sample_numbers(len(reader))).asnumpy()
        return (crop(batch) if scale_inside else shrink(list(batch))), 0.0

    return read


def read_opencv(seek: bool) -> Reader:
    import cv2

    def read(path: Path, num_frames: int) -> tuple[Frames, float]:
        capture = cv2.VideoCapture(str(path))
        frames = []
        position = 0
        for number in sample_numbers(num_frames):
            if seek:
                capture.set(cv2.CAP_PROP_POS_FRAMES, number)
            else:
                while position < number:
                    capture.grab()
                    position += 1
            ok, frame = capture.read()
            position += 1
            frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB) if ok else frames[-1])
        capture.release()
        return shrink(frames), 0.0

    return read


def readers() -> dict[str, Reader]:
    """Return the readers whose packages are installed, by name."""
    every: dict[str, Reader] = {
        "eaglenet": read_eaglenet(fast=False, threads=0),
        "eaglenet, 1 thread": read_eaglenet(fast=False, threads=1),
        "eaglenet --fast": read_eaglenet(fast=True, threads=0),
    }
    try:
        every["decord2"] = read_decord(scale_inside=False, threads=0)
        every["decord2, scaled inside"] = read_decord(scale_inside=True, threads=0)
        every["decord2, 1 thread, scaled inside"] = read_decord(scale_inside=True, threads=1)
    except ImportError:
        print("decord2 is not installed: left out")
    try:
        every["opencv, seek"] = read_opencv(seek=True)
        every["opencv, sequential"] = read_opencv(seek=False)
    except ImportError:
        print("OpenCV is not installed: left out")
    return every


def measure(path: Path, film: Film, rounds: int) -> dict[str, dict[str, float]]:
    every = readers()
    if film.seconds > 60:
        # Decoding all of three minutes is many times slower than seeking.
        every.pop("opencv, sequential", None)
    seconds: dict[str, list[float]] = {name: [] for name in every}
    exact, error = {}, {}
    for turn in range(rounds + 1):
        for name, read in every.items():
            start = time.perf_counter()
            frames, largest = read(path, film.num_frames)
            if turn > 0:  # The first round fills caches.
                seconds[name].append(time.perf_counter() - start)
            numbers = read_numbers(frames)
            expected = sample_numbers(film.num_frames)
            exact[name] = sum(a == b for a, b in zip(numbers, expected, strict=True))
            error[name] = largest
    return {
        name: {
            "median_ms": round(statistics.median(values) * 1e3, 1),
            "best_ms": round(min(values) * 1e3, 1),
            "exact_of_12": exact[name],
            "largest_error_s": round(error[name], 3),
        }
        for name, values in seconds.items()
    }


def verdict(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return our time over that of the best exact other reader, and the speedup of ``--fast``."""
    others = [
        row["median_ms"]
        for name, row in rows.items()
        if not name.startswith("eaglenet") and row["exact_of_12"] == NUM_FRAMES
    ]
    ours = rows["eaglenet"]["median_ms"]
    result = {"fast_speedup": round(ours / rows["eaglenet --fast"]["median_ms"], 2)}
    if others:
        result["ours_over_best_other"] = round(ours / min(others), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="folder for the test files, which are kept")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="folder for the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = {}
        for film in FILMS:
            path = folder / f"{film.name}.mp4"
            if not path.exists():
                make_file(path, film)
            rows = measure(path, film, arguments.rounds)
            results[film.name] = {"readers": rows, **verdict(rows)}
            print(f"\n{film.name} (GOP {film.gop}, {path.stat().st_size / 1e6:.1f} MB)")
            for name, row in rows.items():
                print(f"  {name:34}" + "".join(f"{key} {value:<9}" for key, value in row.items()))
            print("  " + ", ".join(f"{key} {value}" for key, value in verdict(rows).items()))
    payload = {
        "benchmark": "decoding",
        "rounds": arguments.rounds,
        "load_average": [round(load, 1) for load in os.getloadavg()],  # This run counts as 1.
        "files": results,
    }
    print(f"\nwritten to {save_result('decoding', payload, arguments.output)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
