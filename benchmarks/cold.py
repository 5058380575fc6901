"""Seconds from a cold `eaglenet search "..."` to its answer, Python's start and end included.

    python benchmarks/cold.py                    # eight short films, made here, indexed with small
    python benchmarks/cold.py --store STORE      # one of your own

Beside it, in turns: the same with all of torch imported and taken apart at the end, as before
0.2; and `python -c "import torch"`, which any program with a model has to wait for.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import indexing
from common import save_result

QUERY = "a man talks"
WHOLE = """
import sys
import torch
from eaglenet.cli.main import main
main()
"""


def main() -> None:
    """Index where no store is given, time the three in turns, keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = given.store or make_store(Path(scratch))
        search = ["search", QUERY, "--store", str(store)]
        commands = {
            "search": [sys.executable, "-m", "eaglenet", *search],
            "search with all of torch": [sys.executable, "-c", WHOLE, *search],
            "import torch alone": [sys.executable, "-c", "import torch"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for name in [*commands, *list(commands) * given.repeats]:
            seconds[name].append(time_of(commands[name]))
    rows = []
    for name, times in seconds.items():
        warm = times[1:]  # the first reads files that the others find in memory
        row = {"what": name, "median_s": statistics.median(warm), "worst_s": max(warm)}
        rows.append({**row, "first_s": times[0]})
        print(f"{name}: {row['median_s']:.2f} s, worst of {len(warm)} {row['worst_s']:.2f} s")
    save_result("cold", {"repeats": given.repeats, "rows": rows})


def make_store(folder: Path) -> Path:
    """Eight short films in a store."""
    films = folder / "films"
    films.mkdir()
    for number in range(8):
        indexing.make_film(films / f"film{number}.mp4", "240p", 48)
    store = folder / "store"
    subprocess.run(
        [sys.executable, "-m", "eaglenet", "index", str(films), "--store", str(store)], check=True
    )
    return store


def time_of(command: list[str]) -> float:
    """Seconds of a command, which has to succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
