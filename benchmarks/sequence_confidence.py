"""Confidence of sequences: fits its weights on joined videos, and measures them on others.

python benchmarks/sequence_confidence.py --root TEST --vectors CACHE [--arrays CLIPS.npz] [--save]

TEST is a folder of frames (`eaglenet data frames`) that the model was not trained on; its vectors
are stored in CACHE, as for benchmarks/confidence.py. Videos are joined from three or five items of
ten seconds each. A query has two or three steps, each a caption of an item of one video, in order.
In a fifth of the searches no video shows the sequence: its steps are in different videos, in
reverse order, or in no video. Weights fitted to one half of the items are measured on the other
half. CLIPS.npz (benchmarks/moments.py) has real clips, which are joined and cut as a store does, to
measure on other material. ``--save`` fits with all items and writes the file of the model.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import SCALE, Trials, calibration_error, fit_weights, roc_auc
from common import save_result
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.light_model import LightModel, unit
from eaglenet.search.confidence import FEATURES, MIN_LIKELY, Calibration, make_evidence
from eaglenet.search.hit import LIKELY, SURE
from eaglenet.search.sequences import STEP_FILES, rank_sequences
from frame_vectors import encode_folder, encode_texts
from moments import CLIP_SECONDS, Source, cut, describe_material, load_sources

Vectors = NDArray[np.float32]
ABSENT_SHARE, MIN_VIDEOS = 0.2, 10
SEARCHES, SEARCHES_PER_GALLERY = 2_400, 20
KINDS = ("apart", "reversed", "removed")
"""Reasons for which no video shows a sequence."""


@dataclass(frozen=True)
class Item:
    """Source of a joined video with the vectors of its captions."""

    source: Source
    texts: Vectors


@dataclass(frozen=True)
class Search:
    """The first sequence that a search returns: its evidence, and whether it is right."""

    evidence: NDArray[np.float64]
    is_right: bool
    num_steps: int
    absence: str
    """One of ``KINDS``, or empty if a video shows the sequence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="frames of unseen items")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--arrays", type=Path, default=None, help="cache of benchmarks/moments.py")
    parser.add_argument("--model", default="small")
    parser.add_argument("--save", action="store_true", help="write the calibration of the model")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    light = LightModel.open(options.model)
    bank = model_hubness_bank(light, options.model)
    assert bank is not None, "confidences are measured with the model's own hubness bank"
    items = load_items(options.root, options.vectors, options.model)
    order = np.random.default_rng(0).permutation(len(items))
    halves = [[items[number] for number in order[first::2]] for first in (0, 1)]
    draws = [draw_searches(half, bank, seed) for seed, half in enumerate(halves, 1)]
    rows = [
        {"fitted_to": f"half {2 - number}", "measured_on": f"half {number + 1}", **measure(own, w)}
        for number, own in enumerate(draws)
        for w in (fit(draws[1 - number]),)
    ]
    weights = fit([*draws[0], *draws[1]])
    result: dict[str, Any] = {"model": options.model, "items": len(items), "rows": rows}
    if options.arrays is not None:
        sources = load_sources(options.arrays)
        clips = [Item(source, source.text[None]) for source in sources]
        others = draw_searches(clips, bank, seed=3)
        row = {"fitted_to": "both halves", "measured_on": "clips", **measure(others, weights)}
        rows.append(row)
        result["material"] = describe_material(sources)
    print(*rows, sep="\n")
    print(save_result("sequence-confidence", result, options.output))
    calibration = Calibration.load(light.folder)
    if options.save and calibration is not None:
        pairs = zip(FEATURES, weights, strict=True)
        weight_of = {name: round(float(value), 6) for name, value in pairs}
        replace(calibration, sequences=weight_of).save(light.folder)


def load_items(root: Path, cache: Path, model: str) -> list[Item]:
    """Load the items of a folder of frames, ten seconds each, with their captions."""
    vectors = encode_folder(root, cache, model, "int8")
    texts = encode_texts(model, [text for text, _ in vectors.texts], cache)
    owners = np.array([number for _, number in vectors.texts])
    items = []
    for number, item in enumerate(vectors.items):
        frames = unit(vectors.frames[number][vectors.mask[number]])
        seconds = (np.arange(len(frames)) + 0.5) * CLIP_SECONDS / len(frames)
        own_texts = texts[owners == number]
        source = Source(item.id, "", frames, seconds, CLIP_SECONDS, own_texts[0])
        items.append(Item(source, own_texts))
    return items


