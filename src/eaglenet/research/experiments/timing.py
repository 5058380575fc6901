"""Time of scoring N texts with N videos, one model after another."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from eaglenet.core.errors import EagleNetError
from eaglenet.core.files import read_json, write_json
from eaglenet.methods.base import evaluating
from eaglenet.research.experiments.build import load_source
from eaglenet.research.experiments.campaign import CampaignRow, TrialRow
from eaglenet.research.experiments.runs import frames_folder, load_run
from eaglenet.research.experiments.trials import slug
from eaglenet.research.training.distributed import join, leave
from eaglenet.scoring import score_all

REPEATS = 3


def time_scoring(
    rows: Sequence[CampaignRow],
    folder: Path,
    pairs: int,
    *,
    split: str,
    device: str,
    say: Callable[[str], None],
) -> list[CampaignRow]:
    """Add to each row the seconds of ``pairs`` x ``pairs`` scores of its first seed's model."""
    timed: list[CampaignRow] = []
    for row in rows:
        if isinstance(row, TrialRow):
            run = folder / slug(row.label) / f"seed-{row.seeds[0]}"
            try:
                seconds = scoring_seconds(run, pairs, split=split, device=device)
                row = dataclasses.replace(row, pair_seconds={str(pairs): seconds})
            except (EagleNetError, torch.OutOfMemoryError) as error:
                say(f"{row.label}: not timed ({error})")
        timed.append(row)
    return timed


def scoring_seconds(run: Path, pairs: int, *, split: str, device: str) -> float:
    """Median seconds of scoring ``pairs`` encoded texts with as many encoded videos.

    A split with fewer texts or videos is repeated.
    """
    path = run / f"scoring-{pairs}.json"
    world = join(device)
    try:
        earlier = read_json(path) if path.exists() else {}
        if earlier.get("device") == str(world.device):
            return float(earlier["seconds"])
        experiment, method = load_run(run)
        method = method.to(world.device)
        source = load_source(
            experiment.data, split, method, cache=frames_folder(run), device=world.device
        )
        texts = torch.arange(pairs) % source.num_texts
        videos = torch.arange(pairs) % source.num_videos
        with evaluating(method), torch.no_grad():
            text = method.encode_text(source.texts(texts).to(world.device))
            batches = [
                method.encode_video(source.videos(indices).to(world.device))
                for indices in videos.split(100)
            ]
            video = type(batches[0]).concatenate(batches)
            times = [_seconds(lambda: score_all(method, text, video)) for _ in range(REPEATS + 1)]
    finally:
        leave(world)
    seconds = statistics.median(times[1:])
    write_json(path, {"pairs": pairs, "seconds": seconds, "device": str(world.device)})
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
