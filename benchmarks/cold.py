"""Seconds that whole commands take, including the start and the end of Python.

    python benchmarks/cold.py         # 100,000 clips, 100,000 transcript lines with windows
    python benchmarks/cold.py --clips 0          # only the twelve clips of the demo
    python benchmarks/cold.py --store STORE      # a store of your own

The store has the demo's clips, indexed with ``small``, and random clips of the same layout
(``store.py``). Measured alternately: ``eaglenet search``, including transcripts; the same for
visual content only; the same with an image, which another process decodes; ``eaglenet serve`` until
its first search is answered; and ``python -c "import torch"``, for which any program with a torch
model must wait. The modules are compiled to bytecode first, as pip does when it installs them. The
first round is dropped; in the others, the files are in the page cache.
"""

from __future__ import annotations

import argparse
import compileall
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import eaglenet.cli
from common import save_result
from eaglenet.models.light_model import MeaningEncoder
from eaglenet.store.store import LocalStore
from store import FILL, Maker

QUERY = "a man talks"
CLIPS = Path(eaglenet.cli.__file__).parent / "demo_clips"
SERVICE_TIMEOUT = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    compileall.compile_dir(Path(eaglenet.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as scratch:
        store = options.store or make_store(Path(scratch) / "store", options.clips)
        num_clips = len(LocalStore.open(store).snapshot())
        search = [sys.executable, "-P", "-m", "eaglenet", "search", QUERY, "--store", str(store)]
        measures: dict[str, Callable[[], float]] = {
            "search": lambda: seconds_of(search),
            "search what is seen": lambda: seconds_of([*search, "--in", "visual"]),
            "service until the first search": lambda: seconds_until_service(store),
            "import torch alone": lambda: seconds_of([sys.executable, "-P", "-c", "import torch"]),
        }
        if not options.clips:  # The features of random clips have no meaningful cosines.
            image = [*search[:4], "--image", str(CLIPS / "tent.jpg"), "--store", str(store)]
            measures["search with an image"] = lambda: seconds_of(image)
        seconds: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(options.repeats + 1):
            for name, measure in measures.items():
                seconds[name].append(measure())
    rows = []
    for name, (first, *times) in seconds.items():
        row = {"what": name, "median_s": statistics.median(times), "worst_s": max(times)}
        rows.append({**row, "first_s": first})
        print(f"{name}: {row['median_s']:.2f} s, worst of {len(times)} {row['worst_s']:.2f} s")
    save_result("cold", {"repeats": options.repeats, "clips": num_clips, "rows": rows})


def make_store(store: Path, num_clips: int) -> Path:
    """Index the demo's clips, and add random clips up to ``num_clips``."""
    index = [sys.executable, "-P", "-m", "eaglenet", "index", str(CLIPS), "--store", str(store)]
    subprocess.run(index, check=True)
    manifest = LocalStore.open(store).snapshot().manifest
    maker, encoder = Maker(), MeaningEncoder.open().identity
    with LocalStore.write(store, manifest) as writer:
        while (missing := num_clips - writer.num_visible()) > 0:
            writer.commit(maker.changes(min(FILL, missing), encoder=encoder))
        writer.finish()
    return store


def seconds_of(command: list[str]) -> float:
    """Return the time of a command, which must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def seconds_until_service(store: Path) -> float:
    """Return the time from starting a service to the response to its first search."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = ["serve", "--store", str(store), "--port", str(port)]
    command = [sys.executable, "-P", "-m", "eaglenet", *serve]
    url = f"http://127.0.0.1:{port}/api/search?q=a+man+talks"
    began = time.perf_counter()
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.perf_counter() - began < SERVICE_TIMEOUT:
            try:
                with urllib.request.urlopen(url) as response:
                    response.read()
                return time.perf_counter() - began
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.01)
        raise SystemExit(f"the service did not answer within {SERVICE_TIMEOUT} s")
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
