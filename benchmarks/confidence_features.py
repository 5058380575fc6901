"""Confidence with other towers than those of `small`, from stored features.

python benchmarks/confidence_features.py FEATURES --subjects MSRVTT_data.json [--name NAME]

FEATURES contains features of videos and captions by towers that were not trained together:
`frame_features.npy` [frames, dim], `sentence_features_int8.npy` with `sentence_scales.npy`, and
`index.json` with `video_ids`, `frames_per_video` and `captions_per_video`. Their common space is
learned in closed form (canonical correlations of mean frame and caption) on two thirds of the
videos. Captions of the other videos are searched as in benchmarks/confidence.py. The videos used
for learning are distractors, and some of their captions are the hubness bank.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import Gallery, score_texts
from common import save_result
from confidence import (
    ABSENT_SHARE,
    SIZES,
    draw_fitting,
    measure_sizes,
    raw_auc,
    read_subjects,
)
from eaglenet.core.files import read_json
from eaglenet.models.light_model import unit
from eaglenet.store.hubness import TEMPERATURE, HubnessBank

Array = NDArray[np.float32]
DIM, RIDGE = 192, 0.05
BANK_TEXTS, QUERIES_PER_VIDEO = 1_800, 5


@dataclass(frozen=True)
class Features:
    """Mean frame per video, and captions with the index of their video."""

    ids: list[str]
    videos: Array
    texts: Array
    owners: NDArray[np.int64]

    @classmethod
    def load(cls, folder: Path) -> Features:
        index = read_json(folder / "index.json")
        counts = np.array(index["frames_per_video"])
        frames = unit(np.load(folder / "frame_features.npy").astype(np.float32))
        videos = np.add.reduceat(frames, np.cumsum(counts) - counts, axis=0) / counts[:, None]
        captions = index["captions_per_video"]
        per_video = captions if isinstance(captions, list) else [captions] * len(counts)
        texts = np.load(folder / "sentence_features_int8.npy").astype(np.float32)
        texts *= np.load(folder / "sentence_scales.npy").astype(np.float32)
        owners = np.repeat(np.arange(len(counts)), per_video)
        return cls(index["video_ids"], videos.astype(np.float32), texts, owners)


def canonical_maps(texts: Array, videos: Array) -> tuple[Array, Array]:
    """Return maps of centred texts and videos to their most correlated directions.

    Directions are weighted by the roots of their correlations.
    """

    def whitening(values: Array) -> NDArray[np.float64]:
        covariance = (values.T @ values).astype(np.float64) / len(values)
        covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        eigenvalues, vectors = np.linalg.eigh(covariance)
        result: NDArray[np.float64] = vectors / np.sqrt(eigenvalues) @ vectors.T
        return result

    text_whitening, video_whitening = whitening(texts), whitening(videos)
    cross = text_whitening @ (texts.T @ videos / len(texts)) @ video_whitening
    first, correlations, second = np.linalg.svd(cross)
    weights = np.sqrt(correlations[:DIM])
    return (
        (text_whitening @ first[:, :DIM] * weights).astype(np.float32),
        (video_whitening @ second[:DIM].T * weights).astype(np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of stored features")
    parser.add_argument("--subjects", type=Path, required=True, help="MSRVTT_data.json")
    parser.add_argument("--name", default="confidence-features", help="name of the result")
    options = parser.parse_args()
    gallery, texts, clips, num_unseen, _ = make_gallery(options.features, options.subjects)
    result: dict[str, Any] = {
        "queries": len(texts),
        "items": num_unseen,
        "distractors": len(clips) - num_unseen,
        "absent_share": ABSENT_SHARE,
        "auc_of_raw_cosines": round(raw_auc(texts @ clips[:num_unseen].T, gallery.clip_of_text), 4),
        "rows": measure_sizes(gallery, None, draw_fitting(gallery), SIZES),
    }
    print(save_result(options.name, result))


def make_gallery(folder: Path, subjects: Path) -> tuple[Gallery, Array, Array, int, HubnessBank]:
    """Learn the space; return the gallery, its texts, its clips (unseen first) and the bank."""
    features = Features.load(folder)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(features.ids))
    unseen, training = np.split(order, [len(order) // 3])
    is_training = np.isin(features.owners, training)
    text_centre = features.texts[is_training].mean(axis=0)
    video_centre = features.videos[training].mean(axis=0)
    text_map, video_map = canonical_maps(
        features.texts[is_training] - text_centre,
        (features.videos - video_centre)[features.owners[is_training]],
    )
    clips = unit((features.videos - video_centre) @ video_map)[order]
    bank_rows = generator.choice(np.flatnonzero(is_training), BANK_TEXTS, replace=False)
    bank_vectors = unit((features.texts[bank_rows] - text_centre) @ text_map)
    bank = HubnessBank("of the training videos", bank_vectors, 1.0, TEMPERATURE)
    rows = np.concatenate(
        [np.flatnonzero(features.owners == video)[:QUERIES_PER_VIDEO] for video in unseen]
    )
    texts = unit((features.texts[rows] - text_centre) @ text_map)
    positions = np.empty_like(order)
    positions[order] = np.arange(len(order))
    owners = positions[features.owners[rows]]
    gallery = Gallery(
        score_texts(texts, clips, bank.offsets(clips)),
        owners,
        read_subjects(subjects, [features.ids[number] for number in order]),
    )
    return gallery, texts, clips, len(unseen), bank


if __name__ == "__main__":
    main()
