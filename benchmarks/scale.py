"""How search grows: the scan of coarse vectors, whole and in parts; what an index run costs.

    python benchmarks/scale.py                         # 100,000 clips, and the model
    python benchmarks/scale.py --clips 100000 1000000  # a million needs 4 GB of disk

Clips are synthetic: unit vectors of 512 numbers in clusters, records of one frame, so that the disk
holds a million. The scan is what a shard does (``exact_shortlists``); it is exact, so its recall
is 1. The front's share (encoding the sentence, ranking 100 clips exactly) does not grow with the
store and is measured by ``benchmarks/search.py``.

The model of a run (:func:`predicted`) is a formula; :func:`simulated` plays the same run event by
event, with workers that are lost, and the two are compared in every run.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.search.shortlist import exact_shortlists, merged
from eaglenet.search.store import publishing
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.tables import ClipKey, ClipRows, FileRow
from eaglenet.types import VideoFeatures

DIM, CLUSTERS, CLIPS_A_FILE, QUERIES, PARTS = 512, 2000, 1000, 30, 4
CLIPS_AN_HOUR = 450
"""Of ten seconds that overlap by two."""


class SyntheticTables:
    """What publishing reads of tables, made up as it is asked for."""

    def __init__(self, num_clips: int, layout: FeatureLayout) -> None:
        self.num_files = num_clips // CLIPS_A_FILE
        self.layout = layout
        generator = np.random.default_rng(0)
        centres = generator.standard_normal((CLUSTERS, DIM), np.float32)
        self.centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)

    def files(self) -> list[FileRow]:
        return [
            FileRow(f"/v/{n:08}.mp4", 1, 1, f"{n:032x}", "done", num_clips=CLIPS_A_FILE)
            for n in range(self.num_files)
        ]

    def clip_keys(self, contents: Sequence[str] | None = None) -> list[ClipKey]:
        names = contents if contents is not None else [row.content for row in self.files()]
        return [(content, number) for content in names for number in range(CLIPS_A_FILE)]

    def index_kind(self) -> str | None:
        return None

    def read_clips(self, keys: Sequence[ClipKey]) -> ClipRows:
        count = len(keys)
        generator = np.random.default_rng(int(keys[0][0], 16) * CLIPS_A_FILE + keys[0][1])
        noise = generator.standard_normal((count, DIM), np.float32) / np.float32(DIM**0.5)
        vectors = self.centres[generator.integers(0, CLUSTERS, count)] + noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return ClipRows(
            keys=list(keys),
            paths=["/v"] * count,
            starts=np.zeros(count),
            ends=np.full(count, 10.0),
            coarse=vectors,
            records=np.zeros(count, self.layout.dtype),
            thumbnails=[b"x"] * count,
        )


def make_snapshot(folder: Path, num_clips: int) -> tuple[Snapshot, float]:
    """A real snapshot of synthetic clips, and the seconds it took to publish."""
    features = VideoFeatures(torch.zeros(1, 1, 8), torch.ones(1, 1, dtype=torch.bool))
    layout = FeatureLayout.of(features)
    tables: Any = SyntheticTables(num_clips, layout)
    begun = time.perf_counter()
    publishing.publish(folder, tables, layout, DIM, None)
    return Snapshot(folder, layout, DIM, location="synthetic"), time.perf_counter() - begun


def measure_scan(num_clips: int, folder: Path) -> dict[str, Any]:
    """Seconds of shortlists of 100, over all vectors and over a quarter of them."""
    snapshot, published = make_snapshot(folder, num_clips)
    generator = torch.Generator().manual_seed(1)
    queries = torch.nn.functional.normalize(torch.randn(QUERIES, DIM, generator=generator), dim=-1)
    whole: list[float] = []
    parts: list[float] = []
    is_same = True
    for query in queries:
        begun = time.perf_counter()
        expected = exact_shortlists(snapshot, query[None], 100)[0]
        whole.append(time.perf_counter() - begun)
        pieces, slowest = [], 0.0
        for number in range(1, PARTS + 1):
            begun = time.perf_counter()
            pieces.append(exact_shortlists(snapshot, query[None], 100, None, (number, PARTS))[0])
            slowest = max(slowest, time.perf_counter() - begun)
        begun = time.perf_counter()
        found = merged(pieces, 100)
        parts.append(slowest + time.perf_counter() - begun)
        is_same &= found.cosines.tobytes() == expected.cosines.tobytes()
        is_same &= bool((found.rows == expected.rows).all())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "clips": num_clips,
        "publish_seconds": round(published, 1),
        "p50_ms": percentile(whole, 50),
        "p99_ms": percentile(whole, 99),
        "shards": PARTS,
        "shards_p50_ms": percentile(parts, 50),
        "shards_p99_ms": percentile(parts, 99),
        "shards_are_bit_identical": is_same,
        "peak_mb": round(peak),
    }


def percentile(seconds: Sequence[float], share: float) -> float:
    values: NDArray[np.float64] = np.asarray(seconds[1:])  # The first maps the vectors.
    return round(1000 * float(np.percentile(values, share)), 2)


@dataclass(frozen=True)
class Run:
    """An index run on a cluster."""

    hours: float
    """Of video."""
    cores: int
    gpus: int
    decode_a_core: float = 2.3
    """Clips a second; 12 frames of 224 from H.264."""
    encode_a_gpu: float = 1200.0
    encode_a_core: float = 0.0
    """Where there is no GPU: clips a second of a core that does nothing else."""
    losses_an_hour: float = 0.0
    """Workers lost in an hour, of each core."""
    shard: int = 32
    start_seconds: float = 10.0
    """Of a worker: Python, torch and the model."""
    core_hour: float = 0.04
    gpu_hour: float = 3.0
    gigabyte_month: float = 0.023
    bytes_a_clip: float = 25e3

    @property
    def clips(self) -> float:
        return self.hours * CLIPS_AN_HOUR

    @property
    def seconds_a_clip(self) -> float:
        """Of one core."""
        own = 1 / self.encode_a_core if not self.gpus else 0.0
        return 1 / self.decode_a_core + own


def predicted(run: Run) -> dict[str, float]:
    """Seconds = clips / min(cores / t, gpus * e) * (1 + l (T / 2 + s)) + s.

    t: core seconds a clip; e: clips a second of a GPU; l: losses of a core a second; T: seconds of
    a shard; s: seconds to start a worker. A loss costs half a shard and a start.
    """
    rate = run.cores / run.seconds_a_clip
    if run.gpus:
        rate = min(rate, run.gpus * run.encode_a_gpu)
    shard_seconds = run.shard * run.cores / rate
    wasted = run.losses_an_hour / 3600 * (shard_seconds / 2 + run.start_seconds)
    seconds = run.clips / rate * (1 + wasted) + run.start_seconds
    gigabytes = run.clips * run.bytes_a_clip / 1e9
    return {
        "seconds": seconds,
        "gigabytes": gigabytes,
        "money": seconds / 3600 * (run.cores * run.core_hour + run.gpus * run.gpu_hour),
        "money_a_month": gigabytes * run.gigabyte_month,
    }


def simulated(run: Run, seed: int = 0) -> float:
    """Seconds of the same run, shard by shard: cores decode, GPUs take turns, workers are lost."""
    chance = random.Random(seed)
    waiting = round(run.clips / run.shard)
    free = [(run.start_seconds, number, "free") for number in range(run.cores)]
    gpus = [0.0] * run.gpus
    heapq.heapify(free)
    end = 0.0
    while free:
        now, number, what = heapq.heappop(free)
        if what == "decoded":
            if gpus:
                now = max(now, heapq.heappop(gpus)) + run.shard / run.encode_a_gpu
                heapq.heappush(gpus, now)
            end = max(end, now)
        if not waiting:
            continue
        work = run.shard * run.seconds_a_clip * chance.uniform(0.7, 1.3)
        lost = chance.expovariate(run.losses_an_hour / 3600) if run.losses_an_hour else work + 1
        if lost < work:
            heapq.heappush(free, (now + lost + run.start_seconds, number, "free"))
        else:
            waiting -= 1
            heapq.heappush(free, (now + work, number, "decoded"))
    return end


def compare_model() -> list[dict[str, float]]:
    """The formula and the simulation for runs whose shards can be counted in seconds."""
    rows = []
    for run in (
        Run(10, 2, 0, encode_a_core=4.0),
        Run(1000, 64, 1),
        Run(1000, 64, 1, losses_an_hour=2.0),
        Run(1000, 1000, 1),
    ):
        formula, played = predicted(run)["seconds"], simulated(run)
        rows.append(
            {
                "hours": run.hours,
                "cores": run.cores,
                "gpus": run.gpus,
                "losses_an_hour": run.losses_an_hour,
                "formula_seconds": round(formula),
                "simulated_seconds": round(played),
                "ratio": round(formula / played, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, nargs="+", default=[100_000])
    parser.add_argument("--model-only", action="store_true", help="formula and simulation alone")
    parser.add_argument("--folder", type=Path, help="where the synthetic stores are made")
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    model = compare_model()
    for row in model:
        print(row)
    if arguments.model_only:
        return
    scans = []
    for num_clips in arguments.clips:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            scans.append(measure_scan(num_clips, Path(folder)))
            print(scans[-1])
    load = os.getloadavg()
    save_result(
        "scale", {"scan": scans, "model": model, "load_average": [round(x, 1) for x in load]}
    )


if __name__ == "__main__":
    main()
