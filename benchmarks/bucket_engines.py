"""A store on object storage in two engines: the log of eaglenet, and Lance tables.

    python benchmarks/bucket_engines.py                      # 10,240 clips, 30 ms per request
    python benchmarks/bucket_engines.py --clips 7680 --latency 0 --no-result

Both write the same clips to the S3 server of the tests (moto, in this process), in commits of 256
clips of 13 files with 260 transcript lines. Each request waits ``--latency`` milliseconds before it
is forwarded, and is counted with its bytes. Moto reads the whole object for each range of it, so
ranges are answered from a copy in memory. Every machine is a separate process: a writer, a reader
without a local copy, and one with a copy on disk (Lance keeps none).

A query returns the 100 nearest of all clips with their features (4.6 KB each) and times. Lance
compares all vectors, and then, after its tables were compacted, uses an index (IVF_RQ, refined by
exact vectors). ``nprobes`` is the smallest of several values for which the mean recall@100 is 0.99.
Features are random; vectors are clustered as in ``scale.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.cluster.bucket import BucketStore
from eaglenet.search.shortlist import exact_shortlists
from eaglenet.store.records import Changes
from object_storage import Gate, start_storage
from scale import SyntheticClips
from store import COMMIT, DIM, Maker, make_manifest

SHORTLIST, QUERIES = 100, 20
LAST_COMMITS = 20
PROBES, GOAL = (4, 8, 16, 32, 64, 128), 0.99
LOG, TABLES = "s3://bucket/log", "s3://bucket/tables"
SEED_OF_QUERIES = 2**40

Step = tuple[str, Callable[[], dict[str, Any] | None]]


class RangeGate(Gate):
    """Gate that answers ranges of an object from a copy of the object."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.objects: dict[str, tuple[dict[str, str], bytes]] = {}

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        name = path.partition("?")[0]
        span = next((v for k, v in headers.items() if k.lower() == "range"), None)
        if method == "GET" and span is not None and name == path:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", span)
            if match is not None:
                return self.part(path, headers, int(match[1]), int(match[2]))
        if method not in ("GET", "HEAD"):
            self.objects.pop(name, None)
        return super().forward(method, path, headers, body)

    def part(
        self, path: str, headers: dict[str, str], first: int, last: int
    ) -> tuple[int, dict[str, str], bytes]:
        if path not in self.objects:
            plain = {k: v for k, v in headers.items() if k.lower() != "range"}
            status, about, content = super().forward("GET", path, plain, b"")
            if status != 200:
                return status, about, content
            self.objects[path] = about, content
        about, content = self.objects[path]
        last = min(last, len(content) - 1)
        span = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return 206, {**about, **span}, content[first : last + 1]


