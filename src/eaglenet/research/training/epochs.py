"""The batches of each epoch, and the chunks of an evaluation, of one process among several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import PairBatch
from eaglenet.methods.base import Method
from eaglenet.research.data.batches import PairSampler, prefetch
from eaglenet.research.data.sources import Source, few_videos
from eaglenet.research.evaluation.evaluate import EvaluationResult, TrainingBank, evaluate
from eaglenet.research.evaluation.metrics import EvaluationOptions, EvaluationProcess
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World, gather_uneven, sum_over_ranks


def pair_samplers(
    config: TrainingConfig, video_of_text: Tensor, world: World
) -> tuple[PairSampler, PairSampler]:
    """The batches of the coarse epochs, and of the others; refuses what gives no batch."""

    def sampler(batch_size: int) -> PairSampler:
        return PairSampler(
            video_of_text,
            batch_size,
            config.seed,
            one_caption=config.captions == "one",
            neighbours=config.neighbours,
            epoch_pairs=config.epoch_pairs,
            rank=world.rank,
            world=world.size,
        )

    usual = sampler(config.batch_size)
    has_other = config.coarse_epochs and config.coarse_batch_size
    return (sampler(config.coarse_batch_size) if has_other else usual), usual


def epoch_batches(
    source: Source, sampler: PairSampler, epoch: int, start: int, world: World
) -> Iterator[PairBatch]:
    """This rank's batches of an epoch from batch ``start`` on, fetched ahead of their use."""

    def fetch() -> Iterator[PairBatch]:
        for rows in sampler.epoch_batches(epoch)[start:]:
            batch = source.pairs(rows)
            yield _pinned(batch) if world.device.type == "cuda" else batch

    for batch in prefetch(fetch()):
        yield batch.to(world.device)


def index_chunks(count: int, size: int, world: World | None = None) -> tuple[Tensor, ...]:
    """All indices in order, in chunks; of several ranks each takes every ``world.size``-th."""
    world = world or World()
    return torch.split(torch.arange(count)[world.rank :: world.size], size)


def _pinned(batch: PairBatch) -> PairBatch:
    def pin(value: Tensor) -> Tensor:
        return value if value.is_cuda else value.pin_memory()

    return PairBatch(
        batch.texts.map_tensors(pin), batch.videos.map_tensors(pin), pin(batch.video_ids)
    )


# Evaluation during and after training: every rank encodes its share and scores its share.


def evaluate_source(
    method: Method,
    source: Source,
    world: World,
    options: EvaluationOptions | None = None,
    *,
    training: Source | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Metrics of ``method`` on a split; the same on one process and on several.

    training: the split whose texts and videos ``options.sinkhorn`` takes.

    With ``options.scores_file``, ``FILE.videos.npy`` beside it takes the video of each text.
    """
    options = options or EvaluationOptions()
    if world.size > 1 and options.scores_file is not None:
        raise UsageError("scores are written by one process: evaluate without torchrun for that")
    bank = None
    if options.sinkhorn and training is not None:
        if world.size > 1:
            raise UsageError("Sinkhorn offsets are computed by one process: leave out torchrun")
        bank = training_bank(training, options, progress)
    process = None
    if world.size > 1:
        process = EvaluationProcess(
            world.rank,
            world.size,
            total=lambda value: sum_over_ranks(value, world),
            gather=lambda features, count: gather_uneven(features, count, world),
        )
    text_chunks = index_chunks(source.num_texts, options.text_batch, world)
    video_chunks = index_chunks(source.num_videos, options.video_batch, world)
    result = evaluate(
        method,
        fetched(source.texts, text_chunks, "encoding texts", progress),
        fetched(source.videos, video_chunks, "encoding videos", progress),
        source.video_of_text.cpu(),
        source.protocol,
        options,
        device=world.device,
        missing_videos=source.missing,
        bank=bank,
        process=process,
        progress=progress,
    )
    if options.scores_file is not None:
        np.save(video_file(options.scores_file), source.video_of_text.cpu().numpy())
    return dataclasses.replace(result, notes=(*result.notes, *few_videos(source.num_videos)))


def training_bank(
    source: Source, options: EvaluationOptions, progress: Progress | None
) -> TrainingBank:
    """``options.sinkhorn`` texts and videos of a split, evenly spaced."""

    def chunks(count: int, batch: int) -> Sequence[Tensor]:
        number = min(count, options.sinkhorn)
        rows = torch.arange(number) * count // number
        return [rows[start : start + batch] for start in range(0, number, batch)]

    texts = chunks(source.num_texts, options.text_batch)
    videos = chunks(source.num_videos, options.video_batch)
    return TrainingBank(
        fetched(source.texts, texts, "encoding training texts", progress),
        fetched(source.videos, videos, "encoding training videos", progress),
    )


def fetched(
    fetch: Callable[[Tensor], Any],
    chunks: Sequence[Tensor],
    title: str,
    progress: Progress | None,
) -> Iterator[Any]:
    """Batches one after another, each counted when the next is asked for."""
    total = sum(len(rows) for rows in chunks)
    done = 0
    for rows in chunks:
        yield fetch(rows)
        done += len(rows)
        report_progress(progress, title, done, total)


def video_file(scores_file: Path) -> Path:
    """File with the video of each text, for `eaglenet metrics --video-of-text`."""
    return scores_file.with_suffix(".videos.npy")
