"""Recalls of coarse ranking and of re-ranking with a head, and the time for re-ranking.

python benchmarks/reranking.py --root FRAMES --split val --head RUN_OR_HEAD_FOLDER [--model small]
python benchmarks/reranking.py ... --install src/eaglenet/models/small/head    # stores a run's head

Every caption is a query. The head ranks the k best videos by coarse vector again. The result has
R@1, R@5 and R@10, compared with coarse ranking by a paired bootstrap, and the milliseconds for
re-ranking 100 clips.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from common import ranks_of, recalls, save_result, time_calls
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.models.files import head_folder
from eaglenet.models.folder import load, save_head, with_head
from eaglenet.research.data.sources import DataChoice, OpenContext, Source
from eaglenet.research.evaluation.differences import paired_bootstrap
from eaglenet.research.experiments.stored_data import open_frames
from eaglenet.research.training.epochs import index_chunks
from eaglenet.scoring import score_all

SHORTLISTS = (10, 50, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="folder of frames")
    parser.add_argument("--split", default="val")
    parser.add_argument("--model", default="small")
    parser.add_argument("--head", default="", help="run or head folder (default: the model's own)")
    parser.add_argument("--install", default="", help="write the head of the run into this folder")
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    model = load(options.model)
    head = find_head(model, options.model, options.head, options.install)
    data = DataChoice("frames", options.root, frames=model.frame_spec, workers=2)
    source = open_frames(data, options.split, OpenContext(model, Path()))
    result = measure(head, source)
    for row in result["rows"]:
        print(row)
    print(f"re-ranking 100 clips: {result['milliseconds_100']:.1f} ms")
    print(save_result("reranking", result, options.output))


def find_head(model: Method, name: str, path: str, install: str) -> Method:
    """Return the head of a run, in a folder, or of the model itself, on the model's towers."""
    folder = Path(path).expanduser() if path else head_folder(name)
    if folder is None:
        raise SystemExit(f"{name} has no head; name one with --head")
    if (folder / "result.json").exists():
        target = Path(install) if install else folder / "head"
        save_head(load(str(folder)), target)
        folder = target
    return with_head(model, folder)


@torch.no_grad()
def measure(head: Method, source: Source) -> dict[str, object]:
    """Return the recalls of coarse ranking and of re-ranked shortlists, and the time of one."""
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
        ranks = ranks_of(rerank(coarse, exact, size), owner)
        sides = [(side <= 1).double().numpy() * 100 for side in (ranks, base)]
        lift = paired_bootstrap(sides[0], sides[1], owner.numpy())
        rows.append({"shortlist": size, **recalls(ranks), "R@1 lift": str(lift)})
    count = min(100, len(videos))
    few = videos[torch.arange(100) % count]
    timing = time_calls(lambda: score_all(head, texts[:1], few))
    return {
        "protocol": str(source.protocol.name),
        "head": head.name,
        "rows": rows,
        "milliseconds_100": 1000 * timing.median,
    }


def rerank(coarse: Tensor, exact: Tensor, size: int) -> Tensor:
    """Return scores that order each text's shortlist by ``exact``, and put it before the rest."""
    size = min(size, coarse.shape[1])
    columns = coarse.topk(size, dim=1).indices
    scores = exact.gather(1, columns)
    scores = scores - scores.amin(dim=1, keepdim=True) + coarse.amax(dim=1, keepdim=True) + 1
    return coarse.scatter(1, columns, scores)


if __name__ == "__main__":
    main()
