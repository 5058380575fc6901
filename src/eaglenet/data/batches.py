"""Where the pairs of a batch come from: stored features or cached frames."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.data.features import FeatureSplit
from eaglenet.data.frame_cache import FrameCache
from eaglenet.data.records import Split
from eaglenet.errors import DatasetError
from eaglenet.types import PairBatch, Tokens

__all__ = [
    "CachedPairs",
    "FeaturePairs",
    "PairSource",
    "prefetch",
]

logger = logging.getLogger(__name__)

Tokenize = Callable[..., Tokens]
"""``tokenize(texts, max_length=...)``."""
Item = TypeVar("Item")


class PairSource(Protocol):
    """Gives the pairs of text indices ``0 .. len(video_of_text) - 1``."""

    video_of_text: Int[Tensor, "texts"]

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch: ...


class FeaturePairs:
    """Pairs of stored features, gathered on the device that holds them."""

    def __init__(self, split: FeatureSplit) -> None:
        self.split = split
        self.video_of_text = split.video_of_text

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.split.device)
        owners = self.split.video_of_text[chosen]
        return PairBatch(self.split.text_batch(chosen), self.split.video_batch(owners), owners)


class CachedPairs:
    """Pairs of cached frames. Videos that the cache had to skip are left out of ``split`` here."""

    def __init__(
        self, split: Split, cache: FrameCache, tokenizer: Tokenize, *, max_words: int = 32
    ) -> None:
        self.cache = cache.bound_to(split)
        present = self.cache.available
        if not present.any():
            raise DatasetError(
                f"{cache.folder}: none of the {len(split)} videos of {split.dataset} {split.name} "
                "is in the cache; build it for this split"
            )
        usable = [video.video_id for video, here in zip(split.videos, present, strict=True) if here]
        if len(usable) < len(split):
            logger.warning(
                "%s %s: %d of %d videos are in the frame cache",
                split.dataset,
                split.name,
                len(usable),
                len(split),
            )
            split = split.only(usable, "not in the frame cache")
            self.cache = self.cache.bound_to(split)
        self.split = split
        self.tokenizer = tokenizer
        self.max_words = max_words
        self.video_of_text = split.video_of_text

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        owners = self.video_of_text[chosen]
        texts = [self.split.texts[index] for index in chosen.tolist()]
        tokens = self.tokenizer(texts, max_length=self.max_words)
        return PairBatch(tokens, self.cache.clips(owners), owners)


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items in the same order, made ahead in a thread; its errors are raised here."""
    ready: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def give(item: Item | None, error: BaseException | None, is_last: bool) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error, is_last), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                give(item, None, False)
                if stopped.is_set():
                    return
            give(None, None, True)
        except BaseException as error:
            give(None, error, True)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error, is_last = ready.get()
            if error is not None:
                raise error
            if is_last:
                return
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=5)
