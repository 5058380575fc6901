"""Quality of confidence: how well it separates right hits from wrong ones. Fits the calibration.

python benchmarks/confidence.py --root TEST --subjects MSRVTT_data.json [LABELS.json] \
    --vectors CACHE [--distractors FRAMES ...] [--photographs PHOTOS] [--name NAME] [--save]

TEST, FRAMES and PHOTOS are folders of frames (`eaglenet data frames`). Every caption of an item of
TEST is a query. Galleries of each size are drawn from TEST and the distractors. In a fifth of the
searches, no item of the gallery has a subject of the query, if enough items have known subjects:
categories of MSR-VTT, or JSON with the labels of each item. A row measures weights that were fitted
to galleries of 100 to 1,000 items without the query's item (five folds); its `shipped` are the
weights of the model. With PHOTOS, weights are also fitted to searches for its captions among its
items, and measured with these (``photographs``) and with captions of TEST among the items of TEST,
FRAMES and PHOTOS (``both``). ``--save`` writes the weights, fitted with all items, into the model
folder. Vectors are stored in CACHE (benchmarks/frame_vectors.py). The result is written to
`results/NAME-cpu.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import (
    Gallery,
    Trials,
    cross_fit,
    draw_trials,
    join_trials,
    make_calibration,
    measure,
    roc_auc,
    score_texts,
)
from common import environment, save_result
from eaglenet.core.files import read_json
from eaglenet.indexing.model import model_hubness_bank
from eaglenet.models.light_model import LightModel
from eaglenet.search.confidence import FEATURES, Calibration
from frame_vectors import encode_folder, encode_texts

SIZES = (100, 300, 1_000, 3_000, 10_000)
FITTED_SIZES = (100, 1_000)
ABSENT_SHARE = 0.2
FITTED, MEASURED = 12_000, 6_000
"""Number of searches to which weights are fitted, and on which each row is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="frames of unseen items")
    parser.add_argument(
        "--subjects", nargs="+", type=Path, required=True, help="MSRVTT_data.json, labels of PHOTOS"
    )
    parser.add_argument("--distractors", nargs="*", type=Path, default=(), help="more frames")
    parser.add_argument("--photographs", type=Path, default=None, help="other unseen items")
    parser.add_argument("--items", type=int, default=None, help="items of each folder, at most")
    parser.add_argument("--vectors", type=Path, required=True, help="folder where vectors are kept")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="items of galleries")
    parser.add_argument("--model", default="small")
    parser.add_argument("--name", default="confidence", help="name of the result")
    parser.add_argument("--save", action="store_true", help="write the calibration of the model")
    options = parser.parse_args()
    folders = [
        encode_folder(root, options.vectors, options.model, "int8", options.items)
        for root in (options.root, *options.distractors)
    ]
    light = LightModel.open(options.model)
    bank = model_hubness_bank(light, options.model)
    assert bank is not None, "confidences are measured with the model's own hubness bank"
    clips = np.concatenate([folder.clips for folder in folders])
    queries = folders[0].texts
    texts = encode_texts(options.model, [text for text, _ in queries], options.vectors)
    owners = np.array([number for _, number in queries])
    ids = [item.id for folder in folders for item in folder.items]
    gallery = Gallery(
        score_texts(texts, clips, bank.offsets(clips)),
        owners,
        read_subjects(options.subjects[0], ids),
    )
    fitting = draw_fitting(gallery)
    galleries = {"videos": gallery}
    if options.photographs is not None:
        photographs = encode_folder(
            options.photographs, options.vectors, options.model, "int8", options.items
        )
        captions = encode_texts(
            options.model, [text for text, _ in photographs.texts], options.vectors
        )
        offsets = bank.offsets(photographs.clips)
        galleries["photographs"] = Gallery(
            score_texts(captions, photographs.clips, offsets),
            np.array([number for _, number in photographs.texts]),
            read_subjects(options.subjects[-1], [item.id for item in photographs.items]),
        )
        fitting = join_trials(fitting, draw_fitting(galleries["photographs"]))
        others = score_texts(texts, photographs.clips, offsets)
        scores = np.concatenate([gallery.scores, others], axis=1)
        galleries["both"] = Gallery(scores, owners, np.zeros((scores.shape[1], 1), bool))
    calibration = Calibration.load(light.folder)
    rows = [
        {"files": name, **row}
        for name, each in galleries.items()
        for row in measure_sizes(each, calibration, fitting, options.sizes)
    ]
    result: dict[str, Any] = {
        "model": options.model,
        "queries": len(texts),
        "items": len(folders[0].items),
        "distractors": len(clips) - len(folders[0].items),
        "absent_share": ABSENT_SHARE,
        "auc_of_raw_cosines": round(raw_auc(texts @ folders[0].clips.T, owners), 4),
        "rows": rows,
    }
    print(save_result(options.name, result))
    if options.save:
        save(light, str(bank), fitting, rows)


