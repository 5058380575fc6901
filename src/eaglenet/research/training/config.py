"""Training settings as one frozen value that refuses impossible numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.low_rank import Targets
from eaglenet.research.training.augmentation import Augmentation
from eaglenet.research.training.distributed import GatherGradients
from eaglenet.research.training.optimizer import (
    Decay,
    Freeze,
    OptimizerName,
    ScheduleName,
    build_optimizer,
    parameter_groups,
)

Precision = Literal["auto", "bf16", "fp32", "fp16_weights"]
Accumulation = Literal["whole", "split"]
Positives = Literal["same_video", "own_pair"]
Select = Literal["val", "test"]
Captions = Literal["all", "one"]
# Step seeds are made of it (`training.trainer`) and must fit 63 bits.
MAX_SEED = 2**31 - 1
MINIMUM: Mapping[int, Sequence[str]] = {
    1: ("epochs", "batch_size", "accumulate", "eval_every", "log_every"),
    0: (
        "lr_encoder", "lr_head", "weight_decay", "clip_norm", "patience", "checkpoint_every",
        "checkpointed_blocks", "epoch_pairs", "lora_rank", "coarse_epochs", "coarse_batch_size",
    ),
}  # fmt: skip


def check_minimum(settings: Any, names: Mapping[int, Sequence[str]], prefix: str = "") -> None:
    """Refuse fields that are not finite or below the number under which ``names`` lists them."""
    for minimum, fields in names.items():
        for name in fields:
            value = getattr(settings, name)
            if not math.isfinite(value):
                raise ConfigError(f"{prefix}{name} is {value}; expected a number")
            if value < minimum:
                raise ConfigError(f"{prefix}{name} is {value}; expected {minimum} or more")


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings. The defaults are the modern settings; recipes say where they differ.

    epochs: one epoch shows every caption once (``captions="all"``) or every video once with a
        random caption (``captions="one"``).
    epoch_pairs: pairs per epoch, in as many passes over the data as that takes; 0: one pass.
    coarse_epochs: so many epochs before those train the towers alone, with the softmax loss of the
        coarse vectors (`training.step.coarse_losses`): for towers that do not start from CLIP.
    coarse_batch_size: pairs in a batch of those epochs; 0 for ``batch_size``. That loss needs
        little memory, and its batches can be larger.
    neighbours: keep videos 2k and 2k + 1 in one batch (``captions="one"``): in the demo world they
        differ only in time, and nothing but meeting each other teaches a model what comes first.
    batch_size: pairs in one contrastive batch, over all processes and pieces together.
    lr_encoder, lr_head: peak rates of the encoder (towers, or adapters of stored features) and of
        everything else. 1e-6 for CLIP in fp32;
        the 1e-7 of the released code is meant for its fp16 weights and freezes fp32 ones.
    decay: what ``weight_decay`` applies to, see `training.optimizer.decays`.
    second_beta: of the optimizer's second moment.
    gradients: of features that several processes gather: ``sum`` (one process with the joined
        batch) or ``local`` (the field's code), see `training.distributed`.
    augment: ``crop_flip`` shows a random part of each video, mirrored or not; ``rand_augment``
        changes colours and geometry (`training.augmentation`).
    warmup: share of all steps. clip_norm: of all gradients together; 0 turns it off.
    precision: ``auto`` is bf16 autocast over fp32 weights on a GPU and fp32 on a CPU;
        ``fp16_weights`` stores the towers' matrices in fp16, as the released code does.
    accumulate: pieces that a batch is encoded in. accumulation: ``whole`` keeps the whole
        contrastive batch; ``split`` averages the losses of the pieces, each with its own smaller
        matrix (the released DiDeMo setting: 16 of 64 pairs).
    positives: right pairs: all captions of a video, or (released code) a caption's ``own_pair``
        alone, so that two captions of one video are negatives of each other.
    freeze: ``embeddings`` freezes what the field's "freeze 0" does; ``towers`` both towers whole.
    lora_rank: train low-rank changes of the towers' matrices instead of the towers, at
        ``lr_head``; 0 for none. The exported model has them added in and is like any other.
    lora_targets: the matrices to change: of ``attention``, or ``all`` linear maps of both towers.
    shard: with several processes, share out weights, gradients and optimizer state of the towers'
        blocks (FSDP2), for towers that do not fit one GPU; needs ``optimizer="adamw"``.
    deterministic: on a GPU use kernels that give the same bits again, so that a resumed run equals
        one never interrupted; slower. A CPU always does.
    select: the split that chooses the epoch; ``test`` is what published rows do, and is reported.
    patience: stop after so many evaluations without a better one; 0 never stops.
    checkpoint_every: steps between checkpoints, besides those after evaluations and, at most every
        ten seconds, after epochs; 0 for none.
    """

    epochs: int = 5
    epoch_pairs: int = 0
    coarse_epochs: int = 0
    coarse_batch_size: int = 0
    batch_size: int = 64
    lr_encoder: float = 1e-6
    lr_head: float = 1e-4
    weight_decay: float = 0.2
    decay: Decay = "matrices"
    second_beta: float = 0.98
    warmup: float = 0.1
    schedule: ScheduleName = "cosine"
    rate_decay: float = 0.95  # after each epoch, with schedule="epochs"
    clip_norm: float = 1.0
    optimizer: OptimizerName = "adamw"
    precision: Precision = "auto"
    accumulate: int = 1
    accumulation: Accumulation = "whole"
    positives: Positives = "same_video"
    gradients: GatherGradients = "sum"
    augment: Augmentation = "none"
    checkpointing: bool = False
    checkpointed_blocks: int = 0  # with checkpointing: the first visual blocks only; 0: all blocks
    compile: bool = False  # on a GPU: what a step spends its time in; a CPU would only wait for it
    freeze: Freeze = "none"
    lora_rank: int = 0
    lora_targets: Targets = "attention"
    shard: bool = False
    captions: Captions = "all"
    neighbours: bool = False
    deterministic: bool = True
    seed: int = 0
    select: Select = "val"
    eval_every: int = 1
    patience: int = 0
    log_every: int = 20
    checkpoint_every: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"training.seed is {self.seed}; expected 0 to {MAX_SEED}")
        check_minimum(self, MINIMUM, prefix="training.")
        if not 0.0 < self.rate_decay <= 1.0:
            raise ConfigError(f"training.rate_decay is {self.rate_decay}; expected 0 to 1")
        if not 0.0 <= self.warmup < 1.0:
            raise ConfigError(f"training.warmup is {self.warmup}; expected a share from 0 to 1")
        if self.lora_rank and self.precision == "fp16_weights":
            raise ConfigError(
                "training.lora_rank cannot be combined with training.precision=fp16_weights, which "
                "trains the towers' own weights; set training.precision=auto"
            )
        if self.shard and (self.optimizer != "adamw" or self.precision == "fp16_weights"):
            raise ConfigError(
                "training.shard needs training.optimizer=adamw and weights in fp32; set "
                "training.precision=auto"
            )
        if self.accumulate > self.batch_size:
            raise ConfigError(
                f"training.accumulate is {self.accumulate}, more pieces than the "
                f"{self.batch_size} pairs of training.batch_size"
            )

    def make_optimizer(self, method: torch.nn.Module) -> torch.optim.Optimizer:
        groups = parameter_groups(
            method,
            lr_encoder=self.lr_encoder,
            lr_head=self.lr_head,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            decay=self.decay,
        )
        return build_optimizer(groups, self.optimizer, beta=self.second_beta)
