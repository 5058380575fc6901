"""Time to open a local store and to commit to it, and its size on disk.

    python benchmarks/store.py                         # 100,000 and 1,000,000 clips
    python benchmarks/store.py --clips 100000 --folder DIR

The clips have random values in the sizes of ``small``: 6 frames of 384 features in half precision,
coarse vectors of 384 numbers, a hubness bank of 1,800 texts, thumbnails of 3,000 bytes, 20 clips
per file and, up to 100,000 clips, 20 transcript lines per file. Opening is measured in new
processes, after the import of numpy. A commit has 256 clips of 13 files with 260 lines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.store.hubness import HubnessBank
from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.records import (
    Changes,
    ClipBatch,
    IndexedFile,
    Line,
    LineQuery,
    Source,
    SourceLines,
    SourceWindows,
)
from eaglenet.store.store import LocalStore

DIM, FRAMES, CLIPS_PER_FILE, LINES_PER_FILE, THUMBNAIL_BYTES = 384, 6, 20, 20, 3000
NUM_TEXTS = 1800
FILL, COMMIT, REPEATS = 16_384, 256, 20
MAX_OPEN_MS = {100_000: 50, 1_000_000: 200}
MAX_COMMIT_MS = 100
OPEN = (
    "import sys, time, numpy; from eaglenet.store.store import LocalStore\n"
    "began = time.perf_counter(); s = LocalStore.open(sys.argv[1]).snapshot()\n"
    "print(time.perf_counter() - began, len(s))\n"
    "assert not {'torch', 'lancedb', 'pyarrow'} & set(sys.modules)"
)


def make_manifest() -> Manifest:
    fields = [["frames", "<f2", [FRAMES, DIM]], ["mask", "|b1", [FRAMES]]]
    layout = Layout.from_json([*fields, ["seconds", "<f4", [FRAMES]]])
    return Manifest("small", "benchmark", "clip4clip", DIM, layout)


def make_bank() -> HubnessBank:
    vectors = np.random.default_rng(2).standard_normal((NUM_TEXTS, DIM), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return HubnessBank("benchmark", vectors, 0.75, 50.0)


def content_of(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


class Maker:
    """Maker of random clips in whole files."""

    def __init__(self, words: int = 20_000) -> None:
        self.generator = np.random.default_rng(0)
        self.chance = random.Random(0)
        letters = "etaoinshrdlucmwfgypbvk"
        self.words = ["".join(self.chance.choices(letters, k=6)) for _ in range(words)]
        self.features = np.zeros(FILL, make_manifest().layout.dtype)
        self.features["frames"] = self.generator.standard_normal((FILL, FRAMES, DIM))
        self.image = self.generator.bytes(THUMBNAIL_BYTES + FILL)
        self.files = 0

    def changes(self, clips: int, *, lines: bool = True, encoder: str = "") -> Changes:
        """Make clips with transcript lines; with ``encoder``, also a window per line."""
        vectors = self.generator.standard_normal((clips, DIM), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        numbers = range(self.files, self.files + -(-clips // CLIPS_PER_FILE))
        self.files += len(numbers)
        keys = [(content_of(file), clip) for file in numbers for clip in range(CLIPS_PER_FILE)]
        starts = np.tile(8.0 * np.arange(CLIPS_PER_FILE), len(numbers))[:clips]
        images = [self.image[clip : clip + THUMBNAIL_BYTES] for clip in range(clips)]
        batch = ClipBatch(keys[:clips], starts, starts + 10, vectors, self.features[:clips], images)
        files = [
            IndexedFile(
                f"/archive/{file % 100:02d}/video {file}.mp4", 10**8 + file, 10**18 + file,
                content_of(file), "done", duration=170.0, width=1280, height=720,
                num_clips=min(CLIPS_PER_FILE, clips - CLIPS_PER_FILE * index),
            )
            for index, file in enumerate(numbers)
        ]  # fmt: skip
        transcripts = [self.transcript(file) for file in numbers] if lines else []
        windows = [self.windows(each.source, encoder) for each in transcripts] if encoder else []
        return Changes([batch], files, transcripts=transcripts, windows=windows)

    def windows(self, source: Source, encoder: str) -> SourceWindows:
        vectors = self.generator.standard_normal((LINES_PER_FILE, DIM), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        firsts = np.arange(LINES_PER_FILE, dtype=np.uint32)
        return SourceWindows(source.key, encoder, firsts, np.ones_like(firsts), vectors)

    def transcript(self, file: int) -> SourceLines:
        lines = []
        for number in range(LINES_PER_FILE):
            text = " ".join(self.chance.choices(self.words, k=8))
            lines.append(Line(8.0 * number, 8.0 * number + 5, "en", text, text))
        source = Source(content_of(file), "subtitle", "", 0, 0, "benchmark", "done")
        return SourceLines(source, lines)


def milliseconds(function: Any) -> float:
    began = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - began)


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median_ms": round(statistics.median(values), 2),
        "max_ms": round(max(values), 2),
        "repeats": len(values),
    }


def open_times(folder: Path) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", OPEN, str(folder)]
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(REPEATS // 2)
    ]
    return [1000 * float(run.stdout.split()[0]) for run in runs]


def measure(folder: Path, clips: int, maker: Maker) -> dict[str, Any]:
    """Fill the store up to ``clips``, then measure."""
    with LocalStore.write(folder, make_manifest(), make_bank()) as writer:
        began = time.perf_counter()
        num_stored = writer.num_visible()
        while num_stored < clips:
            count = min(FILL, clips - num_stored)
            writer.commit(maker.changes(count, lines=num_stored < 100_000))
            num_stored += count
        fill_seconds = time.perf_counter() - began
        commits, processor = [], []
        for _ in range(REPEATS):
            changes = maker.changes(COMMIT)
            before = time.process_time()
            commits.append(milliseconds(lambda changes=changes: writer.commit(changes)))
            processor.append(1000 * (time.process_time() - before))
        finish = milliseconds(writer.finish)
        before = time.process_time()
        make_bank().offsets(changes.clips[0].vectors)
        offsets = 1000 * (time.process_time() - before)
    opens = open_times(folder)
    store = LocalStore.open(folder)
    snapshot = store.snapshot()
    rows = np.sort(np.random.default_rng(1).integers(0, snapshot.num_rows, 100))
    word = LineQuery((maker.words[5],))
    usage = store.usage()
    per_clip = {name: round(size / len(snapshot), 1) for name, size in usage.items()}
    per_clip["total"] = round(sum(usage.values()) / len(snapshot), 1)
    return {
        "clips": len(snapshot),
        "files": maker.files,
        "lines": snapshot.num_lines,
        "open": summary(opens),
        "open_most_ms": MAX_OPEN_MS.get(clips),
        "commit_of_256": summary(commits),
        "commit_processor_time": summary(processor),
        "hubness_offsets_processor_time_ms": round(offsets, 1),
        "commit_most_ms": MAX_COMMIT_MS,
        "finish_ms": round(finish, 1),
        "fill_seconds": round(fill_seconds, 1),
        "first_scan_of_vectors_ms": round(
            milliseconds(lambda: [part @ part[0] for _, part in snapshot.vector_parts()]), 1
        ),
        "codes_into_memory_ms": round(milliseconds(snapshot.codes), 1),
        "features_of_100_ms": round(milliseconds(lambda: snapshot.features_at(rows)), 2),
        "clips_of_100_ms": round(milliseconds(lambda: snapshot.clips(rows)), 2),
        "first_line_query_ms": round(milliseconds(lambda: snapshot.find_lines(word, 300)), 2),
        "line_query_ms": round(milliseconds(lambda: snapshot.find_lines(word, 300)), 2),
        "all_files_ms": round(milliseconds(snapshot.files), 1),
        "stamp_ms": round(milliseconds(store.stamp), 3),
        "bytes_per_clip": per_clip,
        "load_averages": [round(value, 2) for value in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument(
        "--folder", type=Path, help="folder for the store, which is removed afterwards"
    )
    parser.add_argument("--no-result", action="store_true", help="only print")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    maker, results = Maker(), []
    try:
        for clips in sorted(options.clips):
            results.append(measure(folder / "store", clips, maker))
            print(json.dumps(results[-1], indent=2), flush=True)
    finally:
        shutil.rmtree(folder)
    if not options.no_result:
        from common import save_result

        path = save_result("store", {"benchmark": "store", "sizes": results})
        print(path)


if __name__ == "__main__":
    main()
