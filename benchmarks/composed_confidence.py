"""Calibration of the confidence of composed queries with the weights for plain texts.

python benchmarks/composed_confidence.py --root TEST --subjects MSRVTT_data.json --vectors CACHE

TEST and CACHE are those of benchmarks/confidence.py. Every caption of an item is a query by itself,
plus another caption of the item (``"a" + "b"``), minus a caption of another item (``"a" - "b"``),
and plus a frame of the item, which is then removed from its clip (``"a" + image``). Parts are
scaled and added as in a search. `shipped` are the weights of the model, `refitted` those of five
folds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import Gallery, cross_fit, draw_trials, measure
from common import save_result
from confidence import ABSENT_SHARE, FITTED_SIZES, confidences_of, read_subjects
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.light_model import LightModel, unit
from eaglenet.search.confidence import Calibration
from eaglenet.search.grammar import SUBTRACTED_WEIGHT
from frame_vectors import Vectors, encode_folder, encode_texts

Scores = NDArray[np.float32]
SIZES, SEARCHES = (100, 300), 4_000
NAMES = ("auc", "calibration_error", "nothing_where_absent", "nothing_where_first_is_right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="frames of unseen items")
    parser.add_argument("--subjects", type=Path, required=True, help="MSRVTT_data.json or labels")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    folder = encode_folder(options.root, options.vectors, options.model, "int8")
    light = LightModel.open(options.model)
    bank, calibration = model_hubness_bank(light, options.model), Calibration.load(light.folder)
    assert bank is not None
    assert calibration is not None
    texts = encode_texts(options.model, [text for text, _ in folder.texts], options.vectors)
    owners = np.array([number for _, number in folder.texts])
    subjects = read_subjects(options.subjects, [item.id for item in folder.items])
    rows = []
    for kind, scores in compose(folder, texts, owners, bank.offsets(folder.clips)).items():
        gallery = Gallery(scores, owners, subjects)
        fitting = draw_trials(
            gallery,
            sizes=(FITTED_SIZES[0], max(SIZES)),
            count=SEARCHES,
            absent_share=ABSENT_SHARE,
        )
        for size in SIZES:
            trials = draw_trials(
                gallery, sizes=(size, size), count=SEARCHES, absent_share=ABSENT_SHARE, seed=1
            )
            values = {
                "shipped": measure(trials, confidences_of(calibration, trials)),
                "refitted": measure(trials, cross_fit(fitting, trials)),
            }
            right = values["shipped"]["right_first"]
            row: dict[str, Any] = {"query": kind, "gallery": size, "right_first": right}
            row |= {of: {name: own[name] for name in NAMES} for of, own in values.items()}
            print(row)
            rows.append(row)
    result = {"model": options.model, "queries": len(texts), "searches": SEARCHES, "rows": rows}
    print(save_result("composed-confidence", result, options.output))


def compose(
    folder: Vectors, texts: Scores, owners: NDArray[np.int64], offsets: Scores
) -> dict[str, Scores]:
    """Return the scores of queries over clips, ``[queries, clips]``, by kind of query."""
    generator = np.random.default_rng(0)
    clips = folder.clips
    cosines = texts @ clips.T
    first = np.searchsorted(owners, owners)
    counts = np.bincount(owners)[owners]
    position = np.arange(len(texts)) - first
    shift = 1 + generator.integers(np.maximum(counts - 1, 1))
    same_item = first + (position + shift) % counts
    other_item = (np.arange(len(texts)) + len(texts) // 2) % len(texts)
    numbers = [int(generator.integers(mask.sum())) for mask in folder.mask]
    frames = unit(np.stack([own[n] for own, n in zip(folder.frames, numbers, strict=True)]))
    frame_cosines = frames @ clips.T
    for item, number in enumerate(numbers):
        mask = folder.mask[item].copy()
        mask[number] = mask.sum() == 1  # The only frame of an item stays.
        rest = unit(folder.frames[item][mask].mean(axis=0)[None])[0]
        frame_cosines[item, item] = frames[item] @ rest
    images = frame_cosines[owners]
    return {
        "a": cosines - offsets,
        '"a" + "b"': add(cosines, cosines[same_item], 1.0) - offsets,
        '"a" - "b"': add(cosines, cosines[other_item], -SUBTRACTED_WEIGHT)
        - offsets * (1 - SUBTRACTED_WEIGHT) / (1 + SUBTRACTED_WEIGHT),
        '"a" + image': add(cosines, images, 1.0) - offsets / 2,
    }


def add(scores: Scores, others: Scores, weight: float) -> Scores:
    """Add a second part, as :class:`eaglenet.search.reranking.EncodedComposition` does."""
    spreads = scores.std(axis=1, keepdims=True) / others.std(axis=1, keepdims=True)
    result: Scores = ((scores + weight * spreads * others) / (1 + abs(weight))).astype(np.float32)
    return result


if __name__ == "__main__":
    main()
