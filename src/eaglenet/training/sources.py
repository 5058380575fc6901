"""One split for training and evaluation alike: pairs for batches, texts and videos for scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglenet.data.batches import CachedPairs, FeaturePairs, PairSource, prefetch
from eaglenet.data.features import FeatureSplit
from eaglenet.data.records import Split
from eaglenet.data.sampler import PairSampler
from eaglenet.training.config import TrainingConfig
from eaglenet.training.distributed import World
from eaglenet.types import Clips, PairBatch, TextFeatures, Tokens, VideoFeatures

FEW_VIDEOS = 10


@dataclass(frozen=True)
class Source:
    """Texts and videos of a split, fetched by index."""

    pairs: PairSource
    texts: Callable[[Tensor], Tokens | TextFeatures]
    videos: Callable[[Tensor], Clips | VideoFeatures]
    sentences: Sequence[str]
    video_ids: Sequence[str]
    protocol: Any
    missing: tuple[str, ...] = ()
    """Ids that the split lists and that could not be had."""

    @property
    def video_of_text(self) -> Tensor:
        return self.pairs.video_of_text

    @property
    def num_texts(self) -> int:
        return len(self.pairs.video_of_text)

    @property
    def num_videos(self) -> int:
        return len(self.video_ids)

    def describe(self) -> dict[str, Any]:
        """What the manifest says of this split."""
        return {
            "protocol": str(getattr(self.protocol, "name", self.protocol)),
            "texts": self.num_texts,
            "videos_found": self.num_videos,
            "videos_missing": len(self.missing),
            "missing_videos": list(self.missing[:20]),
        }


def feature_source(split: FeatureSplit) -> Source:
    """Stored features, on the device that ``split`` lies on."""
    return Source(
        pairs=FeaturePairs(split),
        texts=split.text_batch,
        videos=split.video_batch,
        sentences=split.captions,
        video_ids=split.video_ids,
        protocol=split.protocol,
    )


def cached_source(pairs: CachedPairs) -> Source:
    """Cached frames and sentences tokenised once."""
    tokens = pairs.tokenizer(pairs.split.texts, max_length=pairs.max_words)
    return Source(
        pairs=pairs,
        texts=lambda rows: tokens[rows],
        videos=pairs.cache.clips,
        sentences=pairs.split.texts,
        video_ids=pairs.split.video_ids,
        protocol=pairs.split.protocol,
        missing=tuple(entry.video_id for entry in pairs.split.left_out),
    )


class MemoryPairs:
    """Pairs whose frames and tokens all lie in memory."""

    def __init__(self, tokens: Tokens, clips: Clips, video_of_text: Tensor) -> None:
        self.tokens = tokens
        self.clips = clips
        self.video_of_text = video_of_text

    def pairs(self, indices: Any) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        owners = self.video_of_text[chosen]
        return PairBatch(self.tokens[chosen], self.clips[owners], owners)


def memory_source(records: Split, tokens: Tokens, clips: Clips) -> Source:
    """A small split held whole in memory: the demo world."""
    return Source(
        pairs=MemoryPairs(tokens, clips, records.video_of_text),
        texts=lambda rows: tokens[rows],
        videos=lambda rows: clips[rows],
        sentences=records.texts,
        video_ids=records.video_ids,
        protocol=records.protocol,
    )


def few_videos(num_videos: int) -> tuple[str, ...]:
    """A remark on a split so small that its recalls are high by chance."""
    if num_videos >= FEW_VIDEOS:
        return ()
    return (f"{num_videos} videos are too few for recalls to mean much",)


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

    return PairBatch(batch.texts._map(pin), batch.videos._map(pin), pin(batch.video_ids))
