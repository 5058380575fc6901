"""Evaluation during and after training: every rank encodes its share and scores its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eaglenet.evaluation.evaluate import EvaluationResult, Timings, evaluate
from eaglenet.evaluation.metrics import retrieval_metrics
from eaglenet.methods.base import Method
from eaglenet.scoring import score_all
from eaglenet.training.distributed import World, gather_uneven, gather_uneven_tensor
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
) -> EvaluationResult:
    """Metrics of ``method`` on a split; the same on one process and on several."""
    if world.size > 1 and not noise_seeds:
        return _evaluate_shared(method, source, world, batch_videos, batch_texts)
    text_chunks = index_chunks(source.num_texts, batch_texts, World())
    video_chunks = index_chunks(source.num_videos, batch_videos, World())
    return evaluate(
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
    )


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
            rows = torch.arange(source.num_texts)[world.rank :: world.size]
            own = text[rows.to(text.sentence.device)]
            scores = torch.as_tensor(score_all(method, own, video))
            whole = gather_uneven_tensor(scores, source.num_texts, world)
            metrics = retrieval_metrics(whole.float(), source.video_of_text.cpu())
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
