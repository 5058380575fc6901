"""Growth of queries, workers, shards and object storage; ``store.py`` measures commits.

    python benchmarks/scale.py all                           # each part in turn; an hour, 23 GB
    python benchmarks/scale.py query --clips 100000          # and 1000000, 10000000 (23 GB of disk)
    python benchmarks/scale.py shards --clips 1000000        # the same store in four shards
    python benchmarks/scale.py bucket --clips 100000         # an S3 server on this machine (moto)
    python benchmarks/scale.py workers                       # local processes and Ray
    python benchmarks/scale.py query --clips 10000000 --folder DIR --build     # builds and ends

Every part is put into ``results/scale-cpu.json`` beside the others, with its load averages.

Query: a store of synthetic clips, 512 numbers each: 2,000 centres, and noise of the same size
around them; coordinate i of both has variance ~ 1/i, about as features of real frames and texts
have. Queries are drawn likewise and are not in the store. A query is the shortlist of 100 clips and
the reading of their features; the time for encoding the text and ranking 100 clips does not grow
with the store (``benchmarks/search.py``). Recall is against all cosines. Cold: vectors and features
are not in memory. Shards: a quarter of the
vectors or codes scanned, the slowest of the four and the work of the front.

Bucket: a store is written in commits of 256 clips with 6 KB of features each, then opened without a
local copy, and with one after another commit; features of 100 clips are read from the storage.

Workers: videos of 240p into a new store with the ``small`` model in fp32, in turns: locally one
process encodes with all cores what workers decode, on Ray every worker does both with one. Core
seconds of decoding and encoding alone and the start of an empty run are measured beside.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import RESULTS, environment, percentiles
from eaglenet.core.files import write_json
from eaglenet.core.platform import num_cores
from eaglenet.indexing.run import COMMIT_CLIPS
from eaglenet.search.shortlist import (
    approximate_shortlists,
    exact_shortlists,
    scan_name,
    uses_exact_scan,
)
from eaglenet.store.base import Writer
from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.records import Changes, ClipBatch, IndexedFile
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.store import LocalStore
from scale_shards import measure_shards

CLUSTERS, CLIPS_PER_FILE, QUERIES, WARM, SHARDS, SHORTLIST = 2000, 1000, 60, 5, 4, 100
COLD = 10
SIZES = (100_000, 1_000_000, 10_000_000)
PARTS = [
    *(["query", "--clips", str(size)] for size in SIZES),
    ["shards", "--clips", "1000000"],
    ["bucket"],
    ["workers"],
]
FILES_PER_COMMIT = 16


class SyntheticClips:
    """Clips that are computed when they are needed."""

    def __init__(self, dim: int = 512, frame_numbers: int = 8) -> None:
        self.spread = (np.arange(1, dim + 1, dtype=np.float32)) ** np.float32(-0.5)
        self.centres = np.random.default_rng(0).standard_normal((CLUSTERS, dim), np.float32)
        fields = [["frames", "<f2", [1, frame_numbers]], ["mask", "|b1", [1]]]
        layout = Layout.from_json([*fields, ["seconds", "<f4", [1]]])
        self.manifest = Manifest("none", "none", "none", dim, layout)

    def vectors(self, count: int, seed: int) -> NDArray[np.float32]:
        generator = np.random.default_rng(seed)
        vectors = generator.standard_normal((count, len(self.spread)), np.float32)
        vectors += self.centres[generator.integers(0, CLUSTERS, count)]
        vectors *= self.spread
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def changes(self, numbers: Sequence[int], clips: int = CLIPS_PER_FILE) -> Changes:
        """Files with these numbers, complete."""
        batches, files = [], []
        for number in numbers:
            content = f"{number * 2654435761 % 2**64:016x}{number:016x}"
            starts = 8.0 * np.arange(clips)
            batches.append(
                ClipBatch(
                    keys=[(content, clip) for clip in range(clips)],
                    starts=starts,
                    ends=starts + 10,
                    vectors=self.vectors(clips, number),
                    features=np.zeros(clips, self.manifest.layout.dtype),
                    thumbnails=[b"x"] * clips,
                )
            )
            path = f"/v/{number:08}.mp4"
            files.append(IndexedFile(path, 1, 1, content, "done", num_clips=clips))
        return Changes(batches, files)

    def fill(self, writer: Writer, first: int, end: int) -> None:
        for start in range(first, end, FILES_PER_COMMIT):
            writer.commit(self.changes(range(start, min(start + FILES_PER_COMMIT, end))))
            print(f"{min(start + FILES_PER_COMMIT, end):,} files", end="\r", flush=True)
        print()


def build(folder: Path, num_clips: int) -> LocalStore:
    """A store of synthetic clips; continues where it was left."""
    synthetic = SyntheticClips()
    with LocalStore.write(folder, synthetic.manifest) as writer:
        synthetic.fill(writer, len(writer.files()), num_clips // CLIPS_PER_FILE)
        writer.finish()
    return LocalStore.open(folder)


def measure_query(num_clips: int, folder: Path) -> dict[str, Any]:
    build(folder, num_clips)
    before = memory()
    started = time.perf_counter()
    store = LocalStore.open(folder)
    snapshot = store.snapshot()
    seconds = {"open_seconds": time.perf_counter() - started}
    is_exact = uses_exact_scan(snapshot)
    shortlists = exact_shortlists if is_exact else approximate_shortlists
    queries = SyntheticClips().vectors(QUERIES, 2**60)

    def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
        rows = shortlists(snapshot, query[None], SHORTLIST)[0].rows
        snapshot.features_at(rows)
        return rows

    started = time.perf_counter()
    search(queries[0])
    seconds["first_query_seconds"] = time.perf_counter() - started
    times, processor_times, results = [], [], []
    for query in queries:
        started, processor_start = time.perf_counter(), time.process_time()
        results.append(search(query))
        times.append(time.perf_counter() - started)
        processor_times.append(time.process_time() - processor_start)
    after = memory()
    cold_times = []
    for query in queries[:COLD]:
        drop_rows(snapshot)
        cold_times.append(seconds_of(partial(search, query)))
    return {
        "clips": len(snapshot),
        "searched_by": scan_name(snapshot),
        **{name: round(value, 3) for name, value in seconds.items()},
        **percentiles(times[WARM:]),
        "processor_p50_ms": percentiles(processor_times[WARM:])["p50_ms"],
        "cold_p50_ms": percentiles(cold_times)["p50_ms"],
        "recall_at_100": recall(snapshot, queries, results),
        "memory_mb": {name: after[name] - before[name] for name in after},
        "bytes": store.usage(),
    }


def drop_rows(snapshot: Snapshot) -> None:
    """Have the system forget vectors and features (Linux); codes and labels stay in memory."""
    for segment in snapshot.segments:
        segment._maps["vectors"].madvise(mmap.MADV_DONTNEED)
        for kind in ("vectors", "features"):
            with segment.info.path(segment.folder, kind).open("rb") as stream:
                os.fsync(stream.fileno())  # Only what is on the disk can be forgotten.
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def recall(
    snapshot: Snapshot, queries: NDArray[np.float32], results: list[NDArray[np.int64]]
) -> float:
    """Share of the 100 nearest of all clips in the results; one pass over the vectors."""
    texts = torch.from_numpy(queries)
    best = torch.full((len(queries), SHORTLIST), -2.0)
    rows = torch.zeros(len(queries), SHORTLIST, dtype=torch.int64)
    for first, vectors in snapshot.vector_parts():
        values, indices = (texts @ torch.from_numpy(vectors).T).topk(SHORTLIST, dim=1)
        best, order = torch.cat([best, values], dim=1).topk(SHORTLIST, dim=1)
        rows = torch.cat([rows, indices + first], dim=1).gather(1, order)
    pairs = zip(rows.tolist(), results, strict=True)
    return round(float(np.mean([len({*ours} & {*truth}) / SHORTLIST for truth, ours in pairs])), 4)


def measure_bucket(num_clips: int, folder: Path) -> dict[str, Any]:
    """A store on moto's S3 server, in another process."""
    from eaglenet.cluster.bucket import BucketStore

    command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", "5917"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, **quiet)
    try:
        for _ in range(100):
            try:
                request = urllib.request.Request("http://127.0.0.1:5917/bucket", method="PUT")
                urllib.request.urlopen(request).close()
                break
            except OSError:
                time.sleep(0.2)
        os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        os.environ |= {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:5917"}
        os.environ["EAGLENET_CACHE"] = str(folder / "writer")
        location, synthetic = "s3://bucket/store", SyntheticClips(frame_numbers=3072)
        count, times = num_clips // COMMIT_CLIPS, []
        with BucketStore.write(location, synthetic.manifest) as writer:
            for number in range(count):
                changes = synthetic.changes([number], COMMIT_CLIPS)
                times.append(seconds_of(lambda changes=changes: writer.commit(changes)))
            finish = seconds_of(writer.finish)
        os.environ["EAGLENET_CACHE"] = str(folder / "reader")
        reader = BucketStore.open(location)
        cold = seconds_of(reader.snapshot)
        snapshot = reader.snapshot()
        rows = np.random.default_rng(0).choice(len(snapshot), SHORTLIST, replace=False)
        reads = [seconds_of(lambda: snapshot.features_at(rows)) for _ in range(10)]
        os.environ["EAGLENET_CACHE"] = str(folder / "writer")
        with BucketStore.write(location) as writer:
            writer.commit(synthetic.changes([count], COMMIT_CLIPS))
        return {
            "clips": len(snapshot),
            "clips_per_commit": COMMIT_CLIPS,
            "commit": percentiles(times),
            "last_commits": percentiles(times[-20:]),
            "finish_seconds": round(finish, 2),
            "cold_open_seconds": round(cold, 2),
            "open_after_a_commit_seconds": round(seconds_of(reader.snapshot), 3),
            "open_unchanged_seconds": round(seconds_of(reader.snapshot), 3),
            "features_of_100_clips": percentiles(reads),
            "objects": len(list(reader.folder.list())),
            "bytes": reader.usage(),
        }
    finally:
        server.terminate()
        server.wait()


def seconds_of(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def memory() -> dict[str, int]:
    """Memory of this process in MB: its own, and pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}


def keep(part: str, key: str | None, result: Any, load_before: tuple[float, ...]) -> None:
    """Put one part into the file of results, beside those of other runs."""
    path = RESULTS / "scale-cpu.json"
    values = json.loads(path.read_text()) if path.exists() else {}
    conditions = {
        "environment": environment(),
        "load_average": {
            "before": [round(value, 2) for value in load_before],
            "after": [round(value, 2) for value in os.getloadavg()],
        },
    }
    entry = {**result, **conditions}
    if key is None:
        values[part] = entry
    else:
        values.setdefault(part, {})[key] = entry
    write_json(path, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["all", "query", "shards", "bucket", "workers"])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="keep the synthetic store here, use it again")
    parser.add_argument("--build", action="store_true", help="make that store and measure nothing")
    arguments = parser.parse_args()
    if arguments.part == "all":
        # In processes of their own: what one leaves in memory is not counted for the next.
        for part in PARTS:
            subprocess.run([sys.executable, __file__, *part], check=True)
        return
    torch.set_num_threads(num_cores())
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "store"
        if arguments.build:
            build(folder, arguments.clips)
            return
        if arguments.part == "query":
            result = measure_query(arguments.clips, folder)
            keep("query", str(arguments.clips), result, load)
        elif arguments.part == "shards":
            snapshot = build(folder, arguments.clips).snapshot()
            queries = SyntheticClips().vectors(QUERIES, 2**60)
            result = measure_shards(snapshot, queries, SHARDS, SHORTLIST, WARM)
            keep("shards", str(arguments.clips), result, load)
        elif arguments.part == "bucket":
            result = measure_bucket(arguments.clips, Path(temporary))
            keep("bucket", str(arguments.clips), result, load)
        else:
            from scale_workers import measure_workers

            result = measure_workers(Path(temporary))
            keep("workers", None, result, load)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
