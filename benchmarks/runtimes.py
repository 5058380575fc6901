"""One model in three runtimes: cosines of their frames and R@1 of searches, on real frames.

    python benchmarks/runtimes.py --root TEST --vectors CACHE [--save]

TEST is a folder of frames with captions that the model was not trained on (`eaglenet data frames`).
Every caption is a query over all videos, once by the mean of a video's frames and once with the
model's hubness bank, as searches rank. `torch` computes in fp32, the others are onnxruntime.
Vectors are kept in CACHE (benchmarks/frame_vectors.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.models.light_model import LightModel, unit
from frame_vectors import RUNTIMES, Vectors, encode_folder, encode_texts

MAX_R1_DIFFERENCE, MAX_COSINE_DIFFERENCE = 0.2, 1e-3
REFERENCE = "torch"


def recalls(scores: NDArray[np.float32], owners: NDArray[np.int64]) -> dict[str, float]:
    """R@1, R@5 and R@10 in percent; equal scores count as better than the right one."""
    own = scores[np.arange(len(owners)), owners]
    ranks = (scores >= own[:, None]).sum(axis=1)
    return {f"R@{k}": round(100 * float((ranks <= k).mean()), 2) for k in (1, 5, 10)}


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
            "mean_of_frames": recalls(scores, owners),
            "with_hubness_bank": recalls(scores - bank.offsets(clips), owners),
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
    """Read the options, encode, measure, print and check."""
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
