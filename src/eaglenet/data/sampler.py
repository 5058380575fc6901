"""Which pairs make a batch: a sampler that a killed run can take up again at the same pair."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.errors import CheckpointError, ConfigError

# Swapping random pairs clears a batch of shared videos in a few rounds where it is possible.
MAX_SWAP_ROUNDS = 1000


class PairSampler:
    """Batches of text indices; the video of each text comes with it.

    The order of an epoch depends on the seed and the epoch alone, never on what was drawn before,
    so any position can be entered directly. With several processes every rank draws the same
    batch and takes its own slice: joined in rank order they are the single-process batch.

    Args:
        video_of_text: the video each text belongs to.
        batch_size: pairs of the whole batch, over all ranks.
        one_caption: an epoch sees each video once, with a caption drawn anew each epoch, instead
            of each caption once.
        distinct_videos: no batch holds two captions of one video. Without it such pairs may
            meet, and ``PairBatch.positives`` marks both as right.
        neighbours: videos 2k and 2k + 1 always come next to each other, with an even batch size in
            one batch: for data whose hard negatives are neighbours. Needs ``one_caption``.
    """

    def __init__(
        self,
        video_of_text: Int[Tensor, "texts"],
        batch_size: int,
        seed: int,
        drop_last: bool = True,
        *,
        one_caption: bool = False,
        distinct_videos: bool = False,
        neighbours: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.video_of_text = video_of_text.cpu()
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.one_caption = one_caption
        self.distinct_videos = distinct_videos
        self.neighbours = neighbours
        self.rank = rank
        self.world = world
        self.epoch = 0
        self.step = 0
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
        if self.world > 1 and not self.drop_last:
            raise ConfigError("several processes need equal batches: set drop_last=True")
        if self.num_drawn < self.batch_size and self.drop_last:
            kind = "videos" if self.one_caption else "captions"
            raise ConfigError(
                f"{self.num_drawn} {kind} cannot fill one batch of {self.batch_size}: "
                f"an epoch would be empty; lower the batch size or set drop_last=False"
            )
        if self.neighbours and not self.one_caption:
            raise ConfigError(
                "neighbours keeps pairs of videos together, one caption each: set one_caption=True "
                '(training.captions="one")'
            )
        if self.distinct_videos and not self.one_caption:
            largest = int(torch.bincount(self.video_of_text).max())
            if self.batch_size > self._num_videos or largest > len(self):
                raise ConfigError(
                    f"distinct videos are impossible: batches of {self.batch_size} from "
                    f"{self._num_videos} videos, one with {largest} captions in {len(self)} "
                    "batches; lower the batch size or use one_caption"
                )

    @property
    def num_drawn(self) -> int:
        """Pairs that an epoch draws from, before a short last batch is dropped."""
        return self._num_videos if self.one_caption else len(self.video_of_text)

    def __len__(self) -> int:
        """Batches in an epoch; the same for every epoch and every rank."""
        whole, rest = divmod(self.num_drawn, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def epoch_batches(self, epoch: int) -> list[Tensor]:
        """This rank's share of every batch of an epoch, as int64 index tensors."""
        order = self._order(epoch)
        batches = torch.split(order, self.batch_size)[: len(self)]
        share = self.batch_size // self.world
        return [batch[self.rank * share :][:share] for batch in batches]

    def __iter__(self) -> Iterator[Tensor]:
        """From the current position to the end of the current epoch; then the next one is due.

        The position counts a batch as done when it is handed out. A loop that reads ahead keeps
        its own position and calls :meth:`seek`.
        """
        for batch in self.epoch_batches(self.epoch)[self.step :]:
            self.step += 1
            yield batch
        self.epoch += 1
        self.step = 0

    def seek(self, epoch: int, step: int) -> None:
        """Continue at batch ``step`` of ``epoch``; ``step == len(self)`` is the next epoch."""
        if epoch < 0 or not 0 <= step <= len(self):
            raise ConfigError(f"no step {step} in epoch {epoch}; an epoch has {len(self)} batches")
        self.epoch, self.step = (epoch + 1, 0) if step == len(self) else (epoch, step)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuses a state of other data or settings: the order would silently be another."""
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise CheckpointError(
                    f"the run was started with {key} {state.get(key)!r}, now it is {value!r}; "
                    "resume with the same data and settings"
                )
        self.seek(int(state["epoch"]), int(state["step"]))

    def _identity(self) -> dict[str, Any]:
        owners = self.video_of_text.to(torch.int64).numpy().tobytes()
        return {
            "seed": self.seed,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "one_caption": self.one_caption,
            "distinct_videos": self.distinct_videos,
            "neighbours": self.neighbours,
            "num_texts": len(self.video_of_text),
            "pairs": hashlib.sha256(owners).hexdigest()[:16],
        }

    def _order(self, epoch: int) -> Int[Tensor, "drawn"]:
        digest = hashlib.sha256(f"pairs:{self.seed}:{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        order = torch.randperm(len(self.video_of_text), generator=generator)
        if self.one_caption:
            owners = self.video_of_text[order]
            # After a stable sort by video the first of each run is a random caption of it.
            by_video = torch.argsort(owners, stable=True)
            run = owners[by_video]
            first = torch.ones_like(run, dtype=torch.bool)
            first[1:] = run[1:] != run[:-1]
            chosen = order[by_video[first]]
            if self.neighbours:
                couples = torch.randperm((len(chosen) + 1) // 2, generator=generator)
                places = (2 * couples[:, None] + torch.arange(2)).flatten()
                return chosen[places[places < len(chosen)]]
            order = chosen[torch.randperm(len(chosen), generator=generator)]
        elif self.distinct_videos:
            order = self._spread(order, generator)
        return order

    def _spread(self, order: Tensor, generator: torch.Generator) -> Tensor:
        """Swap texts whose video is already in their batch with random others until none is."""
        batch_of = torch.arange(len(order)) // self.batch_size
        # A tail that is dropped may hold anything: each of its places is a batch of its own.
        kept = len(self) * self.batch_size
        tail = torch.arange(max(0, len(order) - kept))
        batch_of[kept:] = len(self) + tail
        num_videos = int(self.video_of_text.max()) + 1
        for _ in range(MAX_SWAP_ROUNDS):
            key = batch_of * num_videos + self.video_of_text[order]
            sorted_key, place = torch.sort(key, stable=True)
            clash = place[1:][sorted_key[1:] == sorted_key[:-1]]
            if len(clash) == 0:
                return order
            free = torch.ones(len(order), dtype=torch.bool)
            free[clash] = False
            others = free.nonzero().flatten()
            others = others[torch.randperm(len(others), generator=generator)][: len(clash)]
            clash = clash[: len(others)]
            order[clash], order[others] = order[others].clone(), order[clash].clone()
        raise ConfigError(
            f"no order without two captions of one video in a batch of {self.batch_size} was "
            "found; lower the batch size or use one_caption"
        )
