"""Confidence of searches with a filter: compared with the clips that pass, or with the whole store.

python benchmarks/confidence_filters.py FEATURES --subjects MSRVTT_data.json

FEATURES is that of benchmarks/confidence_features.py, and weights are fitted as there. A store has
300 or 1,000 clips. A filter passes a random tenth of them, or the clips of one category, which is
that of the text if the right clip passes. ``passes`` is how often the right clip passes the filter,
if the store has it (nine stores in ten). Measured is the first hit of each search.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import SCALE, Gallery, Trials, calibration_error, cross_fit, roc_auc
from common import save_result
from confidence import draw_fitting
from confidence_features import make_gallery
from eaglenet.search.confidence import MAX_RIVALS, MIN_CLIPS, make_evidence

SIZES = (300, 1_000)
PASSES = (1.0, 0.5, 0.0)
PRESENT_SHARE = 0.9
SEARCHES = 3_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of stored features")
    parser.add_argument("--subjects", type=Path, required=True, help="MSRVTT_data.json")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    gallery, *_ = make_gallery(options.features, options.subjects)
    fitting = draw_fitting(gallery)
    rows = [
        measure(gallery, fitting, size, passes, by_subject=by_subject)
        for size in SIZES
        for by_subject in (False, True)
        for passes in PASSES
    ]
    print(save_result("confidence-filters", {"searches": SEARCHES, "rows": rows}, options.output))


def measure(
    gallery: Gallery, fitting: Trials, size: int, passes: float, *, by_subject: bool
) -> dict[str, Any]:
    """Measure both comparisons for one kind of filter."""
    generator = np.random.default_rng(3)
    num_texts, num_clips = gallery.scores.shape
    evidence: dict[str, list[NDArray[np.float64]]] = {"passing clips": [], "whole store": []}
    right, targets = [], []
    for text in generator.integers(num_texts, size=SEARCHES):
        target = int(gallery.clip_of_text[text])
        clips = generator.permutation(np.delete(np.arange(num_clips), target))[:size]
        if generator.random() < PRESENT_SHARE:
            clips[0] = target
        does_pass = generator.random() < passes
        if by_subject:
            subject = target if does_pass else int(generator.integers(num_clips))
            passing = clips[gallery.subjects[clips][:, gallery.subjects[subject]].any(axis=1)]
            passing = passing if does_pass else passing[passing != target]
        else:
            others = generator.permutation(clips[clips != target])[: size // 10 - 1]
            passing = np.append(others, target) if does_pass and target in clips else others
        if len(passing) < MIN_CLIPS:
            continue
        scores = gallery.scores[text]
        mean = float(scores[clips].mean())
        own, rivals = (
            each[np.argsort(-scores[each], kind="stable")[:MAX_RIVALS]] for each in (passing, clips)
        )
        first = own[0]
        evidence["passing clips"].append(
            make_evidence(scores[own], SCALE, mean=mean, num_clips=len(passing))[0]
        )
        rivals = np.append(rivals[rivals != first], first)
        evidence["whole store"].append(
            make_evidence(scores[rivals], SCALE, mean=mean, num_clips=size)[-1]
        )
        right.append(first == target)
        targets.append(target)
    is_right, everywhere = np.array(right), np.ones(len(right), bool)
    row: dict[str, Any] = {
        "store": size,
        "filter": "category" if by_subject else "random tenth",
        "passes": passes,
        "searches": len(right),
        "right_first": round(float(is_right.mean()), 3),
    }
    for name, columns in evidence.items():
        trials = Trials(np.array(columns), is_right, everywhere, everywhere, np.array(targets))
        confidences = cross_fit(fitting, trials)
        row[name] = {
            "mean_confidence": round(float(confidences.mean()), 3),
            "calibration_error": round(calibration_error(confidences, is_right), 3),
            "auc": round(roc_auc(confidences, is_right), 3) if is_right.any() else None,
        }
    print(row)
    return row


if __name__ == "__main__":
    main()
