"""What re-ranking with a head adds to the coarse ranking of a model, and what it costs.

python benchmarks/reranking.py --root FRAMES --split val --head RUN_OR_HEAD_FOLDER [--model small]
python benchmarks/reranking.py ... --install src/eaglenet/models/small/head    # of a run: keep it

Every caption is a query. The k best videos by coarse vector are ranked again by the head; R@1, R@5,
R@10 with a paired bootstrap against coarse ranking, and milliseconds of re-ranking 100 clips.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common import save_result, timed
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.models.files import head_folder
from eaglenet.models.folder import load, save_head, with_head
from eaglenet.research.data.sources import DataChoice, OpenContext, Source
from eaglenet.research.evaluation.report import paired_bootstrap
from eaglenet.research.experiments.stored_data import open_frames
from eaglenet.research.training.epochs import index_chunks
from eaglenet.scoring import score_all

SHORTLISTS = (10, 50, 100)


def main() -> None:
    """Read the options, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="folder of frames")
    parser.add_argument("--split", default="val")
    parser.add_argument("--model", default="small")
    parser.add_argument("--head", default="", help="a run, or a folder of a head; empty: its own")
    parser.add_argument("--install", default="", help="write the run's head into this folder first")
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    given = parser.parse_args()
    model = load(given.model)
    head = find_head(model, given.model, given.head, given.install)
    data = DataChoice("frames", given.root, frames=model.frame_spec, workers=2)
    source = open_frames(data, given.split, OpenContext(model, Path()))
    result = measure(head, source)
    for row in result["rows"]:
        print(row)
    print(f"re-ranking 100 clips: {result['milliseconds_100']:.1f} ms")
    print(save_result("reranking", result, given.output))


def find_head(model: Method, name: str, place: str, install: str) -> Method:
    """The head of a run, of a folder, or of the model itself, on the model's towers."""
    folder = Path(place).expanduser() if place else head_folder(name)
    if folder is None:
        raise SystemExit(f"{name} has no head; name one with --head")
    if (folder / "result.json").exists():
        target = Path(install) if install else folder / "head"
        save_head(load(str(folder)), target)
        folder = target
    return with_head(model, folder)


@torch.no_grad()
def measure(head: Method, source: Source) -> dict[str, object]:
    """Recalls of coarse ranking and of re-ranked shortlists, and what one re-ranking takes."""
    texts = TextFeatures.concatenate(
        [head.encode_text(source.texts(rows)) for rows in index_chunks(source.num_texts, 256)]
    )
    videos = VideoFeatures.concatenate(
        [head.encode_video(source.videos(rows)) for rows in index_chunks(source.num_videos, 32)]
    )
    coarse = head.coarse_vectors(texts) @ head.coarse_vectors(videos).T
    exact = score_all(head, texts, videos)
    owner = source.video_of_text
    base = ranks_of(coarse, owner)
    rows = [{"shortlist": 0, **recalls(base)}]
    for size in SHORTLISTS:
        ranks = ranks_of(reranked(coarse, exact, size), owner)
        sides = [(side <= 1).double().numpy() * 100 for side in (ranks, base)]
        lift = paired_bootstrap(sides[0], sides[1], owner.numpy())
        rows.append({"shortlist": size, **recalls(ranks), "R@1 lift": str(lift)})
    count = min(100, len(videos))
    few = videos[torch.arange(100) % count]
    timing = timed(lambda: score_all(head, texts[:1], few))
    return {
        "protocol": str(source.protocol.name),
        "head": head.name,
        "rows": rows,
        "milliseconds_100": 1000 * timing.median,
    }


def reranked(coarse: Tensor, exact: Tensor, size: int) -> Tensor:
    """Scores whose order is that of ``exact`` within each text's shortlist, and coarse after it."""
    size = min(size, coarse.shape[1])
    places = coarse.topk(size, dim=1).indices
    inside = exact.gather(1, places)
    lifted = inside - inside.amin(dim=1, keepdim=True) + coarse.amax(dim=1, keepdim=True) + 1
    return coarse.scatter(1, places, lifted)


def ranks_of(scores: Tensor, owner: Tensor) -> Tensor:
    """1 + the other videos that score as high as the right one, or higher."""
    right = scores.gather(1, owner[:, None])
    return (scores >= right).sum(dim=1)


def recalls(ranks: Tensor) -> dict[str, float]:
    """R@1, R@5, R@10 in percent."""
    values = ranks.numpy()
    return {f"R@{k}": round(100 * float(np.mean(values <= k)), 2) for k in (1, 5, 10)}


if __name__ == "__main__":
    main()
