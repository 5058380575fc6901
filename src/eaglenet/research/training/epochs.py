"""Batches of training epochs, and evaluation of a split, with one or several processes."""

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
    """Yield the items in order, computing ``depth`` of them ahead in a thread."""
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
    """Sampler of batches of text indices.

    The order of an epoch depends only on the seed and the epoch, so that a resumed run can start at
    any batch. With several processes, every rank draws the same batch and takes its slice of it.

    Args:
        video_of_text: index of the video of each text.
        batch_size: pairs of the whole batch, over all ranks.
        one_caption: an epoch has each video once, with a random caption. Otherwise it has each
            caption once, and a batch may have two captions of a video.
        neighbours: keep videos 2k and 2k + 1 adjacent, for data whose hard negatives are
            neighbours. Needs ``one_caption``.
        epoch_pairs: pairs per epoch, in several passes over the data or part of one; 0 for one
            pass.
        setting: name of the setting with the batch size, for errors.
    """

    video_of_text: Int[Tensor, "texts"]
    batch_size: int
    seed: int
    one_caption: bool = False
    neighbours: bool = False
    epoch_pairs: int = 0
    rank: int = 0
    world: int = 1
    setting: str = "training.batch_size"

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
                f"batch size {self.batch_size} cannot be divided among {self.world} processes; "
                f"use a multiple of {self.world}"
            )
        if self.num_pairs < self.batch_size:
            kind = "videos" if self.one_caption else "captions"
            # The largest power of two per process that fits.
            largest = self.world << max(0, (self.num_pairs // self.world).bit_length() - 1)
            raise ConfigError(
                f"{self.num_pairs} {kind} cannot fill one batch of {self.batch_size}: "
                f"an epoch would be empty; lower it with --set {self.setting}={largest}"
            )
        if self.neighbours and not self.one_caption:
            raise ConfigError(
                "training.neighbours needs one caption per video: --set training.captions=one"
            )
        if self.neighbours and self.batch_size % 2:
            raise ConfigError(
                f"batch size {self.batch_size} divides pairs of videos, which training.neighbours "
                f"keeps in one batch; choose an even number with --set {self.setting}"
            )

    @property
    def num_pairs(self) -> int:
        """Pairs per epoch, including those of the incomplete last batch, which is dropped."""
        return self.epoch_pairs or self._pairs_per_pass

    @property
    def _pairs_per_pass(self) -> int:
        return self._num_videos if self.one_caption else len(self.video_of_text)

    def __len__(self) -> int:
        """Return the number of batches per epoch; the same for all epochs and ranks."""
        return self.num_pairs // self.batch_size

    def epoch_batches(self, epoch: int) -> list[Tensor]:
        """Return this rank's part of every batch of an epoch, as int64 indices of texts."""
        passes = -(-self.num_pairs // self._pairs_per_pass)
        order = torch.cat([self._order(epoch, number) for number in range(passes)])
        batches = torch.split(order, self.batch_size)[: len(self)]
        size = self.batch_size // self.world
        return [batch[self.rank * size :][:size] for batch in batches]

    def check_identity(self, earlier: Mapping[str, Any]) -> None:
        """Raise unless ``earlier`` is the :meth:`identity` of the same data and settings."""
        for key, value in self.identity().items():
            if earlier.get(key) != value:
                raise CheckpointError(
                    f"the run was started with {key} {earlier.get(key)!r}, now it is {value!r}; "
                    "resume with the same data and settings"
                )

    def identity(self) -> dict[str, Any]:
        """Return all values on which the order of an epoch depends."""
        content = self.video_of_text.to(torch.int64).numpy().tobytes()
        length = {"epoch_pairs": self.epoch_pairs} if self.epoch_pairs else {}
        return {
            **length,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "one_caption": self.one_caption,
            "neighbours": self.neighbours,
            "num_texts": len(self.video_of_text),
            "pairs": hashlib.sha256(content).hexdigest()[:16],
        }

    def _order(self, epoch: int, number: int) -> Int[Tensor, "pairs"]:
        """Return the texts of the ``number``-th pass over the data in an epoch."""
        repeat = f":{number}" if number else ""
        digest = hashlib.sha256(f"pairs:{self.seed}:{epoch}{repeat}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        order = torch.randperm(len(self.video_of_text), generator=generator)
        if self.one_caption:
            videos = self.video_of_text[order]
            # Stable, so that the first caption of each video is a random one.
            by_video = torch.argsort(videos, stable=True)
            videos = videos[by_video]
            is_first = torch.ones_like(videos, dtype=torch.bool)
            is_first[1:] = videos[1:] != videos[:-1]
            captions = order[by_video[is_first]]
            if self.neighbours:
                pairs = torch.randperm((len(captions) + 1) // 2, generator=generator)
                # An odd last video is last in every other pass and first in the next one: elsewhere
                # it would divide all later pairs.
                is_single = 2 * pairs + 1 == len(captions)
                parts = [pairs[~is_single], pairs[is_single]]
                pairs = torch.cat(parts[::-1] if number % 2 else parts)
                indices = (2 * pairs[:, None] + torch.arange(2)).flatten()
                return captions[indices[indices < len(captions)]]
            order = captions[torch.randperm(len(captions), generator=generator)]
        return order


def pair_samplers(
    config: TrainingConfig, video_of_text: Tensor, world: World
) -> tuple[PairSampler, PairSampler]:
    """Return the samplers of the coarse epochs and of the others; raise if no batch is full."""

    def sampler(batch_size: int, setting: str = "training.batch_size") -> PairSampler:
        chunks = config.accumulate if config.accumulation == "split" else 1
        if config.neighbours and chunks > 1 and batch_size % (2 * chunks * world.size):
            raise ConfigError(
                f"chunks of batch size {batch_size} divide pairs of videos, which "
                "training.neighbours keeps together; choose a multiple of "
                f"{2 * chunks * world.size} with --set {setting}"
            )
        return PairSampler(
            video_of_text,
            batch_size,
            config.seed,
            one_caption=config.captions == "one",
            neighbours=config.neighbours,
            epoch_pairs=config.epoch_pairs,
            rank=world.rank,
            world=world.size,
            setting=setting,
        )

    main_sampler = sampler(config.batch_size)
    if config.coarse_epochs and config.coarse_batch_size:
        coarse_sampler = sampler(config.coarse_batch_size, "training.coarse_batch_size")
        return coarse_sampler, main_sampler
    return main_sampler, main_sampler


def epoch_batches(
    source: Source, sampler: PairSampler, epoch: int, start: int, world: World
) -> Iterator[PairBatch]:
    """Yield this rank's batches of an epoch from batch ``start`` on, prefetched."""

    def fetch() -> Iterator[PairBatch]:
        for indices in sampler.epoch_batches(epoch)[start:]:
            batch = source.pairs(indices)
            yield _pin(batch) if world.device.type == "cuda" else batch

    for batch in prefetch(fetch()):
        yield batch.to(world.device)


def index_chunks(count: int, size: int, world: World | None = None) -> tuple[Tensor, ...]:
    """Split ``range(count)`` into chunks; a rank of several gets every ``world.size``-th index."""
    world = world or World()
    return torch.split(torch.arange(count)[world.rank :: world.size], size)


def _pin(batch: PairBatch) -> PairBatch:
    def pin(value: Tensor) -> Tensor:
        return value if value.is_cuda else value.pin_memory()

    return PairBatch(
        batch.texts.map_tensors(pin), batch.videos.map_tensors(pin), pin(batch.video_ids)
    )


def evaluate_source(
    method: Method,
    source: Source,
    world: World,
    options: EvaluationOptions | None = None,
    *,
    training: Source | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate ``method`` on a split, with one or several processes.

    training: training split, needed for ``options.sinkhorn``. With ``options.scores_file``, the
    video of each text is written beside it, with the extension ``.videos.npy``.
    """
    options = options or EvaluationOptions()
    if world.size > 1 and options.scores_file is not None:
        raise UsageError("scores are written by one process: evaluate without torchrun")
    bank = None
    if options.sinkhorn and training is not None:
        if world.size > 1:
            raise UsageError(
                "Sinkhorn offsets are computed by one process: evaluate without torchrun"
            )
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
        fetch_batches(source.texts, text_chunks, "encoding texts", progress),
        fetch_batches(source.videos, video_chunks, "encoding videos", progress),
        source.video_of_text.cpu(),
        source.protocol,
        options,
        device=world.device,
        missing_videos=source.missing,
        sinkhorn_bank=bank,
        process=process,
        progress=progress,
    )
    if options.scores_file is not None:
        video_of_text = source.video_of_text.cpu().numpy()
        np.save(options.scores_file.with_suffix(".videos.npy"), video_of_text)
    return dataclasses.replace(result, notes=(*result.notes, *few_videos(source.num_videos)))


def training_bank(
    source: Source, options: EvaluationOptions, progress: Progress | None
) -> tuple[Iterator[Any], Iterator[Any]]:
    """Return batches of ``options.sinkhorn`` evenly spaced texts and videos of a split."""

    def chunks(count: int, batch: int) -> Sequence[Tensor]:
        number = min(count, options.sinkhorn)
        return torch.split(torch.arange(number) * count // number, batch)

    texts = chunks(source.num_texts, options.text_batch)
    videos = chunks(source.num_videos, options.video_batch)
    return (
        fetch_batches(source.texts, texts, "encoding training texts", progress),
        fetch_batches(source.videos, videos, "encoding training videos", progress),
    )


def fetch_batches(
    fetch: Callable[[Tensor], Any],
    chunks: Sequence[Tensor],
    title: str,
    progress: Progress | None,
) -> Iterator[Any]:
    """Yield ``fetch(chunk)`` for each chunk of indices; report progress after each was used."""
    total = sum(map(len, chunks))
    num_done = 0
    if total:
        # Reported before the first batch, which may take a minute.
        report_progress(progress, title, 0, total)
    for chunk in chunks:
        yield fetch(chunk)
        num_done += len(chunk)
        report_progress(progress, title, num_done, total)
