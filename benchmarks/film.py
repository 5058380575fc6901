"""Seconds and memory that a long film takes: `eaglenet index` of a 1080p film with ``small``.

    python benchmarks/film.py                       # makes a film of 20 minutes, then measures
    python benchmarks/film.py --minutes 120
    python benchmarks/film.py --film FILE           # one of your own

The command runs as a user runs it, in processes of its own, the start of Python and of the model
included. Memory is that of all its processes together, shared pages counted once (Pss), looked at
once a second. The film that is made repeats 48 s that move (25 frames a second, a keyframe
every ten seconds and B-frames, as x264 has by default). Decoding and encoding alone are the
processor seconds of one thread over a minute of the film: what the time goes into. Processor
seconds hardly depend on what else the machine does; seconds do.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import indexing
from common import save_result
from decoding import FPS, Film, Footage
from eaglenet.methods.folder import load
from eaglenet.search.indexing.decoding import THUMBNAIL_SIZE
from eaglenet.video.decoding import probe, write_video

PIECE = 48
LOOK_SECONDS = 1.0
ALONE_SECONDS = 64
GOAL_SECONDS, GOAL_BYTES = 300, 1.5 * 2**30
"""An hour of film in five minutes, in at most so much memory."""


def make_piece(path: Path, film: Film) -> None:
    write_video(path, Footage(film), FPS, options={"g": "250", "preset": "veryfast"})


def make_film(path: Path, minutes: int) -> Path:
    indexing.make_film(path, "1080p", minutes * 60, piece_seconds=PIECE, make_piece=make_piece)
    return path


def family(process: int) -> list[int]:
    """A process and all that it started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def memory(process: int) -> int:
    """Bytes of a process and its children; a page that several share is counted once."""
    total = 0
    for each in family(process):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue  # It has just ended.
        total += int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0]) * 1024
    return total


def index(film: Path, folder: Path) -> dict[str, Any]:
    """The command on one film: seconds, processor time and the most memory it took."""
    command = [sys.executable, "-m", "eaglenet", "index", str(film), "--store", str(folder / "s")]
    before, began = os.times(), time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        most = 0
        while process.poll() is None:
            try:
                most = max(most, memory(process.pid))
            except OSError:
                continue
            time.sleep(LOOK_SECONDS)
    seconds, after = time.perf_counter() - began, os.times()
    assert process.returncode == 0, (folder / "log").read_text()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(spent, 1),
        "peak_bytes": most,
        "last_line": (folder / "log").read_text().strip().splitlines()[-1][:200],
    }


@torch.inference_mode()
def alone(film: Path, seconds: int) -> dict[str, float]:
    """Processor seconds an hour of film, decoding and encoding apart."""
    torch.set_num_threads(1)
    way = indexing.ours(load("small").eval())
    marks = [time.process_time()]
    frames = way.decode(film, seconds, 1)
    marks.append(time.process_time())
    way.encode(frames)
    marks.append(time.process_time())
    decoding, encoding = marks[1] - marks[0], marks[2] - marks[1]
    return {
        "decode_seconds_an_hour": round(decoding * 3600 / seconds, 1),
        "encode_seconds_an_hour": round(encoding * 3600 / seconds, 1),
        "frames_a_second_encoded": round(len(frames) / encoding, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--film", type=Path, help="measure this one")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        film = options.film or make_film(folder / "film.mp4", options.minutes)
        info = probe(film)
        load_before = os.getloadavg()[0]
        run = index(film, folder)
        hours = info.duration / 3600
        result = {
            "benchmark": "film",
            "film_seconds": round(info.duration),
            "size": [info.width, info.height],
            "thumbnail": THUMBNAIL_SIZE,
            "whole": run,
            "seconds_an_hour": round(run["seconds"] / hours, 1),
            "processor_seconds_an_hour": round(run["processor_seconds"] / hours, 1),
            "processor_seconds_apart": alone(film, min(ALONE_SECONDS, int(info.duration))),
            "is_quick_enough": run["seconds"] / hours <= GOAL_SECONDS,
            "is_small_enough": run["peak_bytes"] <= GOAL_BYTES,
            "load_average_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(f"written to {save_result('film', result, options.output)}")


if __name__ == "__main__":
    main()
