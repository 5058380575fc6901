"""Training settings in one frozen dataclass, which checks their values."""

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

Precision = Literal["auto", "bf16", "fp8_gradients", "fp32", "fp16_weights"]
Accumulation = Literal["whole", "split"]
Positives = Literal["same_video", "own_pair"]
Select = Literal["val", "test"]
Captions = Literal["all", "one"]
MAX_SEED = 2**31 - 1
"""Seeds of steps are computed from the seed (`training.trainer`) and must fit 63 bits."""
MINIMUM: Mapping[int, Sequence[str]] = {
    1: ("epochs", "batch_size", "accumulate", "eval_every", "log_every"),
    0: (
        "lr_encoder", "lr_head", "weight_decay", "clip_norm", "patience", "checkpoint_every",
        "checkpointed_blocks", "epoch_pairs", "lora_rank", "coarse_epochs", "coarse_batch_size",
    ),
}  # fmt: skip


def check_minimum(settings: Any, names: Mapping[int, Sequence[str]], prefix: str = "") -> None:
    """Raise if a field is not finite or below its minimum; ``names`` has fields by minimum."""
    for minimum, fields in names.items():
        for name in fields:
            value = getattr(settings, name)
            if not math.isfinite(value):
                raise ConfigError(f"{prefix}{name} is {value}; expected a number")
            if value < minimum:
                raise ConfigError(f"{prefix}{name} is {value}; expected {minimum} or more")


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings; ``eaglenet recipes`` shows how a recipe differs from these defaults.

    epochs: passes over all captions (``captions="all"``), or over all videos with one random
        caption each (``captions="one"``).
    epoch_pairs: pairs per epoch, in as many passes as needed; 0 for one pass.
    coarse_epochs: number of additional epochs, before the others, that train only the towers with
        the softmax loss of coarse vectors (`training.step.coarse_losses`); for towers that do not
        start from CLIP.
    coarse_batch_size: pairs per batch in those epochs, which need less memory; 0 for
        ``batch_size``.
    batch_size: pairs in one contrastive batch, over all processes and chunks.
    lr_encoder, lr_head: peak learning rates of the encoder (towers, or adapters of stored features)
        and of all other parameters. Use 1e-6 for CLIP in fp32: the 1e-7 of the released code is for
        fp16 weights and does not change fp32 weights.
    decay: parameters to which ``weight_decay`` applies, see `training.optimizer.is_decayed`.
    second_beta: beta of the optimizer's second moment.
    warmup: fraction of all steps.
    rate_decay: factor of the rate after each epoch, with ``schedule="epochs"``.
    clip_norm: largest norm of all gradients together; 0 for no limit.
    precision: ``auto`` is bf16 autocast over fp32 weights on a GPU and fp32 on a CPU;
        ``fp8_gradients`` is bf16 with the gradients of the towers as products of fp8 numbers, on
        GPUs that have them (`encoders.fp8_gradients`): faster, and in less memory;
        ``fp16_weights`` stores the matrices of the towers in fp16, as the released code does.
    accumulate: number of chunks in which a batch is encoded.
    accumulation: ``whole`` computes the loss of the whole batch; ``split`` averages the losses of
        the chunks, which contrasts fewer pairs (the released code on DiDeMo: 16 of 64).
    positives: right pairs: all captions of a video, or with ``own_pair`` (released code) only the
        caption of the pair, so that two captions of one video are negatives of each other.
    gradients: gradients of features gathered from several processes: ``sum`` (equal to one process
        with the whole batch) or ``local`` (common code), see `training.distributed`.
    augment: ``crop_flip`` crops and mirrors videos; ``rand_augment`` changes colours and geometry
        (`training.augmentation`).
    checkpointed_blocks: with ``checkpointing``, only this many first visual blocks; 0 for all.
    compile: compile the method on a GPU.
    freeze: ``embeddings`` freezes the embeddings of the towers, as "freeze 0" of common code does;
        ``towers`` freezes both towers.
    lora_rank: train low-rank changes of the towers' matrices of this rank instead of the towers, at
        ``lr_head``; 0 for none. They are merged into the exported model.
    lora_targets: matrices to change: those of ``attention``, or of ``all`` linear layers.
    shard: distribute weights, gradients and optimizer state of the towers' blocks over processes
        (FSDP2), for towers that do not fit one GPU; needs ``optimizer="adamw"``.
    neighbours: keep videos 2k and 2k + 1 in one batch (``captions="one"``), as hard negatives: in
        the demo world they differ only in the order of events.
    deterministic: use deterministic kernels on a GPU, so that a resumed run equals an uninterrupted
        one. They are slower. A CPU always uses them.
    select: split that chooses the epoch; ``test``, as in many published results, is reported.
    patience: stop after this many evaluations without improvement; 0 never stops.
    checkpoint_every: steps between checkpoints within an epoch; 0 for none. Evaluations are
        followed by a checkpoint, other epochs by at most one every ten seconds.
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
    rate_decay: float = 0.95
    clip_norm: float = 1.0
    optimizer: OptimizerName = "adamw"
    precision: Precision = "auto"
    accumulate: int = 1
    accumulation: Accumulation = "whole"
    positives: Positives = "same_video"
    gradients: GatherGradients = "sum"
    augment: Augmentation = "none"
    checkpointing: bool = False
    checkpointed_blocks: int = 0
    compile: bool = False
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
        if not 0.0 <= self.second_beta < 1.0:
            raise ConfigError(
                f"training.second_beta is {self.second_beta}; expected 0 or more, and less than 1"
            )
        if not 0.0 <= self.warmup < 1.0:
            raise ConfigError(f"training.warmup is {self.warmup}; expected a fraction from 0 to 1")
        if self.lora_rank and self.precision == "fp16_weights":
            raise ConfigError(
                "training.lora_rank cannot be combined with training.precision=fp16_weights, which "
                "trains the weights of the towers: --set training.precision=auto"
            )
        if self.precision == "fp8_gradients" and (self.lora_rank or self.shard):
            raise ConfigError(
                "training.precision=fp8_gradients cannot be combined with training.lora_rank or "
                "training.shard, which replace the weights of the towers: --set "
                "training.precision=auto"
            )
        if self.shard and (self.optimizer != "adamw" or self.precision == "fp16_weights"):
            raise ConfigError(
                "training.shard needs weights in fp32 and AdamW: --set training.precision=auto "
                "--set training.optimizer=adamw"
            )
        if self.accumulate > self.batch_size:
            raise ConfigError(
                f"training.accumulate is {self.accumulate}, but a batch has only "
                f"{self.batch_size} pairs (training.batch_size)"
            )

    @property
    def chooses_epoch(self) -> bool:
        """True if several epochs are evaluated, so that the best of them is selected."""
        return self.epochs > self.eval_every

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
