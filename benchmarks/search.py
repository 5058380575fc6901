"""Queries over 100,000 clips: opening, shortlist, exact re-ranking, memory, recall and quality.

    python benchmarks/search.py                      # builds the store (about 3 GB) and measures
    python benchmarks/search.py --quick              # 2,000 clips, seconds
    python benchmarks/search.py --folder DIR         # keeps the store there and uses it again

The store has clustered random vectors, 12 frames x 512. The model is EagleNet in the released
configuration over a small text tower, with random weights, because times do not depend on the
values. Searches are measured in a separate process, whose memory is that of a user. They are
compared with a FAISS flat index over the same coarse vectors, and NumPy re-ranking of 100 clips by
the cosine of the best frame, which answers the same queries afterwards. Quality is measured on the
demo world with the model ``demo``, if the package has it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.core.errors import ModelNotFoundError
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import FrameSpec, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.models.folder import load, save
from eaglenet.research.data.demo.dataset import demo_split, demo_tokenizer_folder, render_clips
from eaglenet.scoring import score_all
from eaglenet.search.engine import Engine
from eaglenet.search.model import ClipFeatures
from eaglenet.search.shortlist import make_shortlists
from eaglenet.search.torch_model import make_manifest, prepare_for_store
from eaglenet.store.manifest import Manifest, feature_arrays
from eaglenet.store.records import Changes, ClipBatch, IndexedFile
from eaglenet.store.store import LocalStore

FRAMES, DIM, SHORTLIST = 12, 512, 100
CLUSTERS, CLIPS_PER_FILE, BATCH = 2000, 50, 2000
WORDS = ("a", "red", "blue", "green", "ball", "square", "moves", "left", "right", "then", "stops")


def make_model(folder: Path) -> None:
    """Save a model: EagleNet at full width over a small text tower (4 layers of 256)."""
    torch.manual_seed(0)
    tokenizer = ClipTokenizer.from_folder(demo_tokenizer_folder())
    config = ClipConfig(
        dim=DIM,
        vision=VisionConfig(
            image_size=32, patch_size=16, width=64, layers=1, heads=2, mlp_width=128
        ),
        text=TextConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            width=256,
            layers=4,
            heads=4,
            mlp_width=1024,
        ),
    )
    method = EagleNet.build(EagleNetConfig.for_script(token_shift=False), ClipEncoder(config))
    method.frame_spec = FrameSpec(num_frames=FRAMES, size=32)
    method.tokenizer = tokenizer
    save(method.eval(), folder)


def build_store(folder: Path, num_clips: int, prepare: bool) -> float:
    """Fill a store through its interface; return the seconds this took."""
    start = time.perf_counter()
    make_model(folder / "model")
    method = load(folder / "model")
    manifest = make_manifest(
        method, str(folder / "model"), method.frame_spec, Splitting(), [], prepare=prepare
    )
    with LocalStore.write(folder / "store", manifest) as writer:
        for changes in synthetic_changes(method, manifest, num_clips, prepare):
            writer.commit(changes)
        writer.finish()
    return time.perf_counter() - start


def synthetic_changes(
    method: Method, manifest: Manifest, num_clips: int, prepare: bool
) -> Iterator[Changes]:
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(CLUSTERS, DIM, generator=generator), dim=-1)
    for first in range(0, num_clips, BATCH):
        count = min(BATCH, num_clips - first)
        own = centres[torch.randint(CLUSTERS, (count,), generator=generator)]
        noise = torch.randn(count, FRAMES, DIM, generator=generator) / DIM**0.5
        clip_noise = torch.randn(count, 1, DIM, generator=generator) / DIM**0.5
        frames = F.normalize(own[:, None] + clip_noise + 0.5 * noise, dim=-1)
        features = VideoFeatures(frames, torch.ones(count, FRAMES, dtype=torch.bool))
        scorer_data = prepare_for_store(method, features) if prepare else None
        numbers = np.arange(first, first + count)
        contents = [f"{number // CLIPS_PER_FILE:032x}"[::-1] for number in numbers]
        starts = 8.0 * (numbers % CLIPS_PER_FILE)
        seconds = torch.from_numpy(starts)[:, None] + torch.linspace(0, 10, FRAMES)
        paths = [f"/videos/{number // CLIPS_PER_FILE:06}.mp4" for number in numbers]
        keys = [(c, int(n % CLIPS_PER_FILE)) for c, n in zip(contents, numbers, strict=True)]
        batch = ClipBatch(
            keys=keys,
            starts=starts,
            ends=starts + 10,
            vectors=method.coarse_vectors(features).numpy(),
            features=manifest.layout.pack(feature_arrays(features, seconds, scorer_data)),
            thumbnails=[bytes(3000)] * count,
        )
        files = [
            IndexedFile(path, 1, first * 10**9, content, "done", duration=410.0)
            for path, content in dict(zip(paths, contents, strict=True)).items()
        ]
        yield Changes([batch], files)


def milliseconds(seconds: list[float]) -> dict[str, float]:
    values = 1000 * np.array(seconds)
    return {
        "p50": round(float(np.percentile(values, 50)), 2),
        "p99": round(float(np.percentile(values, 99)), 2),
        "best": round(float(values.min()), 2),
    }


def memory_mib() -> dict[str, int]:
    """Return resident memory, its peak, and the part of mapped files, which can be evicted."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now = {name: int(fields[name].split()[0]) // 1024 for name in ("VmRSS", "RssFile", "RssAnon")}
    return {**now, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def measure(folder: Path, num_queries: int) -> dict[str, Any]:
    """Measure in a separate process: first whole queries, then stages and FAISS in turn."""
    before = memory_mib()
    start = time.perf_counter()
    engine = Engine.open(folder / "store")
    open_seconds = time.perf_counter() - start
    generator = torch.Generator().manual_seed(1)
    choices = torch.randint(len(WORDS), (num_queries + 5, 8), generator=generator).tolist()
    texts = [" ".join(WORDS[number] for number in row) for row in choices]
    start = time.perf_counter()
    first = engine.search(texts[0], k=10, shortlist=SHORTLIST)
    first_query = time.perf_counter() - start
    assert len(first) == 10
    stages: dict[str, list[float]] = {}

    def record(name: str, start: float) -> float:
        """Record the time of a stage since ``start``; return the time now."""
        now = time.perf_counter()
        stages.setdefault(name, []).append(now - start)
        return now

    whole, processor = [], []
    for number, text in enumerate(texts):
        start, processor_start = time.perf_counter(), time.process_time()
        engine.search(text, k=10, shortlist=SHORTLIST)
        if number >= 5:
            whole.append(time.perf_counter() - start)
            processor.append(time.process_time() - processor_start)
    start, together = time.perf_counter(), texts[:32]
    engine.search_many(together, k=10, shortlist=SHORTLIST)
    together_seconds = (time.perf_counter() - start) / len(together)
    memory = memory_mib()
    engine_tops, flat_tops, flat_whole, flat_coarse = [], [], [], []
    flat = FlatSide(engine)
    for text in texts[5:]:
        start = time.perf_counter()
        encoded_text = engine.model.encode_texts([text])
        start = record("text", start)
        snapshot = engine.snapshot
        shortlist = make_shortlists(snapshot, encoded_text.vectors, SHORTLIST, None)[0].rows
        start = record("coarse", start)
        features = snapshot.features_at(shortlist)
        clips = ClipFeatures(engine.manifest.layout.unpack(features), shortlist.tolist())
        start = record("fetch", start)
        engine.model.score(encoded_text, clips)
        record("rerank", start)
        start = time.perf_counter()
        query = engine.model.encode_texts([text]).vectors
        coarse_start = time.perf_counter()
        rows = flat.coarse(query)
        flat_coarse.append(time.perf_counter() - coarse_start)
        flat.rerank(query, rows)
        flat_whole.append(time.perf_counter() - start)
        engine_tops.append(set(shortlist.tolist()))
        flat_tops.append(set(rows.tolist()))
    pairs = zip(engine_tops, flat_tops, strict=True)
    return {
        "clips": len(engine.snapshot),
        "queries": num_queries,
        "open_seconds": round(open_seconds, 3),
        "first_query_seconds_with_model_loading": round(first_query, 3),
        "index": engine.info()["index"],
        "query_ms": milliseconds(whole),
        "query_processor_ms": milliseconds(processor),
        "query_of_32_together_ms": round(1000 * together_seconds, 2),
        "stages_ms": {name: milliseconds(values) for name, values in stages.items()},
        "memory_mib": {"before_open": before["VmRSS"], **memory},
        "faiss_query_ms": milliseconds(flat_whole),
        "faiss_coarse_ms": milliseconds(flat_coarse),
        "shortlist_agreement_with_faiss": float(
            np.mean([len(ours & theirs) / SHORTLIST for ours, theirs in pairs])
        ),
    }


class FlatSide:
    """FAISS ``IndexFlatIP``, and re-ranking by the cosine of the best frame in NumPy."""

    def __init__(self, engine: Engine) -> None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        snapshot = engine.snapshot
        self.index = faiss.IndexFlatIP(engine.manifest.dim)
        for _, vectors in snapshot.vector_parts():
            self.index.add(vectors)
        self.snapshot = snapshot

    def coarse(self, query: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rows: np.ndarray[Any, Any] = self.index.search(query, SHORTLIST)[1][0]
        return rows

    def rerank(self, query: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> Any:
        frames = self.snapshot.features_at(rows)["frames"].astype(np.float32)
        frames /= np.linalg.norm(frames, axis=-1, keepdims=True)
        return np.argsort(-(frames @ query[0]).max(axis=-1))


def measure_codes(folder: Path) -> dict[str, Any]:
    """Measure the recall of codes, by which larger stores are searched, on this store."""
    from eaglenet.search.shortlist import measure_recall

    return vars(measure_recall(LocalStore.open(folder / "store"), k=SHORTLIST, num_queries=50))


def measure_quality(num_clips: int) -> dict[str, Any] | None:
    """Return R@1 on the test split of the demo world, of coarse ranking and of re-ranking."""
    try:
        method = load("demo")
    except ModelNotFoundError:
        return None
    world = demo_split("test", test=num_clips)
    clips = render_clips(world, method.frame_spec)
    with torch.inference_mode():
        parts = [method.encode_video(clips[n : n + 32]) for n in range(0, len(clips), 32)]
        videos = VideoFeatures.concatenate(parts)
        texts = world.texts
        chunks = [method.encode_text(texts[n : n + 256]) for n in range(0, len(texts), 256)]
        text = TextFeatures.concatenate(chunks)
        coarse = method.coarse_vectors(text) @ method.coarse_vectors(videos).T
        exact = score_all(method, text, videos)
    truth = world.video_of_text

    def recall_at_1(scores: torch.Tensor) -> float:
        target = scores.gather(1, truth[:, None])
        return round(float(((scores >= target).sum(dim=1) == 1).float().mean()) * 100, 2)

    result: dict[str, Any] = {
        "clips": len(clips),
        "texts": len(texts),
        "coarse_r1": recall_at_1(coarse),
        "exact_r1": recall_at_1(exact),
        "reranked": {},
    }
    for k in (10, 50, 100, 200):
        rows = coarse.topk(min(k, coarse.shape[1]), dim=1).indices
        in_shortlist = torch.zeros_like(coarse, dtype=torch.bool).scatter_(1, rows, True)
        has_target = in_shortlist.gather(1, truth[:, None])[:, 0]
        # Clips outside the shortlist must not count as ties.
        scores = exact.masked_fill(~in_shortlist, -torch.inf)
        is_first = (scores >= exact.gather(1, truth[:, None])).sum(dim=1) == 1
        result["reranked"][str(k)] = {
            "r1": round(float((is_first & has_target).float().mean()) * 100, 2),
            "in_shortlist": round(float(has_target.float().mean()) * 100, 2),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="keep the store here and use it again")
    parser.add_argument("--prepare", action="store_true", help="also store the scorer's data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.queries)))
        return
    if options.quick:
        options.clips, options.queries = 2000, 20
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        build_seconds = None
        if not (folder / "store").exists():
            build_seconds = round(build_store(folder, options.clips, options.prepare), 1)
        assert LocalStore.open(folder / "store").manifest.dim == DIM
        command = [sys.executable, __file__, "--measure", str(folder)]
        command += ["--queries", str(options.queries)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        result = {
            "build_seconds": build_seconds,
            "stores_scorer_data": options.prepare,
            "search": json.loads(output.splitlines()[-1]),
            "approximate": measure_codes(folder),
            "demo_world": measure_quality(200 if options.quick else 1000),
        }
    print(json.dumps(result, indent=2))
    if not options.quick:
        print(save_result("search-prepared" if options.prepare else "search", result))


if __name__ == "__main__":
    main()
