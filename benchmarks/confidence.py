"""How well confidence tells right hits from wrong ones, and the calibration that ships.

python benchmarks/confidence.py --root TEST --categories MSRVTT_data.json --arrays CACHE.npz \
    [--distractors FRAMES ...] [--model small] [--save]

TEST and FRAMES are folders of frames (`eaglenet data frames`). Every caption of the test videos is
a query. Galleries of each size are drawn from the test videos and the distractors; in a fifth of
the searches no video of the query's category is there. All numbers are of weights that were fitted
without the query's video (five folds). ``--save`` writes the weights, fitted with all videos,
into the model folder. CACHE.npz keeps the vectors: encoding takes most of the time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from calibration import (
    Gallery,
    cross_fit,
    draw_trials,
    make_calibration,
    measure,
    roc_auc,
    score_texts,
)
from common import environment, save_result
from eaglenet.core.files import read_json
from eaglenet.indexing.hubness import model_hubness_bank
from eaglenet.models.files import local_folder
from eaglenet.models.folder import load
from eaglenet.research.data.sources import DataChoice, Opening
from eaglenet.research.experiments.stored_data import open_frames
from eaglenet.research.training.epochs import index_chunks
from eaglenet.search.torch_model import model_identity

SIZES = (100, 300, 1_000, 3_000, 10_000)
ABSENT_SHARE = 0.2
FITTED, MEASURED = 12_000, 6_000
"""Searches that weights are fitted to, and that each row is measured on."""


def main() -> None:
    """Read the options, encode or load, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default="", help="folder of frames of the test videos")
    parser.add_argument("--split", default="test")
    parser.add_argument("--categories", type=Path, required=True, help="MSRVTT_data.json")
    parser.add_argument("--distractors", nargs="*", default=(), help="other folders of frames")
    parser.add_argument("--arrays", type=Path, required=True, help="where vectors are kept")
    parser.add_argument("--model", default="small")
    parser.add_argument("--save", action="store_true", help="write the calibration of the model")
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    given = parser.parse_args()
    method = load(given.model).eval()
    if not given.arrays.exists():
        encode(method, given)
    arrays = dict(np.load(given.arrays))
    bank = model_hubness_bank(method, given.model)
    assert bank is not None, "confidences are measured with the model's own hubness bank"
    clips = np.concatenate([arrays["clips"], arrays["distractors"]])
    scores = score_texts(arrays["texts"], clips, bank.offsets(clips))
    gallery = Gallery(
        scores,
        arrays["clip_of_text"],
        categories(given.categories, [*arrays["clip_ids"], *arrays["distractor_ids"]]),
    )
    rows = measure_sizes(gallery)
    raw = draw_raw(arrays["texts"] @ arrays["clips"].T, arrays["clip_of_text"])
    result: dict[str, Any] = {
        "model": given.model,
        "queries": len(arrays["texts"]),
        "videos": len(arrays["clips"]),
        "distractors": len(arrays["distractors"]),
        "absent_share": ABSENT_SHARE,
        "auc_of_raw_cosines": round(raw, 4),
        "rows": rows,
    }
    print(save_result("confidence", result, given.output))
    if given.save:
        save(method, given.model, str(bank), gallery, rows)


def measure_sizes(gallery: Gallery) -> list[dict[str, Any]]:
    """Measure at each size that the clips allow, with and without absent subjects."""
    num_clips = gallery.scores.shape[1]
    sizes = [size for size in SIZES if size <= num_clips]
    fitting = draw_trials(
        gallery, sizes=(sizes[0], sizes[-1]), count=FITTED, absent_share=ABSENT_SHARE
    )
    rows = []
    for size in sizes:
        for share in (0.0, ABSENT_SHARE):
            trials = draw_trials(
                gallery, sizes=(size, size), count=MEASURED, absent_share=share, seed=1
            )
            row = {"gallery": size, **measure(trials, cross_fit(fitting, trials))}
            print(row)
            rows.append(row)
    return rows


def draw_raw(cosines: NDArray[np.float32], clip_of_text: NDArray[np.int64]) -> float:
    """AUC of the plain cosine of the first hit, over all test videos: what there was before."""
    is_right = cosines.argmax(axis=1) == clip_of_text
    return roc_auc(cosines.max(axis=1).astype(np.float64), is_right)


def save(method: Any, name: str, bank: str, gallery: Gallery, rows: list[dict[str, Any]]) -> None:
    """Fit with all videos and write the file of the model."""
    sizes = sorted({row["gallery"] for row in rows})
    trials = draw_trials(
        gallery, sizes=(sizes[0], sizes[-1]), count=FITTED, absent_share=ABSENT_SHARE
    )
    with_absent = [row for row in rows if "absent" in row]
    measured = {
        "date": environment()["date"][:10],
        "data": "476 test videos of MSR-VTT 1k-A, every caption a query; a fifth of the searches "
        "without any video of the query's category; five folds by video",
        "galleries": sizes,
        "auc": [row["auc"] for row in with_absent],
        "calibration_error": [row["calibration_error"] for row in with_absent],
        "command": "python benchmarks/confidence.py --save",
    }
    calibration = make_calibration(trials, model_identity(method), bank, measured)
    folder = local_folder(name)
    calibration.save(folder)
    print(folder)


def categories(path: Path, ids: list[str]) -> NDArray[np.int64]:
    """Category of each video; -1 for what is not of MSR-VTT."""
    known = {row["video_id"]: int(row["category"]) for row in read_json(path)["videos"]}
    return np.array([known.get(str(name).split("-")[-1], -1) for name in ids])


@torch.no_grad()
def encode(method: Any, given: argparse.Namespace) -> None:
    """Encode the test videos, their captions, and one vector per distractor."""
    spec = method.frame_spec

    def open_folder(root: str, split: str) -> Any:
        return open_frames(
            DataChoice("frames", root, frames=spec, workers=0), split, Opening(method, Path())
        )

    def videos_of(source: Any) -> NDArray[np.float32]:
        parts = [
            method.coarse_vectors(method.encode_video(source.videos(part)))
            for part in index_chunks(source.num_videos, 20)
        ]
        return torch.cat(parts).float().numpy()

    source = open_folder(given.root, given.split)
    texts = torch.cat(
        [
            method.coarse_vectors(method.encode_text(source.texts(rows)))
            for rows in torch.arange(source.num_texts).split(128)
        ]
    )
    others = [open_folder(root, split) for root in given.distractors for split in ("train",)]
    np.savez(
        given.arrays,
        clips=videos_of(source),
        clip_ids=np.array(source.video_ids),
        texts=texts.float().numpy(),
        clip_of_text=source.video_of_text.numpy(),
        distractors=np.concatenate(
            [np.zeros((0, texts.shape[1]), np.float32), *map(videos_of, others)]
        ),
        distractor_ids=np.array([name for other in others for name in other.video_ids], "U64"),
    )


if __name__ == "__main__":
    main()
