"""Clips a second with 1 and 2 workers, local processes and Ray: a part of ``scale.py``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.types import Clips
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.options import ClusterOptions
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from indexing import CLIP_SECONDS, OVERLAP, make_film, ours

FILMS, SECONDS, ROUNDS = 3, 160, 2
CLIPS = FILMS * 20
EMPTY_SECONDS = 8
"""Of a film of one clip: a run over it is all start and end."""
RUNS = [("local", 1), ("ray", 1), ("local", 2), ("ray", 2)]


def index(films: Path, store: Path, method: Method, executor: str, workers: int) -> float:
    """Seconds of one run into a new store; the model is loaded, the cluster is up.

    Locally this process encodes with all cores, however many workers decode for it; on Ray every
    worker decodes and encodes with one.
    """
    options = IndexOptions(
        device="cpu",
        workers=workers,
        executor=executor,
        precision="fp32",
        cluster=ClusterOptions(os.environ.get("RAY_ADDRESS")),
    )
    begun = time.perf_counter()
    report = index_videos([films], store, "given", options=options, method=method)
    seconds = time.perf_counter() - begun
    assert not report.problems, report.problems
    return seconds


@torch.inference_mode()
def measure_workers(folder: Path) -> dict[str, Any]:
    """In turns, the best of two; decoding and encoding alone in core seconds."""
    import ray

    method = load("small").eval()
    films, one = folder / "films", folder / "one"
    for place in (films, one):
        place.mkdir()
    make_film(one / "0.mp4", "240p", EMPTY_SECONDS)
    make_film(films / "0.mp4", "240p", SECONDS)
    content = (films / "0.mp4").read_bytes()
    for number in range(1, FILMS):
        # Other files, as equal ones would be stored once.
        tail = bytes([0, 0, 0, 8]) + b"free"
        (films / f"{number}.mp4").write_bytes(content + tail * number)
    way = ours(method)
    # Core seconds: libraries below torch use both cores whatever torch is told.
    begun = time.process_time()
    frames = way.decode(films / "0.mp4", SECONDS, 1)
    decoding = time.process_time() - begun
    videos = frames.unflatten(0, (-1, method.frame_spec.num_frames))
    shape = videos.shape[:2]
    film = Clips(videos, torch.ones(shape, dtype=torch.bool), torch.zeros(shape))
    method.encoder.encode_frames(videos[:2])
    begun = time.process_time()
    method.encode_video(film)
    encoding = time.process_time() - begun
    clips = len(frames) / method.frame_spec.num_frames
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    spent: dict[tuple[str, int], list[float]] = {run: [] for run in RUNS}
    starts: dict[str, float] = {}
    try:
        for executor in ("local", "ray"):
            starts[executor] = index(one, folder / f"start-{executor}", method, executor, 1)
        for turn in range(ROUNDS):
            for executor, workers in RUNS:
                store = folder / f"{executor}-{workers}-{turn}"
                spent[executor, workers].append(index(films, store, method, executor, workers))
                print(executor, workers, round(spent[executor, workers][-1], 1), flush=True)
    finally:
        ray.shutdown()
    runs = [
        {
            "executor": executor,
            "workers": workers,
            "seconds": round(min(times), 2),
            "clips_a_second": round(CLIPS / min(times), 2),
            "clips_a_second_after_start": round(CLIPS / (min(times) - starts[executor]), 2),
        }
        for (executor, workers), times in spent.items()
    ]
    by_name = {(run["executor"], run["workers"]): run for run in runs}
    key = "clips_a_second_after_start"
    return {
        "clips": CLIPS,
        "clip_seconds": CLIP_SECONDS,
        "overlap_seconds": OVERLAP,
        "decode_seconds_a_clip": round(decoding / clips, 4),
        "encode_seconds_a_clip": round(encoding / clips, 4),
        "start_seconds": {name: round(value, 2) for name, value in starts.items()},
        "runs": runs,
        "ray_overhead_at_2": round(by_name["local", 2][key] / by_name["ray", 2][key] - 1, 3),
        "ray_overhead_at_2_with_start": round(
            by_name["ray", 2]["seconds"] / by_name["local", 2]["seconds"] - 1, 3
        ),
    }
