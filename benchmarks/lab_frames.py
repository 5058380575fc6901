"""Why a method leads or does not on a folder of frames: figures and numbers from finished runs.

python benchmarks/lab_frames.py OUT/clip4clip/seed-0 OUT/xpool/seed-0 OUT/eaglenet/seed-0 \
    --split val --output FIGURES

R@1 against the number of frames, the length of the sentence, how much a caption names a part of its
video, and the size of the gallery; of EagleNet also what the graph's weights choose, the radius and
the energy, each of right and of other pairs. Writes lab.json and one PNG a figure; where
matplotlib is missing, draw them elsewhere: python benchmarks/lab_frames.py --drawn-from lab.json
--output FIGURES.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.files import read_json, write_json
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.research.data.frame_folder import sample_frames
from eaglenet.research.data.sources import Source
from eaglenet.research.evaluation.figures import Curve, bars_figure, curves_figure
from eaglenet.research.experiments.build import load_source
from eaglenet.research.experiments.runs import frames_folder, load_run
from eaglenet.research.training.epochs import index_chunks
from eaglenet.scoring import score_all

FRAMES = (1, 2, 4, 8, 12)
GALLERIES = (10, 20, 50, 100, 200, 500, 1000)
SAMPLE = 64
"""Texts whose pairs with as many videos are looked into."""
QUARTERS = 4


def main() -> None:
    """Read the options, look into every run, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="finished runs on a folder of frames")
    parser.add_argument("--split", default="val")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th caption only")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--drawn-from", type=Path, help="a lab.json: draw it, measure nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    if given.drawn_from:
        draw(read_json(given.drawn_from), given.output)
        return
    found = {}
    for run in given.runs:
        # OUT/METHOD/seed-N: the folder above says whose run it is.
        name = "/".join(run.resolve().parts[-2:])
        found[name] = look_into(run, given.split, torch.device(given.device), given.every)
        print(name, {key: value for key, value in found[name].items() if key != "graph"})
    write_json(given.output / "lab.json", found)
    draw(found, given.output)


@torch.no_grad()
def look_into(run: Path, split: str, device: torch.device, every: int = 1) -> dict[str, Any]:
    """Everything that is known of one run."""
    experiment, method = load_run(run)
    method = method.to(device).eval()
    source = load_source(experiment.data, split, method, cache=frames_folder(run), device=device)
    text, video = texts_of(method, source, every), videos_of(method, source)
    owner = source.video_of_text.cpu()[::every]
    ranks = ranks_of(score_all(method, text, video).cpu(), owner)
    record: dict[str, Any] = {
        "R@1": recall(ranks),
        "frames": {
            str(count): recall(
                ranks_of(score_all(method, text, videos_of(method, source, count)).cpu(), owner)
            )
            for count in FRAMES
        },
        "words in the sentence": by_quarter(
            ranks, np.array([len(sentence.split()) for sentence in source.captions[::every]])
        ),
        "part of the video": by_quarter(ranks, partness(text, video, owner)),
        "gallery": {
            str(size): gallery_recall(ranks, size, source.num_videos)
            for size in GALLERIES
            if size <= source.num_videos
        },
    }
    if isinstance(method, EagleNet) and method.graph is not None:
        record["graph"] = graph_record(method, text, video, owner)
    return record


def texts_of(method: Method, source: Source, every: int) -> TextFeatures:
    """Every so many-th text."""
    chosen = torch.arange(0, source.num_texts, every)
    return TextFeatures.concatenate(
        [method.encode_text(source.texts(rows)) for rows in chosen.split(512)]
    )


def videos_of(method: Method, source: Source, count: int | None = None) -> VideoFeatures:
    """All videos; with ``count`` at most so many frames of each, evenly spaced."""
    videos = []
    for rows in index_chunks(source.num_videos, 64):
        part = source.videos(rows)
        if not isinstance(part, VideoFeatures):
            raise SystemExit("give runs on frozen towers: frames/METHOD")
        videos.append(method.encode_video(part if count is None else thinned(part, count)))
    return VideoFeatures.concatenate(videos)


def thinned(video: VideoFeatures, count: int) -> VideoFeatures:
    """At most ``count`` real frames a video, the middles of equal parts, moved to the front."""
    frames, mask = torch.zeros_like(video.frames), torch.zeros_like(video.mask)
    for row, real in enumerate(video.mask.sum(dim=1).tolist()):
        chosen = sample_frames(real, count).to(video.frames.device)
        frames[row, : len(chosen)] = video.frames[row, chosen]
        mask[row, : len(chosen)] = True
    return replace(video, frames=frames, mask=mask, experts=None)


def partness(text: TextFeatures, video: VideoFeatures, owner: Tensor) -> NDArray[np.float64]:
    """How much the best frame of the right video fits better than its mean frame, by the towers."""
    frames = F.normalize(video.frames, dim=-1)[owner.to(video.mask.device)]
    mask = video.mask[owner.to(video.mask.device)]
    cosines = torch.einsum("td,tfd->tf", F.normalize(text.sentence, dim=-1), frames)
    best = cosines.masked_fill(~mask, -1.0).amax(dim=1)
    mean = (cosines * mask).sum(dim=1) / mask.sum(dim=1)
    return (best - mean).double().cpu().numpy()


