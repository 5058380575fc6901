"""Queries with steps in time ("a" then "b"), compared with the plain text "a and then b".

python benchmarks/moments.py --clips FOLDER --captions manifest.tsv --arrays CACHE.npz
python benchmarks/sequences.py --arrays CACHE.npz [--demo]

CACHE.npz has the frames and captions that the first command encoded. Every query has two videos in
the gallery, joined from the same clips: the right one shows its two steps in the order of the
query, the other in reverse. A text ranks videos by their best clip, steps rank as in
``eaglenet search``.

Pairs are drawn ten times with fixed seeds from the sources of the cache, which the result describes
(``material``). Rows are means over the draws and their standard deviation, because single draws
differ: with one seed, the R@1 of steps is 59 with the six clips of exactly two seconds and 54
without them, and with other seeds it is 51 to 54 with them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.folder import load
from eaglenet.search.sequences import rank_sequences
from moments import Source, cut, describe_material, encode_text, load_sources

PAIRS, DRAWS = 100, 10
RANKS = (1, 2, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", type=Path, required=True)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    name = "demo" if options.demo else options.model
    method = load(name).eval()
    sources = load_sources(options.arrays)
    bank = model_hubness_bank(method, name)
    recalls = [measure(method, sources, bank, seed) for seed in range(DRAWS)]
    rows = []
    for kind in recalls[0]:
        values = np.array([own[kind] for own in recalls])
        row: dict[str, Any] = {"query": kind}
        for number, k in enumerate(RANKS):
            row[f"R@{k}"] = round(float(values[:, number].mean()), 1)
            row[f"R@{k} deviation"] = round(float(values[:, number].std(ddof=1)), 1)
        rows.append(row)
        print(row)
    result = {
        "model": name,
        "material": describe_material(sources),
        "draws": DRAWS,
        "queries_per_draw": PAIRS,
        "videos": 2 * PAIRS,
        "rows": rows,
    }
    print(save_result("sequences-demo" if options.demo else "sequences", result, options.output))


def measure(method: Any, sources: list[Source], bank: Any, seed: int) -> dict[str, list[float]]:
    """Return the recalls in percent at ``RANKS`` for one draw of pairs, by kind of query."""
    generator = np.random.default_rng(seed)
    videos: list[list[Source]] = []
    pairs = []
    for _ in range(PAIRS):
        first, second, *others = (
            sources[number] for number in generator.choice(len(sources), 5, replace=False)
        )
        pairs.append((first, second))
        videos.append([others[0], first, others[1], second, others[2]])
        videos.append([others[0], second, others[1], first, others[2]])
    windows = [cut(video, np.cumsum([source.duration for source in video])) for video in videos]
    owners = np.concatenate([np.full(len(own), number) for number, own in enumerate(windows)])
    clips = [window for own in windows for window in own]
    vectors = np.stack([clip.frames.mean(axis=0) for clip in clips])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    offsets = np.zeros(len(clips)) if bank is None else bank.offsets(vectors)
    counts = [len(clip.frames) for clip in clips]
    frames, seconds = (
        np.concatenate([getattr(clip, part) for clip in clips]) for part in ("frames", "seconds")
    )
    frame_offsets = np.repeat(offsets, counts)
    ranks: dict[str, list[int]] = {"text": [], "steps": []}
    for number, (first, second) in enumerate(pairs):
        text = encode_text(method, f"{first.caption} and then {second.caption}")
        best = np.full(len(videos), -np.inf)
        np.maximum.at(best, owners, vectors @ text - offsets)
        ranks["text"].append(int((best >= best[2 * number]).sum()))
        scores = np.stack(
            [
                (frames @ step.text + np.repeat(vectors @ step.text, counts)) / 2 - frame_offsets
                for step in (first, second)
            ]
        )
        sequences = rank_sequences(scores, seconds, np.repeat(owners, counts), k=len(videos))
        order = [int(np.repeat(owners, counts)[sequence.frames[0]]) for sequence in sequences]
        ranks["steps"].append(order.index(2 * number) + 1)
    return {
        kind: [float(np.mean(np.array(own) <= k) * 100) for k in RANKS]
        for kind, own in ranks.items()
    }


if __name__ == "__main__":
    main()
