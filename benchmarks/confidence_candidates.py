"""Candidates for more evidence of confidence, and their upper bound, on three separate splits.

python benchmarks/confidence_candidates.py FEATURES --root TEST --subjects MSRVTT_data.json \
    --vectors CACHE

FEATURES is that of benchmarks/confidence_features.py, TEST and CACHE those of
benchmarks/confidence.py. In each split, weights are fitted to one half of the videos (their
captions, searched among them) and measured on the other half. Candidates, each of which is fitted
together with the evidence that ships:

sharp: softmax of the hit with a scale of 100 instead of 30.
peak: cosine of the best frame of the hit minus that of its mean frame (stored features: none).
agreement: length of the mean of the hit's unit frames (stored features: none).
plain lead: lead by the cosine, without hubness offsets.
bank rank: logarithm of the fraction of the hubness bank that is nearer to the hit than the query.
twin: highest cosine of the hit with another first hit; its lead then means less.
density: mean cosine of the hit with the other first hits.
generic: similarity of the text to those of the hubness bank; a generic text fits many videos.
words: number of words of the text.
captions: an upper bound, not a candidate: how well the text fits the captions of the hit by other
people (TF-IDF, mean of the best three), and how much better than those of the next video.

``lenient`` measures the evidence that ships if a hit also counts as right when its captions fit the
text as well as those of the right video. ``by_chance`` is the calibration error of exact
confidences in the same number of searches.

The evidence that ships includes the number of clips. Coarse and exact ranks of ``small`` are equal,
so that their agreement is no evidence.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import (
    HITS,
    AddEvidence,
    Gallery,
    Trials,
    calibration_error,
    draw_trials,
    fit_weights,
    measure,
    score_texts,
)
from common import save_result
from confidence import ABSENT_SHARE, read_subjects
from confidence_features import make_gallery
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.light_model import LightModel, unit
from eaglenet.search.confidence import FEATURES, make_evidence
from eaglenet.store.hubness import TEMPERATURE, HubnessBank
from frame_vectors import encode_folder, encode_texts

Array = NDArray[np.float32]
Index = NDArray[np.int64]
SPLITS, FITTED, MEASURED = 3, 1_500, 1_000
"""Number of splits, and of searches per split for fitting and for measuring each row."""
SIZES = (100, 200, 1_000)
SHARP_SCALE = 100.0
FIRST_HITS = 12
"""Number of hits that are compared to find twins."""
NAMES = (
    *("sharp", "peak", "agreement", "plain lead", "bank rank", "twin", "density", "generic"),
    *("words", "captions"),
)
CHANCE_DRAWS = 20


@dataclass(frozen=True)
class Material:
    """Texts and clips of one tower.

    frames: unit frames per clip, zeros for padding, ``[clips, frames, dim]``; None if unknown.
    fits: how well a text fits the captions of a clip, ``[texts, clips]``; None if the captions are
        unknown.
    num_words: words per text; zeros if the captions are unknown.
    """

    gallery: Gallery
    texts: Array
    clips: Array
    bank: HubnessBank
    num_words: Index
    frames: Array | None = None
    fits: Array | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of stored features")
    parser.add_argument("--root", type=Path, required=True, help="frames of unseen items")
    parser.add_argument("--subjects", type=Path, required=True, help="MSRVTT_data.json")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--model", default="small")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    materials = {
        options.model: read_items(options.root, options.subjects, options.vectors, options.model),
        "stored features": read_features(options.features, options.subjects),
    }
    rows = [row for name, material in materials.items() for row in measure_splits(name, material)]
    result = {"splits": SPLITS, "fitted": FITTED, "measured": MEASURED, "rows": rows}
    print(save_result("confidence-candidates", result, options.output))


def read_items(root: Path, subjects: Path, cache: Path, model: str) -> Material:
    """Encode a folder of frames and its captions."""
    folder = encode_folder(root, cache, model, "int8")
    bank = model_hubness_bank(LightModel.open(model), model)
    assert bank is not None
    captions = [text for text, _ in folder.texts]
    owners = np.array([number for _, number in folder.texts])
    texts = encode_texts(model, captions, cache)
    gallery = Gallery(
        score_texts(texts, folder.clips, bank.offsets(folder.clips)),
        owners,
        read_subjects(subjects, [item.id for item in folder.items]),
    )
    num_words = np.array([len(text.split()) for text in captions])
    frames = unit(folder.frames) * folder.mask[:, :, None]
    fits = compare_captions(captions, owners, len(folder.items))
    return Material(gallery, texts, folder.clips, bank, num_words, frames.astype(np.float32), fits)


def read_features(folder: Path, subjects: Path) -> Material:
    """Learn the common space of stored features; the texts are those of other videos."""
    gallery, texts, clips, _, bank = make_gallery(folder, subjects)
    return Material(gallery, texts, clips, bank, np.zeros(len(texts), np.int64))


def compare_captions(captions: Sequence[str], owners: Index, num_clips: int) -> Array:
    """Return the TF-IDF cosine of each text with the captions of each clip: mean of the best three.

    A text is not compared with itself.
    """
    bags = [Counter(re.findall(r"[a-z0-9']+", text.lower())) for text in captions]
    documents = Counter(word for bag in bags for word in bag)
    # A word of a single caption matches nothing.
    words = [word for word, count in documents.items() if count > 1]
    columns = {word: number for number, word in enumerate(words)}
    vectors = np.zeros((len(bags), len(columns)), np.float32)
    for row, bag in enumerate(bags):
        for word in bag.keys() & columns.keys():
            vectors[row, columns[word]] = math.log(len(bags) / documents[word])
    vectors = unit(vectors)
    fits = np.zeros((len(bags), num_clips), np.float32)
    for clip in range(num_clips):
        own = np.flatnonzero(owners == clip)
        cosines = vectors @ vectors[own].T
        cosines[own, np.arange(len(own))] = -1.0
        fits[:, clip] = np.sort(cosines, axis=1)[:, -3:].mean(axis=1)
    return fits


def take_half(material: Material, clips: Index) -> Material:
    """Select clips and their texts."""
    positions = np.full(len(material.clips), -1)
    positions[clips] = np.arange(len(clips))
    gallery = material.gallery
    texts = np.flatnonzero(positions[gallery.clip_of_text] >= 0)
    own = Gallery(
        gallery.scores[np.ix_(texts, clips)],
        positions[gallery.clip_of_text[texts]],
        gallery.subjects[clips],
    )
    return Material(
        own,
        material.texts[texts],
        material.clips[clips],
        material.bank,
        material.num_words[texts],
        None if material.frames is None else material.frames[clips],
        None if material.fits is None else material.fits[np.ix_(texts, clips)],
    )


def evidence_of(material: Material) -> AddEvidence:
    """Return a function that computes the candidates for the first hits of a text.

    The last column is 1 if the captions of a hit fit as well as those of the right clip.
    """
    vectors = material.bank.vectors
    similarities = TEMPERATURE * (material.texts @ vectors.T)
    highest = similarities.max(axis=1)
    generic = highest + np.log(np.exp(similarities - highest[:, None]).mean(axis=1))
    nearest = np.sort(material.clips @ vectors.T, axis=1)
    others = np.arange(HITS), np.arange(HITS)

    def add(text: int, members: Index) -> NDArray[np.float64]:
        first, vector = members[:HITS], material.texts[text]
        scores = material.gallery.scores[text, members]
        cosines = material.clips[members] @ vector
        sharp = make_evidence(scores, SHARP_SCALE, mean=0.0, num_clips=len(members))[:HITS, 1]
        best, second = np.sort(cosines)[::-1][:2]
        lead = cosines[:HITS] - np.where(cosines[:HITS] >= best, second, best)
        nearer = [
            len(vectors) - np.searchsorted(nearest[clip], cosine) + 1
            for clip, cosine in zip(first, cosines[:HITS], strict=True)
        ]
        around = material.clips[first] @ material.clips[members[:FIRST_HITS]].T
        around[others] = -1.0
        twin = around.max(axis=1)
        around[others] = 0.0
        peak = agreement = np.zeros(HITS)
        if material.frames is not None:
            frames = material.frames[first]
            peak = (frames @ vector).max(axis=1) - cosines[:HITS]
            counts = (np.square(frames).sum(axis=2) > 0).sum(axis=1)
            agreement = np.linalg.norm(frames.sum(axis=1) / counts[:, None], axis=1)
        fit = margin = is_fit = np.zeros(HITS)
        if material.fits is not None:
            own = material.fits[text]
            top, next_best = np.sort(own)[::-1][:2]
            fit = own[first]
            margin = fit - np.where(fit >= top, next_best, top)
            is_fit = fit >= own[material.gallery.clip_of_text[text]]
        columns = (
            *(sharp, peak, agreement, lead, np.log(np.array(nearer) / len(vectors)), twin),
            *(around.mean(axis=1), np.full(HITS, generic[text])),
            *(np.full(HITS, material.num_words[text]), fit, margin, is_fit),
        )
        return np.stack(columns, axis=1).astype(np.float64)

    return add


def measure_splits(name: str, material: Material) -> list[dict[str, Any]]:
    """Measure each candidate at each size; return mean and deviation over the splits."""
    columns_of: dict[str, list[int]] = {"shipped": []}
    unknown = set() if material.frames is not None else {"peak", "agreement"}
    unknown |= set() if material.fits is not None else {"captions", "words"}
    for number, candidate in enumerate(NAMES):
        width = 2 if candidate == "captions" else 1
        if candidate not in unknown:
            columns_of[candidate] = list(range(number, number + width))
    columns_of["all but captions"] = list(range(len(NAMES) - 1))
    values: dict[tuple[int, str], list[dict[str, float]]] = {}
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(material.clips))
        halves = [take_half(material, np.sort(part)) for part in np.array_split(order, 2)]
        sizes = [size for size in SIZES if halves[1].gallery.can_lack_subjects(size)]
        fitting = draw(halves[0], (sizes[0], sizes[-1]), FITTED, 2 * split)
        for size in sizes:
            trials = draw(halves[1], (size, size), MEASURED, 2 * split + 1)
            lenient = [
                replace(part, is_right=part.is_right | (part.evidence[:, -1] > 0))
                for part in (fitting, trials)
            ]
            for candidate, columns in columns_of.items():
                own = rate(fitting, trials, columns)
                values.setdefault((size, candidate), []).append(own)
            if material.fits is not None:
                values.setdefault((size, "lenient"), []).append(rate(*lenient, []))
        print(name, split, flush=True)
    rows = []
    for (size, candidate), measurements in values.items():
        row: dict[str, Any] = {"towers": name, "gallery": size, "evidence": candidate}
        for key in measurements[0]:
            numbers = [each[key] for each in measurements]
            row[key] = [round(float(np.mean(numbers)), 4), round(float(np.std(numbers)), 4)]
        print(row, flush=True)
        rows.append(row)
    return rows


def draw(material: Material, sizes: tuple[int, int], count: int, seed: int) -> Trials:
    """Draw searches in one half of the videos."""
    return draw_trials(
        material.gallery,
        sizes=sizes,
        count=count,
        absent_share=ABSENT_SHARE,
        seed=seed,
        add_evidence=evidence_of(material),
    )


def rate(fitting: Trials, trials: Trials, columns: Sequence[int]) -> dict[str, float]:
    """Return AUC and calibration error of first hits with some of the candidates."""
    width = len(FEATURES)
    used_columns = [*range(width), *(width + column for column in columns)]
    weights = fit_weights(replace(fitting, evidence=fitting.evidence[:, used_columns]))
    confidences = 1 / (1 + np.exp(-trials.evidence[:, used_columns] @ weights))
    measurement = measure(trials, confidences)
    first = confidences[trials.is_first]
    generator = np.random.default_rng(0)
    by_chance = [
        calibration_error(first, generator.random(len(first)) < first) for _ in range(CHANCE_DRAWS)
    ]
    return {
        "right_first": measurement["right_first"],
        "auc": measurement["auc"],
        "calibration_error": measurement["calibration_error"],
        "by_chance": float(np.mean(by_chance)),
    }


if __name__ == "__main__":
    main()
