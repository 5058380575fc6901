"""Seconds for indexing a long film on a machine with an NVIDIA GPU.

    python benchmarks/gpu_index.py                  # one hour of 1080p
    python benchmarks/gpu_index.py --minutes 5      # smaller
    python benchmarks/gpu_index.py --mixes 7:9      # 7 processes with the GPU, 9 without

The film is that of ``film.py``. The model has the architecture of PE-Core-B and random weights; the
time includes everything but its loading. ``decoding`` is the same work without a model, and
``frames_per_second`` counts all frames of the film. Pixels of hardware and software decoders are
compared clip by clip.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import film
from common import save_result
from decoding import FPS
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing import executor
from eaglenet.indexing.decoding import (
    ClipFrames,
    decode_ahead,
    fixed_windows,
    split_request,
    with_shared_frames,
)
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.methods.base import Method
from eaglenet.models.folder import _zero_shot
from towers import TOWERS, build_ours

GOAL_SECONDS = 35


def index(path: Path, method: Method, decode: str, workers: int) -> float:
    """Return the seconds for indexing the film into a new store."""
    options = IndexOptions(device="cuda", decode=decode, workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = index_videos([path], Path(folder) / "s", "given", options=options, method=method)
        assert not report.problems, report.problems
        return time.perf_counter() - began


def decode(
    path: Path, seconds: float, method: Method, mix: tuple[int, int]
) -> tuple[float, list[str]]:
    """Return the seconds for decoding the film without a model, and a digest of each clip."""
    splitting = with_shared_frames(Splitting(), method.frame_spec)
    windows = fixed_windows(seconds, splitting.clip_seconds, splitting.overlap)
    requests = split_request("film", str(path), dict(enumerate(windows)), None, seconds)
    step, spec = splitting.frame_step, method.frame_spec
    began = time.perf_counter()
    digests = []
    for clip in decode_ahead(requests, spec, sum(mix), None, step, mix[0]):
        assert isinstance(clip, ClipFrames), clip
        digests.append(hashlib.blake2b(clip.pixels.data, digest_size=8).hexdigest())
    return time.perf_counter() - began, digests


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--film", type=Path, help="measure this film")
    parser.add_argument("--mixes", nargs="+", help="processes with the GPU:without it")
    parser.add_argument("--output", type=Path, help="folder for the result")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    texts = options.mixes or [f"{executor.GPU_WORKERS}:{cores - executor.GPU_WORKERS}"]
    mixes = [tuple(map(int, text.split(":"))) for text in texts]
    family, config = TOWERS["pe-b"]
    method = _zero_shot(build_ours(family, config, "cuda", torch.float32)).to("cuda").eval()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.film or film.make_film(Path(temporary) / "film.mp4", options.minutes)
        seconds = film.probe(path).duration
        rows: list[dict[str, Any]] = []
        reference: list[str] = []
        for mix in [(0, cores), *mixes]:
            executor.GPU_WORKERS = mix[0]
            alone, digests = decode(path, seconds, method, mix)
            reference = reference or digests
            whole = index(path, method, "gpu" if mix[0] else "cpu", sum(mix))
            row = {
                "processes_with_gpu": mix[0],
                "processes_without": mix[1],
                "index_seconds": round(whole, 1),
                "decoding_seconds": round(alone, 1),
                "frames_per_second": round(seconds * FPS / alone),
                "decoding_share": round(alone / whole, 2),
                "clips_with_other_pixels": sum(
                    a != b for a, b in zip(reference, digests, strict=True)
                ),
            }
            print(row, flush=True)
            rows.append(row)
    result = {
        "benchmark": "gpu_index",
        "film_seconds": round(seconds),
        "clips": len(reference),
        "rows": rows,
        "goal_seconds": GOAL_SECONDS,
    }
    print(f"written to {save_result('gpu-index', result, options.output)}")


if __name__ == "__main__":
    main()
