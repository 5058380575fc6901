"""Seconds and memory that a long film takes: `eaglenet index` of a 1080p film with ``small``.

    python benchmarks/film.py                       # makes a film of 20 minutes, then measures
    python benchmarks/film.py --minutes 120
    python benchmarks/film.py --film FILE           # one of your own

The command runs as a user runs it, in processes of its own, the start of Python and of the model
included. Memory is that of all its processes together, shared pages counted once (Pss), looked at
once a second. The film that is made repeats 48 s that move (25 frames a second, a keyframe
every ten seconds, seven of ten frames B-frames as x264 has in films). Decoding and encoding alone
are the processor seconds of one thread over two minutes of the film, in a process of their own that
is set up as the command is (int8 where it takes that): what the time goes into. How many packets a
decoder may leave out undecoded is said with it. Processor seconds hardly depend on what else the
machine does; seconds do.
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
from common import save_result
from decoding import FPS, Film, Footage
from eaglenet.core.platform import keep_freed_memory
from eaglenet.indexing.decoding import THUMBNAIL_SIZE
from eaglenet.models.folder import load
from eaglenet.video.containers import pyav
from eaglenet.video.decoding import probe, write_video

PIECE = 48
LOOK_SECONDS = 1.0
ALONE_SECONDS = 128
GOAL_SECONDS, GOAL_BYTES = 300, 1.5 * 2**30
"""An hour of film in five minutes, in at most so much memory."""


def make_piece(path: Path, film: Film) -> None:
    # x264 would take the number in each frame for a cut, and make no B-frames next to one.
    options = {"g": "250", "sc_threshold": "0", "preset": "veryfast"}
    write_video(path, Footage(film), FPS, options=options)


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
    start = [sys.executable, "-P", "-m", "eaglenet"]
    command = [*start, "index", str(film), "--store", str(folder / "s")]
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


def alone_in_a_process(film: Path, seconds: int) -> dict[str, float]:
    """:func:`alone`, where torch is imported as the command has it."""
    keep_freed_memory()
    os.environ["PYTHONSAFEPATH"] = "1"  # The child imports nothing from the current folder.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(alone, film, seconds).result()


def share_left_out(film: Path, seconds: int) -> float:
    """Share of a film's frames that no other refers to, in its first seconds."""
    counts = []
    for skip in ("DEFAULT", "NONREF"):
        with pyav().open(str(film)) as container:
            stream = container.streams.video[0]
            stream.codec_context.skip_frame = skip
            frames = (frame.time for frame in container.decode(stream))
            counts.append(sum(1 for _ in itertools.takewhile(lambda time: time < seconds, frames)))
    return 1 - counts[1] / counts[0]


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
        hours, part = info.duration / 3600, min(ALONE_SECONDS, int(info.duration))
        result = {
            "benchmark": "film",
            "film_seconds": round(info.duration),
            "size": [info.width, info.height],
            "thumbnail": THUMBNAIL_SIZE,
            "whole": run,
            "seconds_an_hour": round(run["seconds"] / hours, 1),
            "processor_seconds_an_hour": round(run["processor_seconds"] / hours, 1),
            "processor_seconds_apart": alone_in_a_process(film, part),
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
