"""Figures that explain the results of methods on a folder of frames, from finished runs.

python benchmarks/lab_frames.py OUT/clip4clip/seed-0 OUT/xpool/seed-0 OUT/eaglenet/seed-0 \
    --split val --output FIGURES

R@1 by the number of frames, by the length of the text, by how much a caption describes only a part
of its video, and by the size of the gallery. For EagleNet also the weights of the graph, the radius
and the energy, of right and of other pairs. Writes lab.json and one PNG per figure. Without
matplotlib, draw the figures on another machine: python benchmarks/lab_frames.py --drawn-from
lab.json --output FIGURES.
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

from common import ranks_of
from eaglenet.core.files import read_json, write_json
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.research.data.frame_folder import sample_frames
from eaglenet.research.data.sources import Source
from eaglenet.research.evaluation.figures import (
    PALETTE,
    Curve,
    Picture,
    _figure,
    _save,
    curves_figure,
)
from eaglenet.research.experiments.build import load_source
from eaglenet.research.experiments.runs import frames_folder, load_run
from eaglenet.research.training.epochs import index_chunks
from eaglenet.scoring import score_all

FRAMES = (1, 2, 4, 8, 12)
GALLERIES = (10, 20, 50, 100, 200, 500, 1000)
SAMPLE = 64
"""Number of texts, and of videos, whose pairs are examined."""
QUARTERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="finished runs on a folder of frames")
    parser.add_argument("--split", default="val")
    parser.add_argument("--every", type=int, default=1, help="use only every N-th caption")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--drawn-from", type=Path, help="draw the figures of a lab.json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.drawn_from:
        draw(read_json(options.drawn_from), options.output)
        return
    records = {}
    for run in options.runs:
        # OUT/METHOD/seed-N: the parent folder has the name of the method.
        name = "/".join(run.resolve().parts[-2:])
        records[name] = analyse(run, options.split, torch.device(options.device), options.every)
        print(name, {key: value for key, value in records[name].items() if key != "graph"})
    write_json(options.output / "lab.json", records)
    draw(records, options.output)


@torch.no_grad()
def analyse(run: Path, split: str, device: torch.device, every: int = 1) -> dict[str, Any]:
    """Measure everything that the figures show of one run."""
    experiment, method = load_run(run)
    method = method.to(device).eval()
    source = load_source(experiment.data, split, method, cache=frames_folder(run), device=device)
    text, video = texts_of(method, source, every), videos_of(method, source)
    owner = source.video_of_text.cpu()[::every]
    ranks = ranks_of(score_all(method, text, video).cpu(), owner).numpy()
    record: dict[str, Any] = {
        "R@1": recall(ranks),
        "frames": {
            str(count): recall(
                ranks_of(
                    score_all(method, text, videos_of(method, source, count)).cpu(), owner
                ).numpy()
            )
            for count in FRAMES
        },
        "words in the text": by_quarter(
            ranks, np.array([len(caption.split()) for caption in source.captions[::every]])
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
    """Encode every ``every``-th text."""
    indices = torch.arange(0, source.num_texts, every)
    return TextFeatures.concatenate(
        [method.encode_text(source.texts(rows)) for rows in indices.split(512)]
    )


def videos_of(method: Method, source: Source, count: int | None = None) -> VideoFeatures:
    """Encode all videos; with ``count``, at most this number of evenly spaced frames of each."""
    videos = []
    for rows in index_chunks(source.num_videos, 64):
        part = source.videos(rows)
        if not isinstance(part, VideoFeatures):
            raise SystemExit("runs on frozen towers are required: --tower small-frozen")
        videos.append(method.encode_video(part if count is None else select_frames(part, count)))
    return VideoFeatures.concatenate(videos)


def select_frames(video: VideoFeatures, count: int) -> VideoFeatures:
    """Keep at most ``count`` frames per video: the middles of equal parts, moved to the front."""
    frames, mask = torch.zeros_like(video.frames), torch.zeros_like(video.mask)
    for row, num_frames in enumerate(video.mask.sum(dim=1).tolist()):
        indices = sample_frames(num_frames, count).to(video.frames.device)
        frames[row, : len(indices)] = video.frames[row, indices]
        mask[row, : len(indices)] = True
    return replace(video, frames=frames, mask=mask, experts=None)


def partness(text: TextFeatures, video: VideoFeatures, owner: Tensor) -> NDArray[np.float64]:
    """Return by how much the best frame of the right video fits better than its mean frame."""
    frames = F.normalize(video.frames, dim=-1)[owner.to(video.mask.device)]
    mask = video.mask[owner.to(video.mask.device)]
    cosines = torch.einsum("td,tfd->tf", F.normalize(text.sentence, dim=-1), frames)
    best = cosines.masked_fill(~mask, -1.0).amax(dim=1)
    mean = (cosines * mask).sum(dim=1) / mask.sum(dim=1)
    return (best - mean).double().cpu().numpy()


def recall(ranks: NDArray[np.int64]) -> float:
    """Return R@1 in percent."""
    return round(100 * float(np.mean(ranks <= 1)), 2)


def by_quarter(ranks: NDArray[np.int64], values: NDArray[Any]) -> dict[str, float]:
    """Return R@1 of the queries in each quarter of ``values``, by the mean value of the quarter."""
    order = np.argsort(values, kind="stable")
    return {
        f"{float(np.mean(values[part])):.4g}": recall(ranks[part])
        for part in np.array_split(order, QUARTERS)
    }


def gallery_recall(ranks: NDArray[np.int64], size: int, videos: int) -> float:
    """Return the expected R@1 in random galleries of ``size`` that contain the right video.

    The probability that no better video is in the gallery is
    C(videos - rank, size - 1) / C(videos - 1, size - 1).
    """
    whole = math.comb(videos - 1, size - 1)
    table = {rank: math.comb(videos - rank, size - 1) / whole for rank in set(ranks.tolist())}
    return round(100 * float(np.mean([table[rank] for rank in ranks.tolist()])), 2)


def graph_record(
    method: EagleNet, text: TextFeatures, video: VideoFeatures, owner: Tensor
) -> dict[str, Any]:
    """Return weights, radius and energy of right pairs and of others, over a sample of both."""
    assert method.graph is not None
    texts = torch.linspace(0, len(text) - 1, SAMPLE).long()
    videos = owner[texts]
    right = videos[:, None] == videos[None, :]
    sample, pool = text[texts.to(text.sentence.device)], video[videos.to(video.mask.device)]
    parts: dict[str, list[Tensor]] = {
        "text weight": [],
        "entropy": [],
        "radius": [],
        "moved": [],
    }
    energies: list[Tensor] = []
    for row in range(0, SAMPLE, 8):
        few = sample[row : row + 8]
        radius = method.stochastic.radius(few.sentence, pool.frames, method.frame_mask(pool))
        candidates = method.stochastic.candidates(few.sentence, radius, method.noise)
        shape = (*candidates.shape[:2], 1, candidates.shape[-1])
        nodes = torch.cat([few.sentence[:, None, None].expand(shape), candidates], dim=2)
        weights = method.graph(nodes, pool.frames, method.frame_mask(pool))
        output = torch.einsum("tvn,tvnd->tvd", weights, nodes)
        entropy = -(weights * weights.clamp_min(1e-12).log()).sum(-1) / math.log(weights.shape[-1])
        parts["text weight"].append(weights[..., 0])
        parts["entropy"].append(entropy)
        parts["radius"].append(radius.mean(dim=-1))
        parts["moved"].append(1 - F.cosine_similarity(output, few.sentence[:, None], dim=-1))
        if method.energy is not None:
            matching = method.match(few, pool, method.noise)
            energies.append(method.pair_energies(few.sentence, pool, matching))
    quantities = {name: torch.cat(tensors).cpu() for name, tensors in parts.items()}
    if energies:
        quantities["energy"] = torch.cat(energies).cpu()
    record: dict[str, Any] = {
        name: {
            "right": float(values[right].mean()),
            "other": float(values[~right].mean()),
            "separated": separation(values, right),
        }
        for name, values in quantities.items()
    }
    record["even weight"] = 1 / (1 + method.noise.shape[0])
    return record


def separation(values: Tensor, right: Tensor) -> float:
    """Return the probability that a right pair has a larger value than another; 0.5 is chance."""
    inside, outside = values[right], values[~right]
    larger = (inside[:, None] > outside[None, :]).double().mean()
    equal = (inside[:, None] == outside[None, :]).double().mean()
    return float(larger + equal / 2)


def draw(records: Mapping[str, Mapping[str, Any]], output: Path) -> None:
    """Write one PNG per figure."""
    figures: Sequence[tuple[str, str, str]] = (
        ("frames", "frames", "most frames of a video"),
        ("words in the text", "words", "words in the text (quarters)"),
        ("part of the video", "parts", "best frame minus mean frame (quarters)"),
        ("gallery", "gallery", "videos in the gallery"),
    )
    for key, name, label in figures:
        curves = [
            Curve(run, [float(x) for x in record[key]], list(record[key].values()))
            for run, record in records.items()
        ]
        picture = curves_figure(curves, title=f"R@1, {key}", x_label=label, y_label="R@1 (%)")
        (output / f"{name}.png").write_bytes(picture.png)
    for run, record in records.items():
        if "graph" in record:
            separations = {
                name: max(value["separated"], 1 - value["separated"])
                for name, value in record["graph"].items()
                if isinstance(value, Mapping)
            }
            title = f"{run}: separation of right pairs from others"
            picture = bars_figure(separations, title=title, x_label="probability (0.5: chance)")
            (output / f"pairs-{run.split('/')[0]}.png").write_bytes(picture.png)


def bars_figure(values: Mapping[str, float], *, title: str, x_label: str) -> Picture:
    """Draw one bar per name, from 0.5 to its value."""
    figure = _figure(6.4, 0.8 + 0.4 * max(len(values), 1))
    axes = figure.add_subplot()
    names = list(values)[::-1]
    axes.barh(names, [values[name] - 0.5 for name in names], left=0.5, color=PALETTE[0])
    axes.axvline(0.5, color="black", linewidth=1)
    axes.set(title=title, xlabel=x_label)
    axes.grid(alpha=0.3, axis="x")
    return _save(figure)


if __name__ == "__main__":
    main()
