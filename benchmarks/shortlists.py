"""Shortlists of 100 clips: our codes compared with faiss, usearch and LanceDB, at equal recall.

    python benchmarks/shortlists.py --clips 100000
    python benchmarks/shortlists.py --clips 1000000 --threads 2
    python benchmarks/shortlists.py --clips 10000000 --threads 2 --sides ours ours-hamming \
        faiss-binary --folder DIR                                        # 21 GB of disk

Vectors are those of ``scale.py`` (512 numbers, 2,000 clusters, variance of coordinate i ~ 1/i);
``--gap 1`` moves clips and queries apart like images and texts of CLIP. Queries are not among the
clips. All sides use the same vectors and cores (``--threads``; all cores while an index is built),
and answer the queries in turn in one process, so that other load affects all of them. Needs
`threadpoolctl`.

A side with a width (candidates, clusters, expansion) tries increasing widths on half of the queries
and keeps the first that reaches ``--recall`` of the exact 100. Recall and times are those of the
other half. All sides except LanceDB and the flat index of faiss rank their candidates by exact
cosines of the same mapped vectors.

Times are p50 and p99 per query, the processor time of all threads (which hardly depends on other
load), and the time of a query after the vectors were dropped from the page cache (Linux). Flat and
graph indexes are in memory, so that their times are never cold; ``mib`` is their size.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from common import save_result
from eaglenet.store import codes as store_codes
from eaglenet.store.codes import Codes, codes_of, scan_blocks
from scale import SyntheticClips

K, CHUNK, COLD = 100, 100_000, 5
PAUSE = 0.1
"""Seconds before a query, because threads of the previous side spin for a while."""
Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
Search = Callable[[Vectors, int], Rows]
"""Candidates of a query for a width."""


@dataclass(frozen=True)
class Side:
    """A side: ``widths`` are tried in this order; with ``is_exact``, candidates are the result."""

    search: Search
    widths: Sequence[int]
    is_exact: bool
    build_seconds: float
    bytes_in_memory: int


class Data:
    """Vectors of clips in a mapped file, and queries with their exact shortlists."""

    def __init__(self, folder: Path, num_clips: int, num_queries: int, gap: float) -> None:
        self.path = folder / f"vectors-{num_clips}-{gap:g}.f32"
        self.gap = gap
        synthetic = SyntheticClips()
        dim = len(synthetic.deviations)
        is_new = not self.path.exists()
        shape = (num_clips, dim)
        self.vectors = np.memmap(self.path, np.float32, "w+" if is_new else "r+", shape=shape)

        def fill(start: int) -> None:
            count = min(CHUNK, num_clips - start)
            self.vectors[start : start + count] = self._apart(synthetic.vectors(count, start), 0)

        if is_new:
            with ThreadPoolExecutor() as pool:
                list(pool.map(fill, range(0, num_clips, CHUNK)))
        self.queries = self._apart(synthetic.vectors(num_queries, 2**60), 1)
        self.exact = self._exact()

    def _apart(self, vectors: Vectors, side: int) -> Vectors:
        if not self.gap:
            return vectors
        offset = np.random.default_rng(side).standard_normal(vectors.shape[1])
        result = vectors + np.float32(self.gap) * (offset / np.linalg.norm(offset))
        return (result / np.linalg.norm(result, axis=1, keepdims=True)).astype(np.float32)

    def _exact(self) -> list[set[int]]:
        """Return the best 100 of each query, in one pass over the vectors."""
        best = np.zeros((len(self.queries), 0), np.int64)
        cosines = np.zeros((len(self.queries), 0), np.float32)
        for start in range(0, len(self.vectors), CHUNK):
            part = self.queries @ self.vectors[start : start + CHUNK].T
            rows = np.argpartition(-part, min(K, part.shape[1] - 1))[:, :K]
            best = np.append(best, rows + start, axis=1)
            cosines = np.append(cosines, np.take_along_axis(part, rows, 1), axis=1)
            order = np.argsort(-cosines)[:, :K]
            best, cosines = (np.take_along_axis(values, order, 1) for values in (best, cosines))
        return [set(rows) for rows in best.tolist()]

    @cached_property
    def codes(self) -> list[NDArray[np.uint8]]:
        """Our codes of each part."""
        return [codes_of(part) for part in self.parts()]

    def parts(self) -> Sequence[Vectors]:
        starts = range(0, len(self.vectors), CHUNK)
        return [self.vectors[start : start + CHUNK] for start in starts]

    def rank(self, query: Vectors, rows: Rows) -> Rows:
        """Return the best 100 by exact cosines; all reads are announced first, as by a store."""
        rows = np.sort(rows[rows >= 0])
        size = self.vectors.strides[0]
        for start in (rows * size).tolist():
            page = start - start % mmap.PAGESIZE
            self.vectors._mmap.madvise(  # type: ignore[attr-defined]
                mmap.MADV_WILLNEED, page, start + size - page
            )
        cosines = np.vecdot(self.vectors[rows], query)
        return rows[np.argsort(-cosines)[:K]]

    def drop_from_cache(self) -> None:
        """Drop the vectors from the page cache; no effect on a file system in memory."""
        self.vectors.flush()
        self.vectors._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
        with self.path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CANDIDATES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16_384)


def ours(data: Data, threads: int, *, uses_weights: bool = True) -> Side:
    began = time.perf_counter()
    blocks = [block for part in data.codes for block in scan_blocks(part)]
    codes = Codes(blocks, len(data.vectors))
    store_codes.os.cpu_count = lambda: threads  # type: ignore[attr-defined]

    def search(query: Vectors, width: int) -> Rows:
        if uses_weights:
            return codes.nearest(query, width)
        near = codes.nearest_in_part(store_codes.weights_of(query), width)
        return near.rows[store_codes._nearest([near], width, codes.num_rows)]

    size = sum(block.nbytes for block in blocks)
    return Side(search, CANDIDATES, False, time.perf_counter() - began, size)


def ours_by_distance(data: Data, threads: int) -> Side:
    return ours(data, threads, uses_weights=False)


def faiss_side(
    make: Callable[[Any, int], Any], widths: Sequence[int], *, is_exact: bool = False
) -> Callable[[Data, int], Side]:
    def build(data: Data, threads: int) -> Side:
        import faiss

        began = time.perf_counter()
        index = make(faiss, data.vectors.shape[1])
        if not index.is_trained:
            index.train(np.ascontiguousarray(data.vectors[: max(CHUNK, 1)]))
        for part in data.parts():
            index.add(np.ascontiguousarray(part))
        seconds = time.perf_counter() - began
        size = len(faiss.serialize_index(index)) if len(data.vectors) <= 10**6 else 0

        def search(query: Vectors, width: int) -> Rows:
            rows: Rows = index.search(query[None], width)[1][0]
            return rows

        return Side(search, widths, is_exact, seconds, size)

    return build


def faiss_binary(data: Data, threads: int) -> Side:
    import faiss

    began = time.perf_counter()
    index = faiss.IndexBinaryFlat(store_codes.num_bits(data.vectors.shape[1]))
    for part in data.codes:
        index.add(part)

    def search(query: Vectors, width: int) -> Rows:
        rows: Rows = index.search(codes_of(query[None]), width)[1][0]
        return rows

    size = len(data.vectors) * index.code_size
    return Side(search, CANDIDATES, False, time.perf_counter() - began, size)


def usearch_graph(data: Data, threads: int) -> Side:
    from usearch.index import Index

    began = time.perf_counter()
    index = Index(ndim=data.vectors.shape[1], metric="ip", dtype="i8")
    for number, part in enumerate(data.parts()):
        keys = np.arange(len(part)) + number * CHUNK
        index.add(keys, np.ascontiguousarray(part))
    seconds = time.perf_counter() - began

    def search(query: Vectors, width: int) -> Rows:
        index.expansion_search = width
        return index.search(query, width, threads=threads).keys.astype(np.int64)

    return Side(search, CANDIDATES, False, seconds, index.memory_usage)


def usearch_bits(data: Data, threads: int) -> Side:
    """Make an exact search over the same codes."""
    from usearch.index import MetricKind
    from usearch.index import search as scan

    began = time.perf_counter()
    codes = np.concatenate(data.codes)
    seconds = time.perf_counter() - began

    def search(query: Vectors, width: int) -> Rows:
        code = codes_of(query[None])[0]
        matches = scan(codes, code, width, metric=MetricKind.Hamming, exact=True, threads=threads)
        return matches.keys.astype(np.int64)

    return Side(search, CANDIDATES, False, seconds, codes.nbytes)


def lancedb_side(data: Data, threads: int) -> Side:
    import lancedb
    import pyarrow as pa

    began = time.perf_counter()
    folder = data.path.with_suffix(".lance")
    dim = data.vectors.shape[1]
    schema = pa.schema([("row", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])
    table = lancedb.connect(str(folder)).create_table("clips", schema=schema, mode="overwrite")
    for number, part in enumerate(data.parts()):
        values = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), dim)
        rows = pa.array(np.arange(len(part)) + number * CHUNK)
        table.add(pa.table({"row": rows, "vector": values}, schema=schema))
    partitions = max(1, round(len(data.vectors) ** 0.5))
    table.create_index(metric="dot", index_type="IVF_RQ", num_partitions=partitions)
    seconds = time.perf_counter() - began

    def search(query: Vectors, width: int) -> Rows:
        search = table.search(query).distance_type("dot").nprobes(width).refine_factor(10)
        return np.array(search.limit(K).select(["row", "_distance"]).to_arrow()["row"])

    return Side(search, (8, 16, 32, 64, 128, 256, 512, 1024), True, seconds, 0)


SIDES: dict[str, tuple[str, Callable[[Data, int], Side]]] = {
    "ours": ("numpy", ours),
    "ours-hamming": ("numpy", ours_by_distance),
    "faiss-flat": (
        "faiss",
        faiss_side(lambda faiss, dim: faiss.IndexFlatIP(dim), (K,), is_exact=True),
    ),
    "faiss-binary": ("faiss", faiss_binary),
    "faiss-rabitq-fastscan": (
        "faiss",
        faiss_side(
            # Without a rotation it needs 16,384 candidates, since coordinates differ in variance.
            lambda faiss, dim: faiss.index_factory(
                dim, f"RR{dim},RaBitQfs", faiss.METRIC_INNER_PRODUCT
            ),
            CANDIDATES,
        ),
    ),
    "usearch-bits": ("usearch", usearch_bits),
    "usearch-hnsw": ("usearch", usearch_graph),
    "lancedb-ivf-rq": ("lancedb", lancedb_side),
}


def recall(data: Data, side: Side, width: int, numbers: Sequence[int]) -> float:
    shares = [
        len(data.exact[number] & set(answer(data, side, width, data.queries[number]).tolist())) / K
        for number in numbers
    ]
    return float(np.mean(shares))


def answer(data: Data, side: Side, width: int, query: Vectors) -> Rows:
    rows = side.search(query, width)
    return rows if side.is_exact else data.rank(query, rows)


def choose_width(data: Data, side: Side, goal: float, numbers: Sequence[int]) -> int:
    """Return the smallest width that reaches the goal, or the largest width."""
    for width in side.widths:
        if recall(data, side, width, numbers) >= goal:
            break
    return width


def measure(data: Data, sides: dict[str, Side], goal: float) -> dict[str, Any]:
    """Tune each side on half of the queries, then time all sides on the others, alternately."""
    numbers = range(len(data.queries))
    tuning, timing = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    widths = {name: choose_width(data, side, goal, tuning) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    cold: dict[str, list[float]] = {name: [] for name in sides}
    for number in timing:
        for name, side in sides.items():
            time.sleep(PAUSE)
            began, used = time.perf_counter(), time.process_time()
            answer(data, side, widths[name], data.queries[number])
            seconds[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - used)
    for number in timing[:COLD]:
        for name, side in sides.items():
            data.drop_from_cache()
            began = time.perf_counter()
            answer(data, side, widths[name], data.queries[number])
            cold[name].append(time.perf_counter() - began)
    return {
        name: {
            "width": widths[name],
            f"recall@{K}": round(recall(data, side, widths[name], timing), 4),
            "p50_ms": round(1000 * float(np.median(seconds[name])), 2),
            "p99_ms": round(1000 * float(np.percentile(seconds[name], 99)), 2),
            "processor_ms": round(1000 * float(np.median(processor[name])), 2),
            "cold_p50_ms": round(1000 * float(np.median(cold[name])), 2),
            "build_seconds": round(side.build_seconds, 1),
            "mib": round(side.bytes_in_memory / 2**20, 1),
        }
        for name, side in sides.items()
    }


def limit_threads(number: int) -> None:
    """Restrict all threads of this process to ``number`` cores, if the system supports it."""
    threadpool_limits(number)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))[:number]
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=80)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument(
        "--gap", type=float, default=0.0, help="1: the gap between texts and images"
    )
    parser.add_argument("--sides", nargs="+", choices=[*SIDES], default=[*SIDES])
    parser.add_argument("--folder", type=Path, help="keep the vectors here and use them again")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        data = Data(folder, options.clips, options.queries, options.gap)
        began = time.perf_counter()
        num_parts = len(data.codes)
        coding = time.perf_counter() - began
        print(f"{num_parts} parts coded in {coding:.1f} s", flush=True)
        sides = {}
        for name in options.sides:
            package, build = SIDES[name]
            if importlib.util.find_spec(package) is None:
                print(f"{name}: {package} is not installed")
                continue
            sides[name] = build(data, options.threads)
            print(f"{name} built in {sides[name].build_seconds:.1f} s", flush=True)
        limit_threads(options.threads)
        load = os.getloadavg()[0]
        table = measure(data, sides, options.recall)
    result = {
        "benchmark": "shortlists",
        "clips": options.clips,
        "gap": options.gap,
        "threads": options.threads,
        "queries_tuned_and_measured": [
            options.queries // 2,
            options.queries - options.queries // 2,
        ],
        "load_average_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "coding_seconds": round(coding, 1),
        "sides": table,
    }
    print(json.dumps(result, indent=2))
    name = f"shortlists-{options.clips}" + (f"-gap{options.gap:g}" if options.gap else "")
    print(f"written to {save_result(name, result, options.output)}")


if __name__ == "__main__":
    main()