def ranks_of(scores: Tensor, owner: Tensor) -> NDArray[np.int64]:
    """1 + the other videos that score as high as the right one, or higher."""
    found: NDArray[np.int64] = (scores >= scores.gather(1, owner[:, None])).sum(dim=1).numpy()
    return found


def recall(ranks: NDArray[np.int64]) -> float:
    """R@1 in percent."""
    return round(100 * float(np.mean(ranks <= 1)), 2)


def by_quarter(ranks: NDArray[np.int64], values: NDArray[Any]) -> dict[str, float]:
    """R@1 of the queries in each quarter of ``values``, under the quarter's mean value."""
    order = np.argsort(values, kind="stable")
    return {
        f"{float(np.mean(values[part])):.4g}": recall(ranks[part])
        for part in np.array_split(order, QUARTERS)
    }


def gallery_recall(ranks: NDArray[np.int64], size: int, videos: int) -> float:
    """Expected R@1 in random galleries of ``size`` that hold the right video.

    C(videos - rank, size - 1) / C(videos - 1, size - 1): none of those that beat it was drawn.
    """
    whole = math.comb(videos - 1, size - 1)
    table = {rank: math.comb(videos - rank, size - 1) / whole for rank in set(ranks.tolist())}
    return round(100 * float(np.mean([table[rank] for rank in ranks.tolist()])), 2)


def graph_record(
    method: EagleNet, text: TextFeatures, video: VideoFeatures, owner: Tensor
) -> dict[str, Any]:
    """Weights, radius and energy of right pairs and of others, over a sample of both."""
    assert method.graph is not None
    texts = torch.linspace(0, len(text) - 1, SAMPLE).long()
    videos = owner[texts]
    right = videos[:, None] == videos[None, :]
    chosen, seen = text[texts.to(text.sentence.device)], video[videos.to(video.mask.device)]
    parts: dict[str, list[Tensor]] = {
        "sentence weight": [],
        "spread": [],
        "radius": [],
        "moved": [],
    }
    energies: list[Tensor] = []
    for row in range(0, SAMPLE, 8):
        few = chosen[row : row + 8]
        radius = method.stochastic.radius(few.sentence, seen.frames, method.frame_mask(seen))
        candidates = method.stochastic.candidates(few.sentence, radius, method.noise)
        shape = (*candidates.shape[:2], 1, candidates.shape[-1])
        nodes = torch.cat([few.sentence[:, None, None].expand(shape), candidates], dim=2)
        weights = method.graph(nodes, seen.frames, method.frame_mask(seen))
        enriched = torch.einsum("tvn,tvnd->tvd", weights, nodes)
        entropy = -(weights * weights.clamp_min(1e-12).log()).sum(-1) / math.log(weights.shape[-1])
        parts["sentence weight"].append(weights[..., 0])
        parts["spread"].append(entropy)
        parts["radius"].append(radius.mean(dim=-1))
        parts["moved"].append(1 - F.cosine_similarity(enriched, few.sentence[:, None], dim=-1))
        if method.energy is not None:
            matching = method.match(few, seen, method.noise)
            energies.append(method.pair_energies(few.sentence, seen, matching))
    joined = {name: torch.cat(found).cpu() for name, found in parts.items()}
    if energies:
        joined["energy"] = torch.cat(energies).cpu()
    record: dict[str, Any] = {
        name: {
            "right": float(values[right].mean()),
            "other": float(values[~right].mean()),
            "separated": separation(values, right),
        }
        for name, values in joined.items()
    }
    record["even weight"] = 1 / (1 + method.noise.shape[0])
    return record


def separation(values: Tensor, right: Tensor) -> float:
    """The share of (right, other) pairs in which the right one is larger: 0.5 tells nothing."""
    inside, outside = values[right], values[~right]
    larger = (inside[:, None] > outside[None, :]).double().mean()
    equal = (inside[:, None] == outside[None, :]).double().mean()
    return float(larger + equal / 2)


def draw(found: Mapping[str, Mapping[str, Any]], output: Path) -> None:
    """A figure for each question."""
    figures: Sequence[tuple[str, str, str]] = (
        ("frames", "frames", "most frames of a video"),
        ("words in the sentence", "words", "words in the sentence (quarters)"),
        ("part of the video", "parts", "best frame minus mean frame (quarters)"),
        ("gallery", "gallery", "videos in the gallery"),
    )
    for key, name, label in figures:
        curves = [
            Curve(run, [float(x) for x in record[key]], list(record[key].values()))
            for run, record in found.items()
        ]
        picture = curves_figure(curves, title=f"R@1, {key}", x_label=label, y_label="R@1 (%)")
        (output / f"{name}.png").write_bytes(picture)
    for run, record in found.items():
        if "graph" in record:
            told = {
                name: max(value["separated"], 1 - value["separated"])
                for name, value in record["graph"].items()
                if isinstance(value, Mapping)
            }
            title = f"{run}: how well each tells right pairs from others"
            picture = bars_figure(
                told, title=title, x_label="share told apart (0.5: a guess)", zero=0.5
            )
            (output / f"pairs-{run.split('/')[0]}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
