"""Cost of committing to a store: seconds in the commits of an index run, including syncing.

    python benchmarks/syncing.py                        # 3 runs of each
    python benchmarks/syncing.py --folder DIR           # stores in DIR, for example on another disk

Two kinds of work with ``small``: one film, and many short files, which is the worst case: there is
a commit after 256 clips or 15 s, and another at the end of a run. SQLite syncs internally, so all
of ``commit`` and ``finish`` is counted, which is an upper bound of the time for syncing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import save_result
from decoding import Film, make_file
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from eaglenet.store.writer import LocalWriter

MAX_SHARE = 0.05
"""Maximum fraction of a run that commits may take."""
FILM_SECONDS, SHORT_SECONDS, SHORT_FILES = 32, 2, 12


class CallTimer:
    """Wrapper of a function that counts its calls and their seconds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*arguments, **options)
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - began


@contextmanager
def time_commits() -> Iterator[list[CallTimer]]:
    """Time the calls that change a store within the block."""
    names = ("commit", "finish")
    originals = [getattr(LocalWriter, name) for name in names]
    timers = [CallTimer(function) for function in originals]
    for name, timer in zip(names, timers, strict=True):
        # A function, so that Python passes the writer to it.
        setattr(LocalWriter, name, lambda *arguments, timer=timer: timer(*arguments))
    try:
        yield timers
    finally:
        for name, function in zip(names, originals, strict=True):
            setattr(LocalWriter, name, function)


def make_videos(folder: Path) -> dict[str, Path]:
    """Write a film, and short files that differ in their content."""
    film, short = folder / "film", folder / "short files"
    film.mkdir()
    short.mkdir()
    make_file(film / "film.mp4", Film("film", FILM_SECONDS, 640, 360, 250))
    make_file(short / "0.mp4", Film("short", SHORT_SECONDS, 320, 240, 50))
    content = (short / "0.mp4").read_bytes()
    for number in range(1, SHORT_FILES):
        size = 8 + number
        box = size.to_bytes(4, "big") + b"free" + bytes(number)
        (short / f"{number}.mp4").write_bytes(content + box)
    return {"film": film, "short files": short}


def measure(videos: Path, store: Path, method: Method) -> dict[str, float]:
    """Measure one run into a new store."""
    with time_commits() as timers:
        began = time.perf_counter()
        report = index_videos(
            [videos], store, "small", options=IndexOptions(device="cpu"), method=method
        )
        seconds = time.perf_counter() - began
    assert not report.problems, report.problems
    commit_seconds = sum(timer.seconds for timer in timers)
    shutil.rmtree(store)
    return {
        "run_seconds": round(seconds, 2),
        "commit_seconds": round(commit_seconds, 4),
        "commits": timers[0].calls,
        "share": round(commit_seconds / seconds, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the stores")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    method = load("small").eval()
    before = os.getloadavg()
    rows: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        works = make_videos(Path(folder))
        for _ in range(options.rounds):
            for name, videos in works.items():
                row = measure(videos, Path(folder) / "store", method)
                print(f"{name:12}" + "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
                rows.setdefault(name, []).append(row)
    shares = {name: statistics.median(r["share"] for r in runs) for name, runs in rows.items()}
    result = {
        "benchmark": "syncing",
        "share_of_the_run": shares,
        "is_within": max(shares.values()) <= MAX_SHARE,
        "runs": rows,
        "load_average_before_and_after": [round(before[0], 1), round(os.getloadavg()[0], 1)],
    }
    print(f"written to {save_result('syncing', result, options.output)}")


if __name__ == "__main__":
    main()
