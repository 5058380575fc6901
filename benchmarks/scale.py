"""Growth of queries, workers, shards and object storage with the store; for commits: ``store.py``.

    python benchmarks/scale.py all                           # each part in turn; an hour, 23 GB
    python benchmarks/scale.py query --clips 100000          # and 1000000, 10000000 (23 GB of disk)
    python benchmarks/scale.py shards --clips 1000000        # the same store in four shards
    python benchmarks/scale.py bucket --clips 100000         # an S3 server on this machine (moto)
    python benchmarks/scale.py workers                       # local processes and Ray
    python benchmarks/scale.py query --clips 10000000 --folder DIR --build     # only builds

The result of a part is stored in ``results/scale-cpu.json``, with its load averages.

Query: a store of synthetic clips of 512 numbers: 2,000 centres with noise of the same size, where
coordinate i of both has a variance ~ 1/i, similar to features of real frames and texts. Queries
have the same distribution and are not in the store. A query makes the shortlist of 100 clips and
reads their features; the time for encoding the text and ranking 100 clips does not grow with the
store (``benchmarks/search.py``). Recall is relative to all cosines. "Cold" means that vectors and
features are not in memory. Shards: each scans a quarter of the vectors or codes; the time is that
of the slowest of four and of the front.

Bucket: a store is written in commits of 256 clips with 6 KB of features each, then opened without a
local copy, and with one after another commit. Features of 100 clips are read from the storage.

Workers: videos of 240p are indexed into a new store with the model ``small`` in fp32. Locally, one
process encodes with all cores what workers decode; on Ray, every worker does both with one core.
Core seconds of decoding and encoding alone, and the time of a run over one clip, are measured too.
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
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import RESULTS, environment, percentiles
from eaglenet.core.files import write_json
from eaglenet.core.platform import num_cores
from eaglenet.indexing.run import COMMIT_CLIPS
from eaglenet.search.shortlist import (
    Shortlist,
    approximate_shortlists,
    exact_shortlists,
    merge_shortlists,
    nearest_in_shard,
    num_candidates,
    rank_candidates,
    scan_name,
    uses_exact_scan,
)
from eaglenet.store.base import Writer
from eaglenet.store.codes import NearestRows, merge_best, weights_of
from eaglenet.store.manifest import Layout, Manifest
from eaglenet.store.records import Changes, ClipBatch, IndexedFile
from eaglenet.store.snapshot import Snapshot
from eaglenet.store.store import LocalStore

Part = Shortlist | NearestRows
Times = tuple[float, float]
"""Wall and processor seconds."""
Result = TypeVar("Result")
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
    """Clips that are computed when they are needed; equal seeds give equal vectors."""

    def __init__(self, dim: int = 512, frame_numbers: int = 8) -> None:
        self.deviations = (np.arange(1, dim + 1, dtype=np.float32)) ** np.float32(-0.5)
        self.centres = np.random.default_rng(0).standard_normal((CLUSTERS, dim), np.float32)
        fields = [["frames", "<f2", [1, frame_numbers]], ["mask", "|b1", [1]]]
        layout = Layout.from_json([*fields, ["seconds", "<f4", [1]]])
        self.manifest = Manifest("none", "none", "none", dim, layout)

    def vectors(self, count: int, seed: int) -> NDArray[np.float32]:
        generator = np.random.default_rng(seed)
        vectors = generator.standard_normal((count, len(self.deviations)), np.float32)
        vectors += self.centres[generator.integers(0, CLUSTERS, count)]
        vectors *= self.deviations
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def changes(self, numbers: Sequence[int], clips: int = CLIPS_PER_FILE) -> Changes:
        """Make the changes that add complete files with these numbers."""
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
    """Build a store of synthetic clips; continue if it was interrupted."""
    synthetic = SyntheticClips()
    with LocalStore.write(folder, synthetic.manifest) as writer:
        synthetic.fill(writer, len(writer.files()), num_clips // CLIPS_PER_FILE)
        writer.finish()
    return LocalStore.open(folder)


def measure_query(num_clips: int, folder: Path) -> dict[str, Any]:
    build(folder, num_clips)
    before = memory()
    start = time.perf_counter()
    store = LocalStore.open(folder)
    snapshot = store.snapshot()
    seconds = {"open_seconds": time.perf_counter() - start}
    is_exact = uses_exact_scan(snapshot)
    shortlists = exact_shortlists if is_exact else approximate_shortlists
    queries = SyntheticClips().vectors(QUERIES, 2**60)

    def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
        rows = shortlists(snapshot, query[None], SHORTLIST)[0].rows
        snapshot.features_at(rows)
        return rows

    seconds["first_query_seconds"] = seconds_of(partial(search, queries[0]))
    times: list[Times] = []
    results = [time_call(partial(search, query), times) for query in queries]
    after = memory()
    cold_times = []
    for query in queries[:COLD]:
        drop_rows(snapshot)
        cold_times.append(seconds_of(partial(search, query)))
    return {
        "clips": len(snapshot),
        "searched_by": scan_name(snapshot),
        **{name: round(value, 3) for name, value in seconds.items()},
        **percentiles([wall for wall, _ in times[WARM:]]),
        "processor_p50_ms": percentiles([used for _, used in times[WARM:]])["p50_ms"],
        "cold_p50_ms": percentiles(cold_times)["p50_ms"],
        "recall_at_100": recall(snapshot, queries, results),
        "memory_mb": {name: after[name] - before[name] for name in after},
        "bytes": store.usage(),
    }


def drop_rows(snapshot: Snapshot) -> None:
    """Drop vectors and features from the page cache (Linux); codes and labels stay in memory."""
    for segment in snapshot.segments:
        segment._maps["vectors"].madvise(mmap.MADV_DONTNEED)
        for kind in ("vectors", "features"):
            with segment.info.path(segment.folder, kind).open("rb") as stream:
                os.fsync(stream.fileno())  # Only pages that are on the disk can be dropped.
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def recall(
    snapshot: Snapshot, queries: NDArray[np.float32], results: list[NDArray[np.int64]]
) -> float:
    """Return the fraction of the 100 nearest of all clips that are in the results."""
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
    """Measure a store on the S3 server of moto, in another process."""
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


def measure_shards(
    snapshot: Snapshot, queries: NDArray[np.float32], parts: int, k: int, warm: int
) -> dict[str, Any]:
    """Measure queries on one machine, and on the slowest of several shards and then the front.

    Processor times are those of a single shard and of the front. The first ``warm`` queries are not
    counted.
    """
    is_exact = uses_exact_scan(snapshot)
    count = num_candidates(snapshot, k)

    def whole(query: NDArray[np.float32]) -> Shortlist:
        shortlists = exact_shortlists if is_exact else approximate_shortlists
        return shortlists(snapshot, query[None], k)[0]

    def part(query: NDArray[np.float32], number: int) -> Part:
        if is_exact:
            return exact_shortlists(snapshot, query[None], k, None, (number, parts))[0]
        codes = weights_of(query)[None]
        return nearest_in_shard(snapshot, codes, count, (number, parts))[0]

    def front(query: NDArray[np.float32], answers: Sequence[Part]) -> Shortlist:
        if is_exact:
            return merge_shortlists([each for each in answers if isinstance(each, Shortlist)], k)
        near = [each for each in answers if isinstance(each, NearestRows)]
        rows = merge_best(near, count, snapshot.num_rows)
        return rank_candidates(snapshot, rows, query, k)

    one, slowest, merging, is_same = [], [], [], True
    for query in queries:
        reference = time_call(lambda query=query: whole(query), one)
        times: list[Times] = []
        numbers = range(1, parts + 1)
        answers = [time_call(lambda q=query, n=number: part(q, n), times) for number in numbers]
        slowest.append(max(times))
        result = time_call(lambda q=query, a=answers: front(q, a), merging)
        is_same &= result.cosines.tobytes() == reference.cosines.tobytes()
        is_same &= result.rows.tolist() == reference.rows.tolist()
    several = [shard[0] + after[0] for shard, after in zip(slowest, merging, strict=True)]
    processor = {"one": one, "part": slowest, "front": merging}
    return {
        "clips": len(snapshot),
        "searched_by": scan_name(snapshot),
        "parts": parts,
        "one": percentiles([wall for wall, _ in one[warm:]]),
        "parts_and_front": percentiles(several[warm:]),
        "processor_p50_ms": {
            name: percentiles([used for _, used in times[warm:]])["p50_ms"]
            for name, times in processor.items()
        },
        "are_bit_identical": is_same,
    }


def time_call(function: Callable[[], Result], times: list[Times]) -> Result:
    """Return the result of a function; append its wall and processor seconds to ``times``."""
    start, processor_start = time.perf_counter(), time.process_time()
    result = function()
    times.append((time.perf_counter() - start, time.process_time() - processor_start))
    return result


FILMS, SECONDS, ROUNDS = 3, 160, 2
CLIPS = FILMS * 20
EMPTY_SECONDS = 8
"""Length of a film of one clip, whose run consists only of its start and end."""
RUNS = [("local", 1), ("ray", 1), ("local", 2), ("ray", 2)]


def index(films: Path, store: Path, method: Any, executor: str, workers: int) -> float:
    """Return the seconds of a run into a new store, with a loaded model and a running cluster.

    Locally, this process encodes with all cores, however many workers decode for it; on Ray, every
    worker decodes and encodes with one core.
    """
    from eaglenet.indexing.index import IndexOptions, index_videos
    from eaglenet.indexing.options import ClusterOptions

    options = IndexOptions(
        device="cpu",
        workers=workers,
        executor=executor,
        precision="fp32",
        cluster=ClusterOptions(os.environ.get("RAY_ADDRESS")),
    )
    start = time.perf_counter()
    report = index_videos([films], store, "given", options=options, method=method)
    seconds = time.perf_counter() - start
    assert not report.problems, report.problems
    return seconds


@torch.inference_mode()
def measure_workers(folder: Path) -> dict[str, Any]:
    """Measure all runs alternately and keep the best of two, and core seconds of both stages."""
    import ray

    from eaglenet.core.types import Clips
    from eaglenet.models.folder import load
    from indexing import CLIP_SECONDS, OVERLAP, make_film, ours

    method = load("small").eval()
    films, one = folder / "films", folder / "one"
    films.mkdir()
    one.mkdir()
    make_film(one / "0.mp4", "240p", EMPTY_SECONDS)
    make_film(films / "0.mp4", "240p", SECONDS)
    content = (films / "0.mp4").read_bytes()
    for number in range(1, FILMS):
        # Equal files would be indexed once.
        tail = bytes([0, 0, 0, 8]) + b"free"
        (films / f"{number}.mp4").write_bytes(content + tail * number)
    side = ours(method)
    # Core seconds, because libraries below torch use both cores whatever the settings of torch.
    start = time.process_time()
    frames = side.decode(films / "0.mp4", SECONDS, 1)
    decoding = time.process_time() - start
    videos = frames.unflatten(0, (-1, method.frame_spec.num_frames))
    shape = videos.shape[:2]
    film = Clips(videos, torch.ones(shape, dtype=torch.bool), torch.zeros(shape))
    method.encoder.encode_frames(videos[:2])
    start = time.process_time()
    method.encode_video(film)
    encoding = time.process_time() - start
    clips = len(frames) / method.frame_spec.num_frames
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    run_times: dict[tuple[str, int], list[float]] = {run: [] for run in RUNS}
    starts: dict[str, float] = {}
    try:
        for executor in ("local", "ray"):
            starts[executor] = index(one, folder / f"start-{executor}", method, executor, 1)
        for turn in range(ROUNDS):
            for executor, workers in RUNS:
                store = folder / f"{executor}-{workers}-{turn}"
                seconds = index(films, store, method, executor, workers)
                run_times[executor, workers].append(seconds)
                print(executor, workers, round(seconds, 1), flush=True)
    finally:
        ray.shutdown()
    runs = [
        {
            "executor": executor,
            "workers": workers,
            "seconds": round(min(times), 2),
            "clips_per_second": round(CLIPS / min(times), 2),
            "clips_per_second_after_start": round(CLIPS / (min(times) - starts[executor]), 2),
        }
        for (executor, workers), times in run_times.items()
    ]
    by_name = {(run["executor"], run["workers"]): run for run in runs}
    key = "clips_per_second_after_start"
    return {
        "clips": CLIPS,
        "clip_seconds": CLIP_SECONDS,
        "overlap_seconds": OVERLAP,
        "decode_seconds_per_clip": round(decoding / clips, 4),
        "encode_seconds_per_clip": round(encoding / clips, 4),
        "start_seconds": {name: round(value, 2) for name, value in starts.items()},
        "runs": runs,
        "ray_overhead_at_2": round(by_name["local", 2][key] / by_name["ray", 2][key] - 1, 3),
        "ray_overhead_at_2_with_start": round(
            by_name["ray", 2]["seconds"] / by_name["local", 2]["seconds"] - 1, 3
        ),
    }


def seconds_of(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def memory() -> dict[str, int]:
    """Return the memory of this process in MB: its own, and pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}


