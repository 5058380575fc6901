"""More evidence for confidence that was tried: does it tell right hits from wrong ones?

python benchmarks/confidence_candidates.py FEATURES --root TEST --subjects MSRVTT_data.json \
    --vectors CACHE

FEATURES is that of benchmarks/confidence_features.py, TEST and CACHE those of
benchmarks/confidence.py. Candidates, each fitted in five folds together with what ships:

twin: highest cosine of the hit with one of the other first hits, whose lead then means less.
generic: similarity of the text to those of the hubness bank; a generic text fits many videos.

The number of clips is part of what ships. Coarse and exact ranks of ``small`` are equal, so that
their agreement says nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import HITS, AddEvidence, Gallery, cross_fit, draw_trials, measure, score_texts
from common import save_result
from confidence import ABSENT_SHARE, FITTED_SIZES, read_subjects
from confidence_features import make_gallery
from eaglenet.indexing.hubness import model_hubness_bank
from eaglenet.models.light_model import LightModel
from eaglenet.search.confidence import FEATURES
from eaglenet.store.hubness import TEMPERATURE, HubnessBank
from frame_vectors import encode_folder, encode_texts

Array = NDArray[np.float32]
SIZES, SEARCHES = (100, 300, 1_000, 3_000), 4_000
FIRST_HITS = 12
"""Hits among which twins are looked for."""
CANDIDATES = {"shipped": (), "twin": (0,), "generic": (1,), "both": (0, 1)}


def main() -> None:
    """Read the options, encode or load, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of stored features")
    parser.add_argument("--root", type=Path, required=True, help="frames of unseen items")
    parser.add_argument("--subjects", type=Path, required=True, help="MSRVTT_data.json")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    gallery, texts, clips, _, bank = make_gallery(options.features, options.subjects)
    rows = measure_sizes("stored features", gallery, evidence_of(texts, clips, bank))
    folder = encode_folder(options.root, options.vectors, options.model, "int8")
    own_bank = model_hubness_bank(LightModel.open(options.model), options.model)
    assert own_bank is not None
    texts = encode_texts(options.model, [text for text, _ in folder.texts], options.vectors)
    gallery = Gallery(
        score_texts(texts, folder.clips, own_bank.offsets(folder.clips)),
        np.array([number for _, number in folder.texts]),
        read_subjects(options.subjects, [item.id for item in folder.items]),
    )
    rows += measure_sizes(options.model, gallery, evidence_of(texts, folder.clips, own_bank))
    result = {"searches": SEARCHES, "rows": rows}
    print(save_result("confidence-candidates", result, options.output))


def evidence_of(texts: Array, clips: Array, bank: HubnessBank) -> AddEvidence:
    """Return a function that computes the candidates for the first hits of a text."""
    similarities = TEMPERATURE * (texts @ bank.vectors.T)
    highest = similarities.max(axis=1)
    generic = highest + np.log(np.exp(similarities - highest[:, None]).mean(axis=1))

    def add(text: int, members: NDArray[np.int64]) -> NDArray[np.float64]:
        first = clips[members[:FIRST_HITS]]
        cosines = first[:HITS] @ first.T
        cosines[np.arange(HITS), np.arange(HITS)] = -1.0
        columns = cosines.max(axis=1), np.full(HITS, generic[text])
        return np.stack(columns, axis=1).astype(np.float64)

    return add


def measure_sizes(name: str, gallery: Gallery, add: AddEvidence) -> list[dict[str, Any]]:
    """AUC and calibration error of first hits with each candidate, at each size."""
    sizes = [size for size in SIZES if gallery.can_lack_subjects(size)]
    fitting = draw_trials(
        gallery,
        sizes=(FITTED_SIZES[0], min(FITTED_SIZES[1], sizes[-1])),
        count=SEARCHES,
        absent_share=ABSENT_SHARE,
        add_evidence=add,
    )
    rows = []
    for size in sizes:
        trials = draw_trials(
            gallery,
            sizes=(size, size),
            count=SEARCHES,
            absent_share=ABSENT_SHARE,
            seed=1,
            add_evidence=add,
        )
        row: dict[str, Any] = {"towers": name, "gallery": size}
        for candidate, columns in CANDIDATES.items():
            chosen = [*range(len(FEATURES)), *(len(FEATURES) + column for column in columns)]
            own, others = (
                replace(each, evidence=each.evidence[:, chosen]) for each in (trials, fitting)
            )
            measured = measure(own, cross_fit(others, own))
            row[candidate] = {key: measured[key] for key in ("auc", "calibration_error")}
        print(row, flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
