"""Time of a plain search in this tree and in an earlier one, measured alternately.

    mkdir BEFORE && git archive 010d2d5f src | tar -x -C BEFORE
    python benchmarks/before_after.py --before BEFORE/src --clips FOLDER

010d2d5f is the last commit before composed and temporal queries, dates in queries and confidence.
Each tree indexes the clips of FOLDER with ``small`` into its own store, because the format of
stores has changed since. "Cold" is a whole ``eaglenet search`` command, "query" one search of an
open engine. Processor time is that of all threads and hardly depends on other processes; wall time
is meaningful only on an idle machine. The store is small, so that costs which do not depend on the
number of clips dominate.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import children_seconds, save_result

TEXTS = ("a man talks", "a dog runs on a beach", "people dance at a party", "someone cooks a meal")
QUERIES = """
import json, sys, time
import eaglenet
engine = eaglenet.open(sys.argv[1])
texts = sys.argv[2:]
for text in texts:
    engine.search(text, k=10)
times = []
for number in range(100):
    wall, processor = time.perf_counter(), time.process_time()
    engine.search(texts[number % len(texts)], k=10)
    times.append((time.perf_counter() - wall, time.process_time() - processor))
print(json.dumps(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="src folder of an earlier tree")
    parser.add_argument("--clips", type=Path, required=True, help="folder of videos")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    trees = {"before": options.before, "after": Path(__file__).parents[1] / "src"}
    cold: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    queries: dict[str, list[list[float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in trees.items():
            compileall.compile_dir(tree, quiet=1)
            run(tree, "-m", "eaglenet", "index", str(options.clips), "--store", f"{folder}/{name}")
        for _ in range(options.repeats):
            for name, tree in trees.items():
                store = f"{folder}/{name}"
                wall, processor = time.perf_counter(), children_seconds()
                run(tree, "-m", "eaglenet", "search", TEXTS[0], "--store", store)
                cold[name].append((time.perf_counter() - wall, children_seconds() - processor))
                queries[name] += json.loads(run(tree, "-c", QUERIES, store, *TEXTS))
    rows = [describe(name, cold[name], queries[name]) for name in trees]
    print(*rows, sep="\n")
    print(save_result("before-after", {"repeats": options.repeats, "rows": rows}))


def run(tree: Path, *arguments: str) -> str:
    """Run Python with the package of a tree; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def describe(
    name: str, cold: list[tuple[float, float]], queries: list[list[float]]
) -> dict[str, Any]:
    """Return the medians of one tree."""
    cold_wall, cold_processor = zip(*cold, strict=True)
    wall, processor = zip(*queries, strict=True)
    return {
        "tree": name,
        "cold_median_s": round(statistics.median(cold_wall), 3),
        "cold_processor_median_s": round(statistics.median(cold_processor), 3),
        "query_p50_ms": round(1000 * statistics.median(wall), 2),
        "query_processor_p50_ms": round(1000 * statistics.median(processor), 2),
    }


if __name__ == "__main__":
    main()