def draw_searches(items: list[Item], bank: Any, seed: int) -> list[Search]:
    """Search in galleries of joined videos; an item occurs at most once in a gallery."""
    generator = np.random.default_rng(seed)
    searches: list[Search] = []
    while len(searches) < SEARCHES:
        length = int(generator.choice((3, 5)))
        order = generator.permutation(len(items))
        max_count = max(len(items) // length - 1, 1)
        sizes = np.log((min(MIN_VIDEOS, max_count), max_count))
        count = round(float(np.exp(generator.uniform(*sizes))))
        videos = order[: count * length].reshape(count, length)
        spare = order[count * length :]
        gallery = Gallery([[items[number].source for number in own] for own in videos], bank)
        for _ in range(SEARCHES_PER_GALLERY):
            searches.append(_search(generator, items, videos, spare, gallery))
    return searches


def _search(
    generator: np.random.Generator,
    items: list[Item],
    videos: NDArray[np.int64],
    spare: NDArray[np.int64],
    gallery: Gallery,
) -> Search:
    count, length = videos.shape
    num_steps = int(generator.integers(2, 4))
    target = int(generator.integers(count))
    steps = videos[target][np.sort(generator.choice(length, num_steps, replace=False))]
    absence = str(generator.choice(KINDS)) if generator.random() < ABSENT_SHARE else ""
    if absence == "apart":
        rows = generator.choice(count, num_steps, replace=False)
        steps = videos[rows, generator.integers(length, size=num_steps)]
    elif absence == "reversed":
        steps = steps[::-1]
    elif absence == "removed":
        steps = generator.choice(spare, num_steps, replace=False)
    texts = [generator.choice(items[number].texts) for number in steps]
    video, evidence = gallery.find_first(np.stack(texts))
    return Search(evidence, not absence and video == target, num_steps, absence)


class Gallery:
    """Joined videos, which are cut and scored as in a store."""

    def __init__(self, videos: list[list[Source]], bank: Any) -> None:
        windows = [cut(own, np.cumsum([source.duration for source in own])) for own in videos]
        clips = [window for own in windows for window in own]
        counts = [len(clip.frames) for clip in clips]
        self.num_files = len(videos)
        self.vectors = unit(np.stack([clip.frames.mean(axis=0) for clip in clips]))
        self.offsets = bank.offsets(self.vectors)
        self.clips = np.repeat(np.arange(len(clips)), counts)
        owners = np.repeat(np.arange(len(windows)), [len(own) for own in windows])
        self.files = owners[self.clips]
        self.frames = np.concatenate([clip.frames for clip in clips])
        self.seconds = np.concatenate([clip.seconds for clip in clips])

    def find_first(self, texts: Vectors) -> tuple[int, NDArray[np.float64]]:
        """Return the video of the best sequence, and the evidence for it."""
        cosines = texts @ self.vectors.T
        scores = (texts @ self.frames.T + cosines[:, self.clips]) / 2 - self.offsets[self.clips]
        sequences = rank_sequences(scores, self.seconds, self.files, k=STEP_FILES)
        evidence = make_evidence(
            len(texts) * np.array([sequence.score for sequence in sequences]),
            SCALE,
            mean=len(texts) * float((cosines - self.offsets).mean()),
            num_clips=self.num_files,
        )
        return int(self.files[sequences[0].frames[0]]), evidence[0]


def fit(searches: list[Search]) -> NDArray[np.float64]:
    """Fit weights by logistic regression."""
    evidence = np.stack([search.evidence for search in searches])
    is_right = np.array([search.is_right for search in searches])
    return fit_weights(Trials(evidence, is_right, is_right, is_right, np.zeros(len(is_right), int)))


def measure(searches: list[Search], weights: NDArray[np.float64]) -> dict[str, Any]:
    """Return AUC, calibration errors in all and by number of steps, and fractions of right hits."""
    evidence = np.stack([search.evidence for search in searches])
    values = 1 / (1 + np.exp(-evidence @ weights))
    right = np.array([search.is_right for search in searches])
    steps = np.array([search.num_steps for search in searches])
    absences = np.array([search.absence for search in searches])
    result = {
        "right_first": float(right.mean()),
        "auc": roc_auc(values, right),
        "calibration_error": calibration_error(values, right),
        **{
            f"calibration_error_{n}_steps": calibration_error(values[steps == n], right[steps == n])
            for n in (2, 3)
        },
        "right_of_sure": float(right[values >= SURE].mean()),
        "right_of_likely": float(right[(values >= LIKELY) & (values < SURE)].mean()),
        "right_of_unlikely": float(right[values < LIKELY].mean()),
        "nothing_where_first_is_right": float((values[right] < MIN_LIKELY).mean()),
        **{f"nothing_where_{k}": float((values[absences == k] < MIN_LIKELY).mean()) for k in KINDS},
    }
    return {"searches": len(searches), **{name: round(v, 4) for name, v in result.items()}}


if __name__ == "__main__":
    main()
