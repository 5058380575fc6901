"""The batches of each epoch, and the chunks of an evaluation, of one process among several."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eaglenet.data.batches import prefetch
from eaglenet.data.sampler import PairSampler
from eaglenet.data.sources import Source
from eaglenet.training.config import TrainingConfig
from eaglenet.training.distributed import World
from eaglenet.types import PairBatch


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
            batch = source.pairs.pairs(rows)
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