def batches(num_clips: int, first: int = 0) -> Iterator[Changes]:
    """Yield the changes of each commit; they are the same for both engines."""
    maker, synthetic = Maker(), SyntheticClips(dim=DIM)
    maker.files = first * COMMIT
    for number in range(first, first + num_clips // COMMIT):
        changes = maker.changes(COMMIT)
        vectors = synthetic.vectors(COMMIT, number)
        yield replace(changes, clips=[replace(changes.clips[0], vectors=vectors)])


def queries() -> np.ndarray:
    return SyntheticClips(dim=DIM).vectors(QUERIES, SEED_OF_QUERIES)


def time_each(function: Callable[[Any], Any], values: Iterator[Any] | Sequence[Any]) -> list[float]:
    """Return the seconds of each call."""
    seconds = []
    for value in values:
        start = time.perf_counter()
        function(value)
        seconds.append(time.perf_counter() - start)
    return seconds


# eaglenet


def write_log(num_clips: int) -> Iterator[Step]:
    with BucketStore.write(LOG, make_manifest()) as writer:
        yield from commit_steps(writer.commit, num_clips)
        yield "finish", lambda: writer.finish() and None


def commit_steps(commit: Callable[[Changes], Any], num_clips: int) -> Iterator[Step]:
    changes = batches(num_clips)
    total = num_clips // COMMIT

    def several(count: int) -> dict[str, Any]:
        return {"each": time_each(commit, [next(changes) for _ in range(count)])}

    yield "first commits", lambda: several(total - LAST_COMMITS)
    yield "last commits", lambda: several(LAST_COMMITS)


def read_log(num_clips: int) -> Iterator[Step]:
    state: dict[str, Any] = {}

    def open_store() -> None:
        state["store"] = BucketStore.open(LOG)
        state["snapshot"] = state["store"].snapshot()

    def query(vector: np.ndarray) -> np.ndarray:
        state["store"].stamp()
        (shortlist,) = exact_shortlists(state["snapshot"], vector[None], SHORTLIST, None)
        state["snapshot"].features_at(shortlist.rows)
        return shortlist.rows

    yield "open", open_store
    yield "first query", lambda: query(queries()[0]) is None or None
    yield "queries", lambda: {"each": time_each(query, queries()[1:])}


def follow_log(num_clips: int) -> Iterator[Step]:
    """Read with a store that was open while another process committed."""
    store = BucketStore.open(LOG)
    store.snapshot()
    (changes,) = batches(COMMIT, first=num_clips)
    environment = os.environ["EAGLENET_CACHE"]
    os.environ["EAGLENET_CACHE"] = f"{environment}-writer"
    with BucketStore.write(LOG) as writer:
        writer.commit(changes)
    os.environ["EAGLENET_CACHE"] = environment
    yield "open after a commit", lambda: store.snapshot() is None or None


# Lance


def connect() -> Any:
    import lancedb

    options = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "allow_http": "true",
        "aws_region": os.environ["AWS_REGION"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    return lancedb.connect(TABLES, storage_options=options)


def arrow_tables(changes: Changes) -> dict[str, Any]:
    """Return the rows of one commit, by table."""
    import pyarrow as pa

    (batch,) = changes.clips
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(batch.vectors.reshape(-1)), DIM)
    clips = {
        "content": pa.array([content for content, _ in batch.keys]),
        "number": pa.array([number for _, number in batch.keys], pa.int32()),
        "start": pa.array(batch.starts),
        "end": pa.array(batch.ends),
        "vector": vectors,
        "features": pa.array([row.tobytes() for row in batch.features], pa.binary()),
        "thumbnail": pa.array(batch.thumbnails, pa.binary()),
    }
    files = [{**vars(file), "tags": json.dumps(file.tags), "recorded": 0.0, "latitude": 0.0}
             | {"longitude": 0.0, "camera": ""} for file in changes.files]  # fmt: skip
    lines = [
        dict(zip(("start", "end", "language", "text", "terms"), astuple(line), strict=True))
        | {"content": each.source.content, "kind": each.source.kind}
        for each in changes.transcripts
        for line in each.lines
    ]
    return {
        "clips": pa.table(clips),
        "files": pa.Table.from_pylist(files),
        "lines": pa.Table.from_pylist(lines),
    }


def write_tables(num_clips: int) -> Iterator[Step]:
    database = connect()
    tables: dict[str, Any] = {}
    clip_seconds: list[float] = []

    def commit(changes: Changes) -> None:
        for name, rows in arrow_tables(changes).items():
            if name not in tables:
                tables[name] = database.create_table(name, schema=rows.schema)
            start = time.perf_counter()
            tables[name].add(rows)
            if name == "clips":
                clip_seconds.append(time.perf_counter() - start)

    yield from commit_steps(commit, num_clips)
    clips = clip_seconds[-LAST_COMMITS:]
    yield "last commits, table of clips alone", lambda: {"each": clips, "is_part": True}


def optimize_tables(num_clips: int) -> Iterator[Step]:
    database = connect()
    table = database.open_table("clips")
    exact = [set(lance_rows(table, vector)) for vector in queries()]
    partitions = max(1, round(num_clips**0.5))
    yield (
        "compaction of the three tables",
        lambda: (
            [database.open_table(name).optimize() for name in ("clips", "files", "lines")] and None
        ),
    )
    table.checkout_latest()
    yield (
        "index",
        lambda: table.create_index(metric="dot", index_type="IVF_RQ", num_partitions=partitions),
    )

    def choose() -> dict[str, Any]:
        for probes in PROBES:
            rows = [set(lance_rows(table, vector, probes)) for vector in queries()]
            num_shared = [len(ours & truth) for ours, truth in zip(rows, exact, strict=True)]
            recall = float(np.mean(num_shared)) / SHORTLIST
            if recall >= GOAL:
                break
        return {"probes": probes, "recall": round(recall, 4)}

    yield "choice of nprobes", choose


def lance_rows(table: Any, vector: np.ndarray, probes: int = 0) -> list[tuple[str, int]]:
    query = table.search(vector).distance_type("dot").limit(SHORTLIST)
    query = query.nprobes(probes).refine_factor(10) if probes else query.bypass_vector_index()
    rows = query.select(["content", "number", "start", "end", "features", "_distance"]).to_arrow()
    return list(zip(rows["content"].to_pylist(), rows["number"].to_pylist(), strict=True))


def read_tables(num_clips: int, probes: int = 0) -> Iterator[Step]:
    state: dict[str, Any] = {}

    def open_table() -> None:
        state["table"] = connect().open_table("clips")
        state["table"].count_rows()

    yield "open", open_table
    yield "first query", lambda: lance_rows(state["table"], queries()[0], probes) is None or None
    yield (
        "queries",
        lambda: {
            "each": time_each(
                lambda vector: lance_rows(state["table"], vector, probes), queries()[1:]
            )
        },
    )


def follow_tables(num_clips: int) -> Iterator[Step]:
    table = connect().open_table("clips")
    table.count_rows()
    (changes,) = batches(COMMIT, first=num_clips)
    connect().open_table("clips").add(arrow_tables(changes)["clips"])
    yield "open after a commit", lambda: table.checkout_latest()


PARTS: dict[str, Callable[..., Iterator[Step]]] = {
    "write_log": write_log,
    "read_log": read_log,
    "follow_log": follow_log,
    "write_tables": write_tables,
    "optimize_tables": optimize_tables,
    "read_tables": read_tables,
    "follow_tables": follow_tables,
}


def run_part(name: str, arguments: Sequence[int]) -> None:
    """Run the steps of a part as one machine; wait between them while the counts are read."""
    if "tables" in name:
        import lancedb  # noqa: F401 - takes seconds that belong to no step
    sys.stdin.readline()
    for step, work in PARTS[name](*arguments):
        print(json.dumps({"starts": step}), flush=True)
        sys.stdin.readline()
        start, processor = time.perf_counter(), time.process_time()
        extra = work() or {}
        values = {"seconds": time.perf_counter() - start} | extra
        values["processor_seconds"] = time.process_time() - processor
        print(json.dumps({"step": step, **values}), flush=True)
        sys.stdin.readline()


@contextmanager
def counting(gate: Gate, latency: float) -> Iterator[Callable[[], dict[str, int]]]:
    methods: dict[str, int] = {}

    def wait(method: str, path: str) -> None:
        methods[method] = methods.get(method, 0) + 1
        time.sleep(latency)

    gate.choose = wait
    yield lambda: {**methods, "bytes_up": gate.bytes_in, "bytes_down": gate.bytes_out}


def run_machine(
    counts: Callable[[], dict[str, int]], name: str, arguments: Sequence[int], cache: Path
) -> dict[str, Any]:
    """Run a part in a separate process; return its steps with the requests they made."""
    command = [sys.executable, "-P", __file__, "--part", name, "--arguments", *map(str, arguments)]
    environment = {**os.environ, "EAGLENET_CACHE": str(cache)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    rows: dict[str, Any] = {}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        print(file=process.stdin, flush=True)
        for line in process.stdout:
            row = json.loads(line)
            if "starts" in row:
                before = counts()
            else:
                rows[row.pop("step")] = summary(row, before, counts())
            print(file=process.stdin, flush=True)
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    return rows


def summary(row: dict[str, Any], before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    each = row.pop("each", None)
    count = len(each) if each is not None else 1
    result: dict[str, Any] = {}
    if each is not None:
        result = {"repeats": count, "median_s": statistics.median(each), "max_s": max(each)}
    else:
        result = {"seconds": row["seconds"]}
    extra = {name: row[name] for name in ("probes", "recall") if name in row}
    if row.get("is_part"):
        return round_values(result)
    differences = {name: after[name] - before.get(name, 0) for name in after}
    sizes = {name: differences.pop(name) / count / 1e6 for name in ("bytes_up", "bytes_down")}
    requests = {name: value for name, value in differences.items() if value}
    total = sum(requests.values())
    result |= {
        "processor_s": row["processor_seconds"] / count,
        "requests": round(total / count, 1),
        "by_method": {name: round(value / count, 1) for name, value in sorted(requests.items())},
        "mb_up": sizes["bytes_up"],
        "mb_down": sizes["bytes_down"],
    }
    return round_values(result) | extra


def round_values(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in values.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=10_240)
    parser.add_argument("--latency", type=float, default=30, help="milliseconds per request")
    parser.add_argument("--no-result", action="store_true", help="only print")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.arguments)
        return
    clips = options.clips // COMMIT * COMMIT
    server, gate = start_storage(RangeGate)
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ |= {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": gate.url}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, counting(gate, options.latency / 1000) as counts:

        def machine(title: str, part: str, *arguments: int, cache: str = "") -> dict[str, Any]:
            folder = Path(scratch) / (cache or title)
            results[title] = run_machine(counts, part, (clips, *arguments), folder)
            print(title, json.dumps(results[title], indent=1), flush=True)
            return results[title]

        machine("log: writer", "write_log")
        machine("log: reader without a copy", "read_log", cache="reader")
        machine("log: reader where a copy exists", "read_log", cache="reader")
        machine("log: reader that follows", "follow_log", cache="reader")
        machine("Lance: writer", "write_tables")
        machine("Lance: reader before compaction", "read_tables")
        probes = machine("Lance: maintenance", "optimize_tables")["choice of nprobes"]["probes"]
        machine("Lance: reader, all vectors", "read_tables")
        machine("Lance: reader, index", "read_tables", probes)
        machine("Lance: reader that follows", "follow_tables")
    gate.close()
    server.stop()
    if not options.no_result:
        payload = {
            "clips": clips,
            "clips_per_commit": COMMIT,
            "latency_ms": options.latency,
            "shortlist": SHORTLIST,
            "load_averages": [round(value, 2) for value in os.getloadavg()],
            "machines": results,
        }
        print(save_result("bucket-engines", payload))


if __name__ == "__main__":
    main()
