"""Seconds until films and phone videos can be searched with `--quick`, and its effect on R@1.

    python benchmarks/quick.py                            # a film of 2 hours, 100 phone videos
    python benchmarks/quick.py --minutes 4 --phones 10    # smaller
    python benchmarks/quick.py --minutes 0 --phones 0 --clips FOLDER

``eaglenet index`` runs as a user runs it, including the start of Python: with ``--quick``, then
without it, which completes the clips, and once with a single exact pass for comparison
(``--no-single`` leaves it out). The film is that of ``film.py`` (1080p, a keyframe every 10 s). A
phone video is 30 s of 1080p at 30 frames per second, 16 Mbit/s, with a keyframe per second and no
B-frames. All phone videos consist of the same 300 groups of frames. Ten consecutive files share no
group, so that hardly any frame is encoded for two files at once.

``--clips`` is a folder of real videos with ``manifest.tsv`` (columns ``file`` and ``caption``).
Each caption is searched among all videos. The result has R@1 over whole videos for keyframes and
for exact frames, and the number of captions that only one of the two finds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import film
from common import children_seconds, save_result
from decoding import Film, Footage
from eaglenet.search.engine import Engine
from eaglenet.video.containers import pyav
from eaglenet.video.decoding import write_video

SINGLE_PASS = (
    "import math, sys\n"
    "from eaglenet.indexing import index\n"
    "index.EXACT_SECONDS = math.inf\n"
    "from eaglenet.cli.main import main\n"
    "sys.exit(main())"
)
PHONE_SECONDS, PHONE_RATE = 30, 30
POOL_SECONDS = 300
GOALS = {"film": 75.0, "phones": 60.0}
"""Seconds until a film of two hours and 100 phone videos can be searched, on two cores."""


def make_pool(path: Path, seconds: int) -> None:
    """Write groups of frames of one second each that refer only to frames of their group."""
    options = {"g": str(PHONE_RATE), "bf": "0", "sc_threshold": "0", "preset": "ultrafast"}
    frames = Footage(Film("pool", seconds * PHONE_RATE // film.FPS, 1920, 1080, PHONE_RATE))
    write_video(path, frames, PHONE_RATE, options={**options, "b": "16000000"})


def make_phones(folder: Path, count: int) -> Path:
    """Write phone videos, which are groups of the pool in random order."""
    videos = folder / "phone-videos"
    videos.mkdir()
    pool = folder / "pool.mp4"
    make_pool(pool, min(POOL_SECONDS, PHONE_SECONDS * count))
    groups: list[list[Any]] = []
    with pyav().open(str(pool)) as source:
        stream = source.streams.video[0]
        for packet in source.demux(stream):
            if packet.dts is not None:
                if packet.is_keyframe:
                    groups.append([])
                groups[-1].append((bytes(packet), packet.is_keyframe))
        shuffle, order = random.Random(0), list(range(len(groups)))
        videos_groups: list[list[int]] = []
        for number in range(count):
            if not videos_groups:
                shuffle.shuffle(order)
                starts = range(0, len(order) - PHONE_SECONDS + 1, PHONE_SECONDS)
                videos_groups = [order[start : start + PHONE_SECONDS] for start in starts]
            frames = [frame for group in videos_groups.pop() for frame in groups[group]]
            _write_packets(videos / f"phone{number:03}.mp4", stream, frames)
    pool.unlink()
    return videos


def _write_packets(path: Path, template: Any, frames: Sequence[tuple[bytes, bool]]) -> None:
    with pyav().open(str(path), "w") as target:
        stream = target.add_stream_from_template(template)
        stream.time_base = Fraction(1, PHONE_RATE)
        for number, (content, is_keyframe) in enumerate(frames):
            packet = pyav().Packet(content)
            packet.stream, packet.time_base = stream, Fraction(1, PHONE_RATE)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, is_keyframe
            target.mux(packet)


def index(videos: Path, store: Path, *options: str, code: str = "") -> dict[str, Any]:
    """Run the command; return its seconds, its processor seconds and values of its report."""
    program = ["-c", code] if code else ["-m", "eaglenet"]
    command = [sys.executable, "-P", *program, "index", str(videos), "--store", str(store)]
    before, start = children_seconds(), time.perf_counter()
    process = subprocess.run([*command, "--json", *options], stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, process.stdout
    report = json.loads(process.stdout)
    names = ("indexed", "completed", "clips", "keyframe_clips", "precision")
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(children_seconds() - before, 1),
        **{name: report[name] for name in names},
    }


def measure(videos: Path, folder: Path, *, with_single: bool) -> dict[str, Any]:
    """Measure both passes, and a single exact pass into another store."""
    result = {
        "keyframes": index(videos, folder / "quick", "--quick"),
        "completing": index(videos, folder / "quick"),
    }
    if with_single:
        result["one_exact_pass"] = index(videos, folder / "single", code=SINGLE_PASS)
    return result


def measure_recall(clips: Path, folder: Path) -> dict[str, Any]:
    """Return R@1 of captions over whole videos, with keyframes and with exact frames."""
    with (clips / "manifest.tsv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream, delimiter="\t") if row["caption"]]
    names = {path.name for path in clips.rglob("*")}
    pairs = [(row["caption"], row["file"]) for row in rows if row["file"] in names]
    # One store with all clips from keyframes, and one with none.
    code = SINGLE_PASS.replace("math.inf", "0.0")
    sides = {
        "keyframes": index(clips, folder / "keyframes", "--quick", code=code),
        "exact": index(clips, folder / "exact", code=SINGLE_PASS),
    }
    hits: dict[str, list[bool]] = {}
    for name in sides:
        engine = Engine.open(folder / name)
        results = engine.search_many([caption for caption, _ in pairs], k=1)
        hits[name] = [
            bool(first) and Path(first[0].path).name == file
            for first, (_, file) in zip(results, pairs, strict=True)
        ]
    both = list(zip(hits["keyframes"], hits["exact"], strict=True))
    return {
        "videos": len({file for _, file in pairs}),
        "captions": len(pairs),
        "r1_keyframes": round(100 * sum(hits["keyframes"]) / len(pairs), 1),
        "r1_exact": round(100 * sum(hits["exact"]) / len(pairs), 1),
        "only_keyframes_find": sum(quick and not exact for quick, exact in both),
        "only_exact_frames_find": sum(exact and not quick for quick, exact in both),
        "clips": sides["keyframes"]["clips"],
        "clips_from_keyframes": sides["keyframes"]["keyframe_clips"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=120, help="length of the film; 0: none")
    parser.add_argument("--phones", type=int, default=100, help="phone videos of 30 s; 0: none")
    parser.add_argument("--clips", type=Path, help="real videos with manifest.tsv")
    parser.add_argument("--single", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "quick", "load_average": [os.getloadavg()[0]]}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        for name in ("film", "phones", "recall"):
            (folder / name).mkdir()
        if options.minutes:
            path = film.make_film(folder / "film.mp4", options.minutes)
            seconds = measure(path, folder / "film", with_single=options.single)
            result["film"] = {"minutes": options.minutes, **seconds}
            path.unlink()
        if options.phones:
            videos = make_phones(folder, options.phones)
            seconds = measure(videos, folder / "phones", with_single=options.single)
            result["phones"] = {"files": options.phones, **seconds}
        if options.clips is not None:
            result["recall"] = measure_recall(options.clips, folder / "recall")
    result["load_average"].append(os.getloadavg()[0])
    for name, whole in (("film", 120), ("phones", 100)):
        if options.minutes == whole or options.phones == whole:
            part = result.get(name)
            if part is not None:
                part["meets_goal"] = part["keyframes"]["seconds"] <= GOALS[name]
    print(json.dumps(result, indent=2))
    print(f"written to {save_result('quick', result, options.output)}")


if __name__ == "__main__":
    main()
