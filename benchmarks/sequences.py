"""Steps in time against the whole sentence: "a" then "b", and "a and then b" as one text.

python benchmarks/moments.py --clips FOLDER --captions manifest.tsv --arrays CACHE.npz
python benchmarks/sequences.py --arrays CACHE.npz [--demo]

CACHE.npz holds the frames and captions that the first command encoded. Every query has two videos
in the gallery, joined from the same clips: one shows its two steps in the right order, the other in
reverse. The first is the right one. A sentence ranks videos by their best clip, steps rank as
``eaglenet search`` does.

The confidence of the first sequence is compared with whether it is right, in galleries that show
every clip once, in videos of three; the steps of a fifth of the queries are in different videos.

Pairs and galleries are drawn with a fixed seed from the sources of the cache; the result names
these (``material``). Compare only results of the same material: six of 79 clips more or less
change the first row by five points.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import calibration_error, roc_auc
from common import save_result
from eaglenet.core.hits import LIKELY, SURE
from eaglenet.indexing.hubness import model_hubness_bank
from eaglenet.models.files import model_folder
from eaglenet.models.folder import load
from eaglenet.search.confidence import MIN_LIKELY, Calibration, joint_confidence
from eaglenet.search.sequences import rank_sequences
from moments import Source, Window, cut, describe_material, encode_text, load_sources

PAIRS = 100
ROUNDS, QUERIES, ABSENT = 30, 40, 0.2
"""Galleries, queries per gallery, and the share of queries that no video shows."""


def main() -> None:
    """Read the options, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", type=Path, required=True)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    given = parser.parse_args()
    name = "demo" if given.demo else given.model
    method = load(name).eval()
    sources = load_sources(given.arrays)
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
        text = encode_text(method, f"{first.caption} and then {second.caption}")
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
    result = {
        "model": name,
        "material": describe_material(sources),
        "queries": PAIRS,
        "videos": len(videos),
        "rows": rows,
    }
    folder = model_folder(name)
    calibration = None if folder is None else Calibration.load(folder)
    if calibration is not None and bank is not None:
        result["confidence"] = measure_confidence(sources, bank, calibration)
        print(result["confidence"])
    print(save_result("sequences-demo" if given.demo else "sequences", result, given.output))


def measure_confidence(
    sources: list[Source], bank: Any, calibration: Calibration
) -> dict[str, Any]:
    """Compare the confidence of the first sequence with whether it is the right one."""
    generator = np.random.default_rng(0)
    confidences, is_right, is_absent = [], [], []
    for _ in range(ROUNDS):
        order = generator.permutation(len(sources))[: len(sources) // 3 * 3].reshape(-1, 3)
        videos = [[sources[number] for number in own] for own in order]
        windows = [cut(own, np.cumsum([source.duration for source in own])) for own in videos]
        for _ in range(QUERIES):
            numbers = generator.choice(len(videos), 2, replace=False)
            absent = generator.random() < ABSENT
            if absent:
                steps = [videos[number][generator.integers(3)] for number in numbers]
            else:
                places = sorted(generator.choice(3, 2, replace=False))
                steps = [videos[numbers[0]][place] for place in places]
            video, confidence = find_first(windows, steps, bank, calibration)
            confidences.append(confidence)
            is_right.append(not absent and video == numbers[0])
            is_absent.append(absent)
    values, right = np.array(confidences), np.array(is_right)
    nothing = values < MIN_LIKELY
    return {
        "searches": len(values),
        "videos": len(sources) // 3,
        "right_first": float(right.mean()),
        "auc": roc_auc(values, right),
        "calibration_error": calibration_error(values, right),
        "right_of_sure": float(right[values >= SURE].mean()),
        "right_of_likely": float(right[(values >= LIKELY) & (values < SURE)].mean()),
        "right_of_unlikely": float(right[values < LIKELY].mean()),
        "nothing_where_absent": float(nothing[np.array(is_absent)].mean()),
        "nothing_where_first_is_right": float(nothing[right].mean()),
    }


def find_first(
    windows: list[list[Window]], steps: list[Source], bank: Any, calibration: Calibration
) -> tuple[int, float]:
    """Video of the best sequence, and its confidence; ``windows``: clips of each video."""
    clips = [window for own in windows for window in own]
    owners = np.repeat(np.arange(len(windows)), [len(own) for own in windows])
    vectors = np.stack([clip.frames.mean(axis=0) for clip in clips])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    offsets = bank.offsets(vectors)
    clip_of_frame = np.repeat(np.arange(len(clips)), [len(clip.frames) for clip in clips])
    frames, seconds = (
        np.concatenate([getattr(clip, part) for clip in clips]) for part in ("frames", "seconds")
    )
    cosines: list[NDArray[np.float32]] = [vectors @ step.text for step in steps]
    scores = np.stack(
        [
            (frames @ step.text + own[clip_of_frame]) / 2 - offsets[clip_of_frame]
            for step, own in zip(steps, cosines, strict=True)
        ]
    )
    best = rank_sequences(scores, seconds, owners[clip_of_frame], k=1)[0]
    own_confidences = []
    for frame, own in zip(best.frames, cosines, strict=True):
        values = own - offsets
        likely = calibration.confidences(
            values, mean=float(values.mean()), num_clips=len(clips), files=owners
        )
        own_confidences.append(float(likely[clip_of_frame[frame]]))
    confidence = joint_confidence(own_confidences, num_files=len(windows))
    assert confidence is not None
    return int(owners[clip_of_frame[best.frames[0]]]), confidence


if __name__ == "__main__":
    main()
