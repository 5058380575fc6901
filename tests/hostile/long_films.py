"""Long films made quickly: a piece that is encoded once and repeated, then damaged.

    python tests/hostile/long_films.py --minutes 10 40

Prints the processor seconds of each film, whole and damaged, without a model's part.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import FrameSpec
from eaglenet.indexing.decoding import ClipFailure, decode_ahead, split_request
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import inspect
from eaglenet.video.decoding import write_video

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from repeating import repeat_piece

PIECE = 60
"""Seconds that are encoded."""
FPS = 25
HOLES_A_MINUTE = 6
SPEC = FrameSpec(num_frames=12, size=16)


def make_film(path: Path, minutes: int) -> Path:
    """A film of 64 x 48 that moves, with a keyframe every ten seconds as x264 has by default.

    Frames are reordered (B-frames) unless its name says that they are in order.
    """
    reordered = "0" if "in order" in path.name else "2"
    # Matroska leaves the times of its first packets open; MP4 holds H.264 otherwise than AVI does.
    piece = path.with_name(f"piece {reordered}.{'nut' if path.suffix == '.avi' else 'mp4'}")
    if not piece.exists():
        generator = np.random.default_rng(0)
        scene = generator.integers(0, 256, (3, 48, 64 + PIECE * FPS), dtype=np.uint8)
        frames = np.stack([scene[:, :, step : step + 64] for step in range(PIECE * FPS)])
        write_video(piece, frames, FPS, options={"preset": "ultrafast", "bf": reordered})
    # The index lies before the pictures, so that a film that is cut short can be opened.
    options = {"movflags": "+faststart"} if path.suffix == ".mp4" else {}
    repeat_piece(piece, path, turns=minutes * 60 // PIECE, seconds=PIECE, options=options)
    return path


def damage(path: Path, minutes: int) -> Path:
    """A copy with its last tenth cut off and as many holes a minute whatever its length."""
    content = bytearray(path.read_bytes())
    chance = random.Random(0)
    for _ in range(HOLES_A_MINUTE * minutes):
        place = chance.randrange(len(content) // 20, len(content))  # past the index
        content[place : place + 40] = chance.randbytes(40)
    target = path.with_name(f"damaged {path.name}")
    target.write_bytes(content[: len(content) * 9 // 10])
    return target


def index(path: Path) -> tuple[float, int, int]:
    """Processor seconds to look at a film and decode it; how many clips came, and did not."""
    began = time.process_time()
    status = path.stat()
    file = CandidateFile(str(path), status.st_size, status.st_mtime_ns)
    found = inspect(file, Splitting(), frozenset())
    windows = dict(enumerate(found.windows))
    requests = split_request(found.content, str(path), windows, found.version, found.duration)
    outcomes = list(decode_ahead(requests, SPEC, 0))
    lost = sum(isinstance(one, ClipFailure) for one in outcomes)
    return time.process_time() - began, len(windows) - lost, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=int, nargs="+", default=[10, 40])
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("mp4", "mkv", "ts", "flv", "avi", "in order.avi"):
            for length in minutes:
                film = make_film(Path(folder) / f"{length}.{suffix}", length)
                for path in (film, damage(film, length)):
                    seconds, clips, lost = index(path)
                    print(f"{path.name}: {seconds:.1f} s, {clips} clips, {lost} lost", flush=True)


if __name__ == "__main__":
    main()
