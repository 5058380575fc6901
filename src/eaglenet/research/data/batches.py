"""Batches of pairs: which pairs each one holds, and fetching ahead of their use."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.core.errors import CheckpointError, ConfigError

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """Yield the items in order, fetched ahead in a thread; its errors are raised here."""
    ready: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Item | None, error: BaseException | None, is_last: bool) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error, is_last), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None, False)
                if stopped.is_set():
                    return
            put(None, None, True)
        except BaseException as error:
            put(None, error, True)

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
