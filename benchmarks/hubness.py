"""Recalls of a model with and without hubness offsets from several banks of texts.

python benchmarks/hubness.py --root TEST --training FRAMES --split test --frames 6 [--model small]

Some captions of each video are queries over all videos. The offsets are those of a store
(``eaglenet index --hubness``), computed from the model's own bank, from captions of the training
split, or from the typical texts of ``eaglenet evaluate --hubness``. ``most`` is the largest number
of queries with the same video among their first ten hits.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.indexing.encoding import prepare_for_precision
from eaglenet.indexing.model import encode_hubness_bank, model_hubness_bank
from eaglenet.models.folder import load
from eaglenet.research.data.sources import DataChoice, OpenContext, Source
from eaglenet.research.evaluation.metrics import retrieval_metrics
from eaglenet.research.evaluation.postprocessing import TEMPERATURE, typical_texts
from eaglenet.research.experiments.stored_data import open_frames
from eaglenet.research.training.epochs import index_chunks
from eaglenet.store.hubness import HubnessBank

TRAINING_BANKS = (4096, 1024, 256, 64)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="folder of frames")
    parser.add_argument(
        "--training", default="", help="folder of the training split (default: ROOT)"
    )
    parser.add_argument("--split", default="val")
    parser.add_argument("--model", default="small")
    parser.add_argument("--frames", type=int, default=1, help="frames per video")
    parser.add_argument("--captions", type=int, default=4, help="queries per video")
    parser.add_argument("--precision", default="fp32", help="of the frames: fp32, bf16 or int8")
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    model = load(options.model).eval()
    model.frame_spec = dataclasses.replace(model.frame_spec, num_frames=options.frames)
    source, training = (
        open_frames(
            DataChoice("frames", root, frames=model.frame_spec, workers=0),
            split,
            OpenContext(model, Path()),
        )
        for root, split in (
            (options.root, options.split),
            (options.training or options.root, "train"),
        )
    )

    def texts_of(texts: Source, rows: Tensor) -> Tensor:
        parts = [texts.texts(each) for each in rows.split(128)]
        return torch.cat([model.coarse_vectors(model.encode_text(part)) for part in parts])

    queries = some_captions(source.video_of_text, source.num_videos, options.captions)
    texts = texts_of(source, queries)
    generator = torch.Generator().manual_seed(1)
    sample = torch.randperm(training.num_texts, generator=generator)[: TRAINING_BANKS[0]]
    captions = texts_of(training, sample).numpy()
    towers, _ = prepare_for_precision(model, options.precision, ())
    videos = torch.cat(
        [
            towers.coarse_vectors(towers.encode_video(source.videos(part)))
            for part in index_chunks(source.num_videos, 20)
        ]
    )
    banks: dict[str, HubnessBank | None] = {"none": None}
    if (own := model_hubness_bank(model, options.model)) is not None:
        banks["its own"] = own
    for count in TRAINING_BANKS:
        banks[f"{count} training captions"] = HubnessBank("", captions[:count], 1.0, TEMPERATURE)
    banks["typical texts"] = encode_hubness_bank(typical_texts(), model)
    owner, cosines = source.video_of_text[queries], texts @ videos.T
    rows = []
    for name, bank in banks.items():
        scores = cosines.double()
        if bank is not None:
            scores = scores - torch.from_numpy(bank.offsets(videos.numpy())).double()
        recalls = retrieval_metrics(scores, owner).t2v.to_dict()
        row = {"bank": name, **{key: round(recalls[key], 1) for key in ("R@1", "R@5", "R@10")}}
        if bank is not None:
            row |= {"texts": len(bank.vectors), "weight": bank.weight, "scale": bank.scale}
        row["most"] = int(torch.bincount(scores.topk(10).indices.flatten()).max())
        rows.append(row)
        print(row)
    settings = {
        key: value
        for key, value in vars(options).items()
        if key not in ("root", "training", "output")
    }
    result = {**settings, "queries": len(texts), "videos": len(videos), "rows": rows}
    print(save_result("hubness", result, options.output))


def some_captions(video_of_text: Tensor, num_videos: int, count: int) -> Tensor:
    """Return the rows of ``count`` random captions of each video, or of all if it has fewer."""
    generator, rows = torch.Generator().manual_seed(0), []
    for video in range(num_videos):
        own = (video_of_text == video).nonzero()[:, 0]
        rows.append(own[torch.randperm(len(own), generator=generator)[:count]])
    return torch.cat(rows)


if __name__ == "__main__":
    main()
