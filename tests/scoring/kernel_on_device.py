"""Compares the compiled kernels with the reference on a CUDA device; prints JSON.

A script of its own, because the tests run Triton's interpreter in their process:
``PYTHONPATH=src python tests/scoring/kernel_on_device.py`` needs torch and triton alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).parent))
from scoring_cases import RELEASED, largest_difference, model, texts, videos

from eaglenet.scoring import choose, score_all

MARGIN = 3e-3
GAT: dict[str, Any] = {"graph": "gat", "edge_weights": "activated", "head_size": "split"}
CASES: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": RELEASED,
    "released, masked": {**RELEASED, "mask_frames": True},
    "gat": GAT,
    "gat raw, one head": {"graph": "gat", "num_heads": 1, "frame_edges": False},
    "five candidates, two heads": {**RELEASED, "num_candidates": 5, "num_heads": 2},
    "63 candidates": {**RELEASED, "num_candidates": 63},
    "released, 64 frames": {**RELEASED, "num_frames": 64},
    "released, masked, 64 frames": {**RELEASED, "mask_frames": True, "num_frames": 64},
    "released, 33 frames": {**RELEASED, "num_frames": 33},
    "released, one frame": {**RELEASED, "num_frames": 1},
    "gat, 32 frames": {**GAT, "num_frames": 32},
    "gat, 64 frames": {**GAT, "num_frames": 64},
    "paper, 64 frames": {"num_frames": 64},
    "paper, 40 candidates": {"num_candidates": 40},
    "gat, 63 candidates": {**GAT, "num_candidates": 63},
    "63 candidates, 64 frames": {**RELEASED, "num_candidates": 63, "num_frames": 64},
    "gat, 63 candidates, 64 frames": {**GAT, "num_candidates": 63, "num_frames": 64},
}
SHARP = {"paper, sharp weights": ({}, 4.0), "released, sharp weights": (RELEASED, 30.0)}
"""Options, and how many times the last layer is multiplied: logits differ by about 5."""
NUM_TEXTS, NUM_VIDEOS = 1000, 131  # tails in both directions of a tile


def compare(options: dict[str, Any], sharpness: float = 1.0) -> dict[str, Any]:
    """Largest differences, and the share of clear winners that half precision finds too.

    ``scorers``: the automatic choice, which should be the kernels for each of these cases.
    """
    full = {"dim": 512, "num_frames": 12, "num_candidates": 20, "num_heads": 4, **options}
    method = model(**full).to("cuda")
    with torch.no_grad():
        method.graph.edges.relation.projection.weight.mul_(sharpness)
    text = texts(NUM_TEXTS, dim=512).to("cuda")
    video = videos(NUM_VIDEOS, frames=full["num_frames"], dim=512).to("cuda")
    expected = score_all(method, text, video, backend="reference")
    exact = score_all(method, text, video, tile_texts=64, tile_videos=50)
    half = score_all(method, text, video, precision="bf16")
    scorers = {
        precision: type(choose(method, video, precision=precision)).__name__
        for precision in ("fp32", "bf16")
    }
    best = expected.topk(2, dim=1)
    is_clear = best.values[:, 0] - best.values[:, 1] > MARGIN
    same = (half.argmax(dim=1) == best.indices[:, 0])[is_clear]
    return {
        "scorers": scorers,
        "fp32": largest_difference(exact, expected),
        "bf16": largest_difference(half, expected),
        "clear": int(is_clear.sum()),
        "same_top_1": float(same.float().mean()) if len(same) else 1.0,
    }


if __name__ == "__main__":
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "texts": NUM_TEXTS,
        "videos": NUM_VIDEOS,
        "margin": MARGIN,
        "cases": {},
    }
    everything = {name: (options, 1.0) for name, options in CASES.items()} | SHARP
    for name, (options, sharpness) in everything.items():
        found["cases"][name] = compare(options, sharpness)
        print(f"{name}: {found['cases'][name]}", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))
