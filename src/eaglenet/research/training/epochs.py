"""Batches of each epoch, fetched ahead, and chunks of an evaluation, among several processes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.core.errors import CheckpointError, ConfigError, UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import PairBatch
from eaglenet.methods.base import Method
from eaglenet.research.data.sources import Source, few_videos
from eaglenet.research.evaluation.evaluate import EvaluationResult, evaluate
from eaglenet.research.evaluation.metrics import EvaluationOptions, EvaluationProcess
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World, gather_uneven, sum_over_ranks

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """Yield the items in order, fetched ahead in a thread; its errors are raised here."""
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        pending = deque(pool.submit(next, iterator, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, iterator, end))
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class PairSampler:
    """Batches of text indices; the video of each text comes with it.

    The order of an epoch depends on the seed and the epoch alone, never on what was drawn before,
    so a resumed run can start at any position. With several processes every rank draws the same
    batch and takes its own slice: joined in rank order they are the single-process batch.

    Args:
        video_of_text: the video each text belongs to.
        batch_size: pairs of the whole batch, over all ranks.
        one_caption: an epoch sees each video once, with a random caption; otherwise each
            caption once, and two captions of a video may meet in a batch.
        neighbours: videos 2k and 2k + 1 always come next to each other, with an even batch size in
            one batch: for data whose hard negatives are neighbours. Needs ``one_caption``.
        epoch_pairs: pairs that an epoch draws, in several passes over the data or a part of one;
            0: one pass.
    """

    video_of_text: Int[Tensor, "texts"]
    batch_size: int
    seed: int
    one_caption: bool = False
    neighbours: bool = False
    epoch_pairs: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        self.video_of_text = self.video_of_text.cpu()
        self._num_videos = int(torch.bincount(self.video_of_text).count_nonzero())
        self._check()

    def _check(self) -> None:
        if self.batch_size < 1 or self.world < 1 or not 0 <= self.rank < self.world:
            raise ConfigError(
                f"batch size {self.batch_size}, rank {self.rank} of {self.world}: "
                "expected a batch size of 1 or more and 0 <= rank < world"
            )
        if self.batch_size % self.world:
            raise ConfigError(
                f"batch size {self.batch_size} cannot be shared by {self.world} processes; "
                f"use a multiple of {self.world}"
            )
        if self.num_drawn < self.batch_size:
            kind = "videos" if self.one_caption else "captions"
            # The largest power of two that fits, for every process the same.
            largest = self.world << max(0, (self.num_drawn // self.world).bit_length() - 1)
            raise ConfigError(
                f"{self.num_drawn} {kind} cannot fill one batch of {self.batch_size}: "
                f"an epoch would be empty; lower it with --set training.batch_size={largest}"
            )
        if self.neighbours and not self.one_caption:
            raise ConfigError(
                "neighbours keeps pairs of videos together, one caption each: set one_caption=True "
                '(training.captions="one")'
            )

    @property
    def num_drawn(self) -> int:
        """Pairs that an epoch draws; those of a short last batch are dropped."""
        return self.epoch_pairs or self._pairs_per_pass

    @property
    def _pairs_per_pass(self) -> int:
        return self._num_videos if self.one_caption else len(self.video_of_text)

    def __len__(self) -> int:
        """Batches in an epoch; the same for every epoch and every rank."""
        return self.num_drawn // self.batch_size

    def epoch_batches(self, epoch: int) -> list[Tensor]:
        """This rank's share of every batch of an epoch, as int64 index tensors."""
        passes = -(-self.num_drawn // self._pairs_per_pass)
        order = torch.cat([self._order(epoch, number) for number in range(passes)])
        batches = torch.split(order, self.batch_size)[: len(self)]
        share = self.batch_size // self.world
        return [batch[self.rank * share :][:share] for batch in batches]

    def check_identity(self, earlier: Mapping[str, Any]) -> None:
        """Refuse the identity of other data or settings, whose order differs."""
        for key, value in self.identity().items():
            if earlier.get(key) != value:
                raise CheckpointError(
                    f"the run was started with {key} {earlier.get(key)!r}, now it is {value!r}; "
                    "resume with the same data and settings"
                )

    def identity(self) -> dict[str, Any]:
        """Everything that the order of an epoch depends on."""
        owners = self.video_of_text.to(torch.int64).numpy().tobytes()
        length = {"epoch_pairs": self.epoch_pairs} if self.epoch_pairs else {}
        return {
            **length,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "one_caption": self.one_caption,
            "neighbours": self.neighbours,
            "num_texts": len(self.video_of_text),
            "pairs": hashlib.sha256(owners).hexdigest()[:16],
        }

    def _order(self, epoch: int, number: int) -> Int[Tensor, "drawn"]:
        """Pairs of the ``number``-th pass over the data in an epoch."""
        repeat = f":{number}" if number else ""
        digest = hashlib.sha256(f"pairs:{self.seed}:{epoch}{repeat}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        order = torch.randperm(len(self.video_of_text), generator=generator)
        if self.one_caption:
            owners = self.video_of_text[order]
            # After a stable sort by video the first of each run is a random caption of it.
            by_video = torch.argsort(owners, stable=True)
            run = owners[by_video]
            first = torch.ones_like(run, dtype=torch.bool)
            first[1:] = run[1:] != run[:-1]
            captions = order[by_video[first]]
            if self.neighbours:
                couples = torch.randperm((len(captions) + 1) // 2, generator=generator)
                rows = (2 * couples[:, None] + torch.arange(2)).flatten()
                return captions[rows[rows < len(captions)]]
            order = captions[torch.randperm(len(captions), generator=generator)]
        return order


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
        owners = source.video_of_text.cpu().numpy()
        np.save(options.scores_file.with_suffix(".videos.npy"), owners)
    return dataclasses.replace(result, notes=(*result.notes, *few_videos(source.num_videos)))


def training_bank(
    source: Source, options: EvaluationOptions, progress: Progress | None
) -> tuple[Iterator[Any], Iterator[Any]]:
    """``options.sinkhorn`` texts and videos of a split, evenly spaced."""

    def chunks(count: int, batch: int) -> Sequence[Tensor]:
        number = min(count, options.sinkhorn)
        rows = torch.arange(number) * count // number
        return [rows[start : start + batch] for start in range(0, number, batch)]

    texts = chunks(source.num_texts, options.text_batch)
    videos = chunks(source.num_videos, options.video_batch)
    return (
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
    if total:
        # Names the stage before its first batch, which may take a minute.
        report_progress(progress, title, 0, total)
    for rows in chunks:
        yield fetch(rows)
        done += len(rows)
        report_progress(progress, title, done, total)