def measure_sizes(
    gallery: Gallery, calibration: Calibration | None, fitting: Trials, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Measure at each size that the clips suffice for, with and without absent subjects."""
    num_clips = gallery.scores.shape[1]
    rows = []
    for size in (size for size in sizes if size <= num_clips):
        shares = (0.0, ABSENT_SHARE) if gallery.can_lack_subjects(size) else (0.0,)
        for share in shares:
            trials = draw_trials(
                gallery, sizes=(size, size), count=MEASURED, absent_share=share, seed=1
            )
            row = {"gallery": size, **measure(trials, cross_fit(fitting, trials))}
            if calibration is not None:
                row["shipped"] = measure(trials, confidences_of(calibration, trials))
            print(row)
            rows.append(row)
    return rows


def draw_fitting(gallery: Gallery) -> Trials:
    """Draw the searches for fitting; in a fifth of them the subject is absent, if possible."""
    absent_share = ABSENT_SHARE if gallery.can_lack_subjects(FITTED_SIZES[0]) else 0.0
    num_clips = gallery.scores.shape[1]
    last = max(
        size
        for size in range(*FITTED_SIZES, 50)
        if size <= num_clips and (not absent_share or gallery.can_lack_subjects(size))
    )
    return draw_trials(
        gallery, sizes=(FITTED_SIZES[0], last), count=FITTED, absent_share=absent_share
    )


def confidences_of(calibration: Calibration, trials: Trials) -> NDArray[np.float64]:
    """Return the confidences by the weights of a model."""
    weights = np.array([calibration.weights[name] for name in FEATURES])
    result: NDArray[np.float64] = 1 / (1 + np.exp(-trials.evidence @ weights))
    return result


def raw_auc(cosines: NDArray[np.float32], clip_of_text: NDArray[np.int64]) -> float:
    """Return the AUC of the plain cosine of the first hit, over all items of the test set."""
    is_right = cosines.argmax(axis=1) == clip_of_text
    return roc_auc(cosines.max(axis=1).astype(np.float64), is_right)


def save(light: LightModel, bank: str, trials: Trials, rows: list[dict[str, Any]]) -> None:
    """Fit with all items and write the file of the model."""
    # One row per gallery, with absent subjects if it has such a row.
    best = {(row["files"], row["gallery"]): row for row in rows}.values()
    measurement = {
        "date": environment()["date"][:10],
        "data": "test videos of MSR-VTT 1k-A, every caption a query, a fifth of the searches "
        "without any video of the query's category; photographs of COCO, sentences of COCO-QA; "
        "five folds",
        "galleries": [f"{row['gallery']} {row['files']}" for row in best],
        "auc": [row["auc"] for row in best],
        "calibration_error": [row["calibration_error"] for row in best],
        "command": "python benchmarks/confidence.py --photographs PHOTOS --save",
    }
    calibration = make_calibration(trials, light.identity, bank, measurement)
    earlier = Calibration.load(light.folder)
    if earlier is not None and (earlier.identity, earlier.hubness) == (light.identity, bank):
        # Weights for sequences (benchmarks/sequence_confidence.py) do not depend on these.
        calibration = replace(calibration, sequences=earlier.sequences)
    calibration.save(light.folder)
    print(light.folder)


def read_subjects(path: Path, ids: list[str]) -> NDArray[np.bool_]:
    """Read the subjects of each item, ``[items, subjects]``, by the last part of its id."""
    content = read_json(path)
    if "videos" in content:
        subjects_of = {row["video_id"]: [str(row["category"])] for row in content["videos"]}
    else:
        subjects_of = content
    names = sorted({name for own in subjects_of.values() for name in own})
    columns = {name: number for number, name in enumerate(names)}
    result = np.zeros((len(ids), len(names)), bool)
    for row, item in enumerate(ids):
        for name in subjects_of.get(item.split("-")[-1], ()):
            result[row, columns[name]] = True
    return result


if __name__ == "__main__":
    main()
