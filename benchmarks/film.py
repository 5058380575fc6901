"""Time and memory of `eaglenet index` for a long 1080p film with ``small``.

    python benchmarks/film.py                       # makes a film of 20 minutes, then measures
    python benchmarks/film.py --minutes 120
    python benchmarks/film.py --film FILE           # your own film

The command runs as a user runs it, including the start of Python and of the model. Memory is that
of all its processes together, sampled once per second; shared pages are counted once (Pss). The
film repeats 48 s of motion (25 frames per second, a keyframe every ten seconds, and seven B-frames
in ten frames, as x264 usually makes). Decoding and encoding are also measured separately: processor
seconds of one thread over two minutes of the film, in a process that is set up like the command
(with int8 if the command uses it), and the fraction of frames that a decoder may leave out.
Processor seconds hardly depend on other load; seconds do.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import indexing
from common import children_seconds, save_result
from decoding import FPS, Film, Footage
from eaglenet.core.platform import keep_freed_memory
from eaglenet.indexing.decoding import THUMBNAIL_SIZE
from eaglenet.models.folder import load
from eaglenet.video.containers import pyav
from eaglenet.video.decoding import probe, write_video

PIECE = 48
SAMPLE_SECONDS = 1.0
ALONE_SECONDS = 128
GOAL_SECONDS, GOAL_BYTES = 300, 1.5 * 2**30
"""Maximum seconds per hour of film, and maximum memory."""


def make_piece(path: Path, film: Film) -> None:
    # x264 would take the number in each frame for a cut, next to which it makes no B-frames.
    options = {"g": "250", "sc_threshold": "0", "preset": "veryfast"}
    write_video(path, Footage(film), FPS, options=options)


def make_film(path: Path, minutes: int) -> Path:
    indexing.make_film(path, "1080p", minutes * 60, piece_seconds=PIECE, make_piece=make_piece)
    return path


def family(process: int) -> list[int]:
    """Return a process and its descendants."""
    processes = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            processes += family(int(child))
    return processes


def memory(process: int) -> int:
    """Return the bytes of a process and its descendants; shared pages are counted once."""
    total = 0
    for each in family(process):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue  # The process has just ended.
        total += int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) * 1024
    return total


def index(film: Path, folder: Path) -> dict[str, Any]:
    """Index a film with the command; return its time, processor time and peak memory."""
    command = [sys.executable, "-P", "-m", "eaglenet", "index", str(film)]
    command += ["--store", str(folder / "s")]
    before, start = children_seconds(), time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            try:
                peak = max(peak, memory(process.pid))
            except OSError:
                continue
            time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, (folder / "log").read_text()
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(children_seconds() - before, 1),
        "peak_bytes": peak,
        "last_line": (folder / "log").read_text().strip().splitlines()[-1][:200],
    }


def measure_parts_in_process(film: Path, seconds: int) -> dict[str, float]:
    """Call :func:`measure_parts` in a process that imports torch as the command does."""
    keep_freed_memory()
    os.environ["PYTHONSAFEPATH"] = "1"  # The child imports nothing from the current folder.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure_parts, film, seconds).result()


def share_left_out(film: Path, seconds: int) -> float:
    """Return the fraction of frames to which no other frame refers, in the first seconds."""
    counts = []
    for skip in ("DEFAULT", "NONREF"):
        with pyav().open(str(film)) as container:
            stream = container.streams.video[0]
            stream.codec_context.skip_frame = skip
            frames = (frame.time for frame in container.decode(stream))
            counts.append(sum(1 for _ in itertools.takewhile(lambda time: time < seconds, frames)))
    return 1 - counts[1] / counts[0]


@torch.inference_mode()
def measure_parts(film: Path, seconds: int) -> dict[str, float]:
    """Return the processor seconds of decoding and of encoding per hour of film."""
    torch.set_num_threads(1)
    side = indexing.ours(load("small").eval())
    marks = [time.process_time()]
    frames = side.decode(film, seconds, 1)
    marks.append(time.process_time())
    side.encode(frames)
    marks.append(time.process_time())
    decoding, encoding = marks[1] - marks[0], marks[2] - marks[1]
    return {
        "decode_seconds_per_hour": round(decoding * 3600 / seconds, 1),
        "encode_seconds_per_hour": round(encoding * 3600 / seconds, 1),
        "frames_per_second_encoded": round(len(frames) / encoding, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--film", type=Path, help="measure this film")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        film = options.film or make_film(folder / "film.mp4", options.minutes)
        info = probe(film)
        load_before = os.getloadavg()[0]
        run = index(film, folder)
        hours, part = info.duration / 3600, min(ALONE_SECONDS, int(info.duration))
        result = {
            "benchmark": "film",
            "film_seconds": round(info.duration),
            "size": [info.width, info.height],
            "thumbnail": THUMBNAIL_SIZE,
            "whole": run,
            "seconds_per_hour": round(run["seconds"] / hours, 1),
            "processor_seconds_per_hour": round(run["processor_seconds"] / hours, 1),
            "processor_seconds_apart": measure_parts_in_process(film, part),
            "share_of_frames_left_out": round(share_left_out(film, part), 2),
            "is_quick_enough": run["seconds"] / hours <= GOAL_SECONDS,
            "is_small_enough": run["peak_bytes"] <= GOAL_BYTES,
            "load_average_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(f"written to {save_result('film', result, options.output)}")


if __name__ == "__main__":
    main()