def save_part(part: str, key: str | None, result: Any, load_before: tuple[float, ...]) -> None:
    """Store the result of a part in the file of results; other parts do not change."""
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
    parser.add_argument(
        "--folder", type=Path, help="folder of the synthetic store, which is used again"
    )
    parser.add_argument("--build", action="store_true", help="only build the store")
    options = parser.parse_args()
    if options.part == "all":
        # In separate processes, so that memory of one part does not count for the next.
        for part in PARTS:
            subprocess.run([sys.executable, __file__, *part], check=True)
        return
    torch.set_num_threads(num_cores())
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "store"
        if options.build:
            build(folder, options.clips)
            return
        if options.part == "query":
            result = measure_query(options.clips, folder)
            save_part("query", str(options.clips), result, load)
        elif options.part == "shards":
            snapshot = build(folder, options.clips).snapshot()
            queries = SyntheticClips().vectors(QUERIES, 2**60)
            result = measure_shards(snapshot, queries, SHARDS, SHORTLIST, WARM)
            save_part("shards", str(options.clips), result, load)
        elif options.part == "bucket":
            result = measure_bucket(options.clips, Path(temporary))
            save_part("bucket", str(options.clips), result, load)
        else:
            result = measure_workers(Path(temporary))
            save_part("workers", None, result, load)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
