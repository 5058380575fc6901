"""A model in three runtimes: cosines between their frames, and R@1, on real frames.

    python benchmarks/runtimes.py --root TEST --vectors CACHE [--save]

TEST is a folder of frames with captions that the model was not trained on (`eaglenet data frames`).
Every caption is a query over all videos, by the mean of a video's frames, without and with the
model's hubness bank (a search uses the bank). `torch` computes in fp32, the others use onnxruntime.
Vectors are stored in CACHE (benchmarks/frame_vectors.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import ranks_of, recalls, save_result
from eaglenet.models.light_model import LightModel, unit
from frame_vectors import RUNTIMES, Vectors, encode_folder, encode_texts

MAX_R1_DIFFERENCE, MAX_COSINE_DIFFERENCE = 0.2, 1e-3
REFERENCE = "torch"


def recalls_of(scores: NDArray[np.float32], owners: NDArray[np.int64]) -> dict[str, float]:
    return recalls(ranks_of(torch.from_numpy(scores), torch.from_numpy(owners)))


def measure(vectors: dict[str, Vectors], texts: NDArray[np.float32], bank: Any) -> dict[str, Any]:
    """Compare each runtime with the reference."""
    owners = np.array([number for _, number in vectors[REFERENCE].texts])
    rows: dict[str, Any] = {}
    reference = texts @ vectors[REFERENCE].clips.T
    firsts = reference.argmax(axis=1)
    for runtime, own in vectors.items():
        clips = own.clips
        scores = texts @ clips.T
        frames = (unit(own.frames) * unit(vectors[REFERENCE].frames)).sum(axis=2)[own.mask]
        row: dict[str, Any] = {
            "mean_of_frames": recalls_of(scores, owners),
            "with_hubness_bank": recalls_of(scores - bank.offsets(clips), owners),
            "least_cosine_of_a_frame_with_torch": float(frames.min()),
            "mean_cosine_of_frames_with_torch": float(frames.mean()),
            "largest_difference_of_a_cosine": float(np.abs(scores - reference).max()),
            "mean_difference_of_cosines": float(np.abs(scores - reference).mean()),
            "share_with_the_same_first_hit": float((scores.argmax(axis=1) == firsts).mean()),
        }
        print(runtime, row)
        rows[runtime] = row
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of frames")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--model", default="small")
    parser.add_argument("--runtimes", nargs="+", default=RUNTIMES, choices=RUNTIMES)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    vectors = {
        runtime: encode_folder(options.root, options.vectors, options.model, runtime)
        for runtime in options.runtimes
    }
    texts = [text for text, _ in vectors[REFERENCE].texts]
    light = LightModel.open(options.model)
    rows = measure(vectors, encode_texts(options.model, texts, options.vectors), light.bank)
    base = rows[REFERENCE]["mean_of_frames"]["R@1"]
    checks = {
        "largest_difference_of_r1": max(
            round(abs(row["mean_of_frames"]["R@1"] - base), 2) for row in rows.values()
        ),
        "largest_distance_of_a_frame": max(
            1 - row["least_cosine_of_a_frame_with_torch"] for row in rows.values()
        ),
    }
    first = vectors[REFERENCE]
    result = {
        "model": options.model,
        "videos": len(first.items),
        "frames": int(first.mask.sum()),
        "queries": len(texts),
        "goals": {"r1": MAX_R1_DIFFERENCE, "distance": MAX_COSINE_DIFFERENCE},
        **checks,
        "runtimes": rows,
    }
    print(checks)
    if options.save:
        print(save_result("runtimes", result))


if __name__ == "__main__":
    main()
