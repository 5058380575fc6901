"""Evaluation during and after training: every rank encodes its share and scores its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglenet.errors import UsageError
from eaglenet.evaluation.evaluate import EvaluationResult, Timings, evaluate
from eaglenet.evaluation.ranking import Share, rank_pairs
from eaglenet.methods.base import Method
from eaglenet.training.distributed import World, gather_uneven, sum_over_ranks
from eaglenet.training.sources import Source, index_chunks


def evaluate_source(
    method: Method,
    source: Source,
    world: World,
    *,
    batch_videos: int = 32,
    batch_texts: int = 256,
    noise_seeds: Sequence[int] | None = None,
    backend: str = "auto",
    precision: str = "fp32",
    scores_file: Path | None = None,
) -> EvaluationResult:
    """Metrics of ``method`` on a split; the same on one process and on several.

    ``scores_file`` takes the matrix, and ``FILE.videos.npy`` beside it the video of each text.
    """
    if world.size > 1 and scores_file is not None:
        raise UsageError("scores are written by one process: evaluate without torchrun for that")
    if world.size > 1 and not noise_seeds:
        return _evaluate_shared(method, source, world, batch_videos, batch_texts)
    text_chunks = index_chunks(source.num_texts, batch_texts, World())
    video_chunks = index_chunks(source.num_videos, batch_videos, World())
    result = evaluate(
        method,
        (source.texts(rows) for rows in text_chunks),
        (source.videos(rows) for rows in video_chunks),
        source.video_of_text.cpu(),
        source.protocol,
        device=world.device,
        backend=backend,
        precision=precision,
        noise_seeds=noise_seeds,
        missing_videos=source.missing,
        scores_file=scores_file,
    )
    if scores_file is not None:
        np.save(video_file(scores_file), source.video_of_text.cpu().numpy())
    return result


def video_file(scores_file: Path) -> Path:
    """Where the video of each text stands, for `eaglenet metrics --video-of-text`."""
    return scores_file.with_suffix(".videos.npy")


def _evaluate_shared(
    method: Method, source: Source, world: World, batch_videos: int, batch_texts: int
) -> EvaluationResult:
    was_training = method.training
    method.eval()
    try:
        with torch.no_grad():
            started = time.perf_counter()
            text = _encode_share(
                method.encode_text, source.texts, source.num_texts, batch_texts, world
            )
            texts_done = time.perf_counter()
            video = _encode_share(
                method.encode_video, source.videos, source.num_videos, batch_videos, world
            )
            videos_done = time.perf_counter()
            share = Share(world.rank, world.size, lambda value: sum_over_ranks(value, world))
            metrics = rank_pairs(method, text, video, source.video_of_text.cpu(), share=share)
            scored = time.perf_counter()
    finally:
        method.train(was_training)
    return EvaluationResult(
        method=method.name,
        protocol=str(getattr(source.protocol, "name", source.protocol)),
        metrics=metrics,
        timings=Timings(texts_done - started, videos_done - texts_done, scored - videos_done),
        num_texts=source.num_texts,
        num_videos=source.num_videos,
        num_missing_videos=len(source.missing),
        missing_videos=source.missing[:20],
        device=f"{world.size} x {world.device.type}",
    )


def _encode_share(
    encode: Callable[[Any], Any],
    fetch: Callable[[Tensor], Any],
    count: int,
    batch: int,
    world: World,
) -> Any:
    parts = [encode(fetch(rows).to(world.device)) for rows in index_chunks(count, batch, world)]
    features = type(parts[0]).concatenate(parts).to(world.device, torch.float32)
    return gather_uneven(features, count, world)
