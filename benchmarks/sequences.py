"""Steps in time against the whole sentence: "a" then "b", and "a and then b" as one text.

python benchmarks/sequences.py --arrays CACHE.npz [--demo]

CACHE.npz is that of ``benchmarks/moments.py``. Every query has two videos in the gallery, joined
from the same clips: one shows its two steps in the right order, the other in reverse. The first is
the right one. A sentence ranks videos by their best clip, steps rank as ``eaglenet search`` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.indexing.hubness import model_hubness_bank
from eaglenet.models.folder import load
from eaglenet.search.sequences import rank_sequences
from moments import Source, cut, encode_text, load_sources

PAIRS = 100


def main() -> None:
    """Read the options, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", type=Path, required=True)
    parser.add_argument("--captions", type=Path, default=None, help="table of file and caption")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    given = parser.parse_args()
    name = "demo" if given.demo else given.model
    method = load(name).eval()
    sources = load_sources(given.arrays)
    titles = {source.name: source.name for source in sources}
    if given.captions is not None:
        rows = [line.split("\t") for line in given.captions.read_text().splitlines()[1:]]
        titles.update({row[0]: row[1] for row in rows})
    generator = np.random.default_rng(0)
    videos: list[list[Source]] = []
    pairs = []
    for _ in range(PAIRS):
        first, second, *others = (
            sources[number] for number in generator.choice(len(sources), 5, replace=False)
        )
        pairs.append((first, second))
        videos.append([others[0], first, others[1], second, others[2]])
        videos.append([others[0], second, others[1], first, others[2]])
    bank = model_hubness_bank(method, name)
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
    levels = np.repeat(offsets, counts)
    ranks: dict[str, list[int]] = {"sentence": [], "steps": []}
    for number, (first, second) in enumerate(pairs):
        text = encode_text(method, f"{titles[first.name]} and then {titles[second.name]}")
        best = np.full(len(videos), -np.inf)
        np.maximum.at(best, owners, vectors @ text - offsets)
        ranks["sentence"].append(int((best >= best[2 * number]).sum()))
        scores = np.stack(
            [
                (frames @ step.text + np.repeat(vectors @ step.text, counts)) / 2 - levels
                for step in (first, second)
            ]
        )
        found = rank_sequences(scores, seconds, np.repeat(owners, counts), k=len(videos))
        order = [int(np.repeat(owners, counts)[sequence.frames[0]]) for sequence in found]
        ranks["steps"].append(order.index(2 * number) + 1)
    rows = [
        {"query": kind, **{f"R@{k}": float(np.mean(np.array(own) <= k) * 100) for k in (1, 2, 5)}}
        for kind, own in ranks.items()
    ]
    print(rows)
    result = {"model": name, "queries": PAIRS, "videos": len(videos), "rows": rows}
    print(save_result("sequences-demo" if given.demo else "sequences", result, given.output))


if __name__ == "__main__":
    main()
