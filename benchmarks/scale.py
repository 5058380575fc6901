"""How everything grows: queries, commits, workers, shards. One file of results.

    python benchmarks/scale.py all                           # each part in turn; an hour, 23 GB
    python benchmarks/scale.py query --clips 100000          # and 1000000, 10000000 (23 GB of disk)
    python benchmarks/scale.py shards --clips 1000000        # the same store in four parts
    python benchmarks/scale.py commit                        # at 1, 2 and 5 million rows (4 GB)
    python benchmarks/scale.py workers                       # local processes and Ray
    python benchmarks/scale.py query --clips 10000000 --folder DIR --build     # builds and ends

Every part is put into ``results/scale-cpu.json`` beside the others, with its load averages.

Query: a store's own snapshot of synthetic clips, 512 numbers each: 2,000 centres, and noise of the
same size around them; coordinate i of both has variance ~ 1/i, about as features of real frames
and sentences have. Queries are drawn likewise and are not in the store. A query is the shortlist
of 100 clips and the reading of their records; what encoding the sentence and ranking 100 clips
take does not grow with the store (``benchmarks/search.py``). Recall is against all cosines.
Shards: a quarter of the vectors or codes scanned, the slowest of the four and what the front does.

Commit: 256 clips of one file into a store whose real tables and snapshot hold so many rows already
(vectors of 64 numbers: a commit reads no old vector).

Workers: films of 240p into a new store with the ``small`` model in fp32, in turns: locally one
process encodes with all cores what workers decode, on Ray every worker does both with one. Core
seconds of decoding and encoding alone and the start of an empty run are measured beside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import RESULTS, environment, percentiles
from eaglenet.core.files import write_json
from eaglenet.core.platform import num_cores
from eaglenet.core.types import FrameSpec, VideoFeatures
from eaglenet.indexing.commit import COMMIT_CLIPS, Commit
from eaglenet.search.shortlist import (
    approximate_shortlists,
    exact_shortlists,
    scan_name,
    uses_exact_scan,
)
from eaglenet.search.store import publishing
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.local import SNAPSHOT, StoreFolder
from eaglenet.search.store.manifest import Manifest, Splitting
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipKey, ClipRows, FileRow
from scale_shards import measure_shards

CLUSTERS, CLIPS_A_FILE, QUERIES, WARM, PARTS, SHORTLIST = 2000, 1000, 60, 5, 4, 100
SIZES = (100_000, 1_000_000, 10_000_000)
PARTS_OF_ALL = [
    *(["query", "--clips", str(size)] for size in SIZES),
    ["shards", "--clips", "1000000"],
    ["commit"],
    ["workers"],
]
STEP = 500_000
"""Clips that are published at a time."""
FEATURES = VideoFeatures(torch.zeros(1, 1, 8), torch.ones(1, 1, dtype=torch.bool))


class SyntheticTables:
    """What publishing reads of tables, made up as it is asked for."""

    def __init__(self, num_clips: int, layout: FeatureLayout, dim: int = 512) -> None:
        self.num_files = num_clips // CLIPS_A_FILE
        self.layout = layout
        self.spread = (np.arange(1, dim + 1, dtype=np.float32)) ** np.float32(-0.5)
        self.centres = np.random.default_rng(0).standard_normal((CLUSTERS, dim), np.float32)

    def file(self, number: int) -> FileRow:
        content = f"{number * 2654435761 % 2**64:016x}{number:016x}"
        return FileRow(f"/v/{number:08}.mp4", 1, 1, content, "done", num_clips=CLIPS_A_FILE)

    def files(self) -> list[FileRow]:
        return [self.file(number) for number in range(self.num_files)]

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        names = contents if contents is not None else [row.content for row in self.files()]
        return [(content, number) for content in names for number in range(CLIPS_A_FILE)]

    def vectors(self, count: int, seed: int) -> NDArray[np.float32]:
        generator = np.random.default_rng(seed)
        vectors = generator.standard_normal((count, len(self.spread)), np.float32)
        vectors += self.centres[generator.integers(0, CLUSTERS, count)]
        vectors *= self.spread
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def read_clips(self, keys: Sequence[ClipKey]) -> ClipRows:
        count = len(keys)
        return ClipRows(
            keys=list(keys),
            paths=["/v"] * count,
            starts=np.array([8.0 * number for _, number in keys]),
            ends=np.array([8.0 * number + 10.0 for _, number in keys]),
            coarse=self.vectors(count, int(keys[0][0][16:], 16) * CLIPS_A_FILE + keys[0][1]),
            records=np.zeros(count, self.layout.dtype),
            thumbnails=[b"x"] * count,
        )


def opened(folder: Path, layout: FeatureLayout, dim: int = 512) -> Snapshot:
    return Snapshot(folder, layout, dim, location="synthetic")


def build(folder: Path, num_clips: int, dim: int = 512) -> None:
    """A real snapshot of synthetic clips; goes on where it was left."""
    layout = FeatureLayout.of(FEATURES)
    folder.mkdir(parents=True, exist_ok=True)
    previous = opened(folder, layout, dim) if (folder / "current.json").exists() else None
    have = len(previous) if previous is not None else 0
    if have == num_clips:
        return
    for total in range(min(have + STEP, num_clips), num_clips + 1, STEP):
        tables: Any = SyntheticTables(total, layout, dim)
        begun = time.perf_counter()
        publishing.publish(folder, tables, layout, dim, previous)
        previous = opened(folder, layout, dim)
        print(f"{total:,} clips, {time.perf_counter() - begun:.0f} s", flush=True)


def measure_query(num_clips: int, folder: Path) -> dict[str, Any]:
    build(folder, num_clips)
    layout = FeatureLayout.of(FEATURES)
    before = memory()
    begun = time.perf_counter()
    snapshot = opened(folder, layout)
    seconds = {"open_seconds": time.perf_counter() - begun}
    is_exact = uses_exact_scan(snapshot)
    way = exact_shortlists if is_exact else approximate_shortlists
    queries = torch.from_numpy(SyntheticTables(0, layout).vectors(QUERIES, 2**60))

    def ask(query: torch.Tensor) -> NDArray[np.int64]:
        rows = way(snapshot, query[None], SHORTLIST)[0].rows
        snapshot.records(rows)
        return rows

    begun = time.perf_counter()
    ask(queries[0])
    seconds["first_query_seconds"] = time.perf_counter() - begun
    spent, used, found = [], [], []
    for query in queries:
        begun, before_use = time.perf_counter(), time.process_time()
        found.append(ask(query))
        spent.append(time.perf_counter() - begun)
        used.append(time.process_time() - before_use)
    after = memory()
    result = {
        "clips": len(snapshot),
        "searched_by": scan_name(snapshot),
        **{name: round(value, 2) for name, value in seconds.items()},
        **percentiles(spent[WARM:]),
        "processor_p50_ms": percentiles(used[WARM:])["p50_ms"],
        "recall_at_100": recall(snapshot, queries, found),
        "memory_mb": {name: after[name] - before[name] for name in after},
        "bytes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    return result


def recall(snapshot: Snapshot, queries: torch.Tensor, found: list[NDArray[np.int64]]) -> float:
    """Share of the 100 nearest of all clips that were found; one pass over the vectors."""
    best = torch.full((len(queries), SHORTLIST), -2.0)
    rows = torch.zeros(len(queries), SHORTLIST, dtype=torch.int64)
    mapped = snapshot.folder / f"vectors-{snapshot.generation}.f32"
    vectors = np.memmap(mapped, np.float32, "r", shape=(snapshot.num_slots, snapshot.dim))
    for first in range(0, len(vectors), 20_000):
        scores = queries @ torch.from_numpy(np.array(vectors[first : first + 20_000])).T
        values, places = scores.topk(SHORTLIST, dim=1)
        best, order = torch.cat([best, values], dim=1).topk(SHORTLIST, dim=1)
        rows = torch.cat([rows, places + first], dim=1).gather(1, order)
    pairs = zip(rows.tolist(), found, strict=True)
    return round(float(np.mean([len({*ours} & {*truth}) / SHORTLIST for truth, ours in pairs])), 4)


def measure_commit(folder: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Into real tables that hold the clips of the synthetic snapshot too."""
    dim, layout = 64, FeatureLayout.of(FEATURES)
    manifest = Manifest("none", "none", "none", dim, FrameSpec(), Splitting(), layout)
    store = StoreFolder(folder, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    store.write_manifest()
    tables, have, rows = store.tables(), 0, []
    for size in sizes:
        synthetic = SyntheticTables(size, layout, dim)
        for first in range(have // CLIPS_A_FILE, size // CLIPS_A_FILE, 100):
            files = [synthetic.file(number) for number in range(first, first + 100)]
            tables.add_clips(synthetic.read_clips(synthetic.clip_keys([f.content for f in files])))
            tables.put_files(files)
            print(f"{(first + 100) * CLIPS_A_FILE:,} rows", end="\r", flush=True)
        have = size
        tables.optimize()
        (folder / SNAPSHOT).mkdir(exist_ok=True)
        made: Any = synthetic
        previous = store.snapshot() if store.is_searched else None
        publishing.publish(folder / SNAPSHOT, made, layout, dim, previous)
        commit_once(store, tables, synthetic, size * 10 + 9, {})  # Reads what it finds anew.
        parts: dict[str, list[float]] = {"whole": [], "clips": [], "files": [], "publish": []}
        for number in range(5):
            commit_once(store, tables, synthetic, size * 10 + number, parts)
        medians = {f"{name}_seconds": round(float(np.median(v)), 3) for name, v in parts.items()}
        rows.append({"rows": size, "clips_a_commit": COMMIT_CLIPS, **medians})
        print(rows[-1], flush=True)
    return rows


def commit_once(
    store: StoreFolder, tables: Any, synthetic: SyntheticTables, number: int, parts: dict[str, Any]
) -> None:
    content = f"{number:032x}"
    rows = synthetic.read_clips([(content, clip) for clip in range(COMMIT_CLIPS)])
    row = FileRow(f"/more/{number}.mp4", 1, 1, content, "done", num_clips=COMMIT_CLIPS)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                parts.setdefault(name, []).append(time.perf_counter() - begun)

        return call

    class Timed:
        """The tables, with a clock."""

        add_clips = staticmethod(timed("clips", tables.add_clips))
        put_files = staticmethod(timed("files", tables.put_files))

    class TimedStore:
        """The store, with a clock."""

        @staticmethod
        def publish(_: Any) -> int:
            count: int = timed("publish", store.publish)(tables)
            return count

    waiting: Any = Commit(TimedStore, Timed)  # type: ignore[arg-type]
    waiting.add_clips(rows)
    waiting.add_row(row)
    timed("whole", waiting.write)()


def memory() -> dict[str, int]:
    """Of this process now, in MB: its own, and pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}


def keep(part: str, key: str | None, result: Any, load_before: tuple[float, ...]) -> None:
    """Put one part into the file of results, beside what other runs put there."""
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
    parser.add_argument("part", choices=["all", "query", "shards", "commit", "workers"])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--folder", type=Path, help="keep the synthetic store here, use it again")
    parser.add_argument("--build", action="store_true", help="make that store and measure nothing")
    arguments = parser.parse_args()
    if arguments.part == "all":
        # In processes of their own: what one leaves in memory is not counted for the next.
        for part in PARTS_OF_ALL:
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
            build(folder, arguments.clips)
            layout = FeatureLayout.of(FEATURES)
            queries = torch.from_numpy(SyntheticTables(0, layout).vectors(QUERIES, 2**60))
            result = measure_shards(opened(folder, layout), queries, PARTS, SHORTLIST, WARM)
            keep("shards", str(arguments.clips), result, load)
        elif arguments.part == "commit":
            result = {"sizes": measure_commit(folder, arguments.rows)}
            keep("commit", None, result, load)
        else:
            from scale_workers import measure_workers

            result = measure_workers(Path(temporary))
            keep("workers", None, result, load)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
