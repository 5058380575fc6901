"""Cost of committing to a store: seconds inside the commits of an index run, syncing included.

    python benchmarks/syncing.py                        # 3 runs of each
    python benchmarks/syncing.py --folder DIR           # the stores lie there: another disk

Two kinds of work with ``small``: one film, and many short files, which is the worst for syncing: a
commit comes after 256 clips or 15 s, and the end of a run is one more. SQLite syncs by itself, so
what is counted is all of ``commit`` and ``finish``: an upper bound of the time that syncing takes.
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

MOST = 0.05
"""Share of a run that commits may take."""
FILM_SECONDS, SHORT_SECONDS, SHORT_FILES = 32, 2, 12


class Counted:
    """Calls of a function and the seconds inside them."""

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
def counted() -> Iterator[list[Counted]]:
    """Counts the calls that change a store inside the block."""
    names = ("commit", "finish")
    before = [getattr(LocalWriter, name) for name in names]
    counters = [Counted(function) for function in before]
    for name, counter in zip(names, counters, strict=True):
        # A function, so that Python passes the writer to it.
        setattr(LocalWriter, name, lambda *given, counter=counter: counter(*given))
    try:
        yield counters
    finally:
        for name, function in zip(names, before, strict=True):
            setattr(LocalWriter, name, function)


def make_videos(folder: Path) -> dict[str, Path]:
    """A film, and short files each with a content of its own."""
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
    """One run into a new store."""
    with counted() as counters:
        began = time.perf_counter()
        report = index_videos(
            [videos], store, "small", options=IndexOptions(device="cpu"), method=method
        )
        seconds = time.perf_counter() - began
    assert not report.problems, report.problems
    spent = sum(counter.seconds for counter in counters)
    shutil.rmtree(store)
    return {
        "run_seconds": round(seconds, 2),
        "commit_seconds": round(spent, 4),
        "commits": counters[0].calls,
        "share": round(spent / seconds, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the stores are made")
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
        "is_within": max(shares.values()) <= MOST,
        "runs": rows,
        "load_average_before_and_after": [round(before[0], 1), round(os.getloadavg()[0], 1)],
    }
    print(f"written to {save_result('syncing', result, options.output)}")


if __name__ == "__main__":
    main()
