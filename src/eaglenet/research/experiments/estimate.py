"""Time and memory of a run, estimated from a few training steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from eaglenet.core.errors import EagleNetError
from eaglenet.core.types import Clips, PairBatch
from eaglenet.methods.base import Method
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.training.distributed import World
from eaglenet.research.training.epochs import pair_samplers
from eaglenet.research.training.memory import peak_memory, reset_peak_memory
from eaglenet.research.training.optimizer import (
    build_optimizer,
    freeze_parameters,
    halve_towers,
    parameter_groups,
)
from eaglenet.research.training.step import StepOptions, training_losses

FIRST_PAIRS = 4
"""Pairs of the first step that is timed on a CPU, where a whole batch may take minutes."""
ENOUGH_SECONDS = 2.0
"""Length of a step that is worth scaling; after a shorter one, twice the pairs are timed."""
MakeBatch = Callable[[int], PairBatch]
"""Number of pairs -> a batch of them."""


@dataclass(frozen=True)
class Estimate:
    """Steps of a run, seconds for all of them, and peak memory in bytes where it is known.

    Evaluation, decoding and compilation are not included.
    """

    num_steps: int
    seconds: float
    memory_bytes: int | None

    def __str__(self) -> str:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        length = f"{hours} h {minutes} min" if hours else f"{max(minutes, 1)} min"
        memory = f", {self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else ""
        return f"estimate: {self.num_steps:,} steps in about {length}{memory}, without evaluation"


def count_steps(experiment: Experiment, video_of_text: torch.Tensor, world: World) -> int:
    """Optimizer steps of the whole run."""
    coarse, usual = pair_samplers(experiment.training, video_of_text, world)
    training = experiment.training
    return training.coarse_epochs * len(coarse) + training.epochs * len(usual)


def estimate_run(
    experiment: Experiment,
    method: Method,
    make_batch: MakeBatch,
    num_steps: int,
    device: torch.device,
) -> Estimate:
    """Time training steps and scale them to the batch size and the steps of the run.

    The weights of ``method`` change.
    """
    training = experiment.training
    method = method.to(device).train()
    freeze_parameters(method, training.freeze)
    if training.precision == "fp16_weights":
        halve_towers(method)
    if training.checkpointing:
        method.encoder.set_gradient_checkpointing(training.checkpointed_blocks or True)
    groups = parameter_groups(
        method,
        lr_encoder=training.lr_encoder,
        lr_head=training.lr_head,
        weight_decay=training.weight_decay,
        optimizer=training.optimizer,
        decay=training.decay,
    )
    optimizer = build_optimizer(groups, training.optimizer, beta=training.second_beta)
    options = StepOptions(
        training.precision, positives=training.positives, num_frames=method.frame_spec.num_frames
    )

    def time_step(pairs: int) -> float:
        batch = make_batch(pairs).to(device)
        started = time.perf_counter()
        training_losses(method, batch, options, World(device=device), seed=0)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    pairs = training.batch_size if device.type == "cuda" else FIRST_PAIRS
    pairs = min(pairs, training.batch_size)
    reset_peak_memory(device)
    before = peak_memory(device)
    seconds = time_step(pairs)
    if seconds < 5 * ENOUGH_SECONDS:
        seconds = time_step(pairs)  # the first step also allocates
    while pairs < training.batch_size and seconds < ENOUGH_SECONDS:
        pairs = min(2 * pairs, training.batch_size)
        seconds = time_step(pairs)
    peak = peak_memory(device)
    scale = training.batch_size / pairs
    memory = None
    if peak is not None and before is not None:
        memory = round(before + (peak - before) * scale)
    return Estimate(num_steps, seconds * scale * num_steps, memory)


def blank_batch(experiment: Experiment, method: Method, pairs: int) -> PairBatch:
    """Blank frames and one-word texts of the sizes that training shows."""
    spec = experiment.data.frames
    frames = torch.zeros(pairs, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(pairs, spec.num_frames, dtype=torch.bool)
    seconds = torch.arange(spec.num_frames, dtype=torch.float32).expand(pairs, -1)
    tokens = method.tokenize(["a"] * pairs, experiment.data.max_words)
    return PairBatch(tokens, Clips(frames, mask, seconds), torch.arange(pairs))


def try_estimate(
    experiment: Experiment,
    method: Method,
    make_batch: MakeBatch,
    num_steps: int,
    device: torch.device,
) -> Estimate | str:
    """:func:`estimate_run`, or why it was not possible."""
    try:
        return estimate_run(experiment, method, make_batch, num_steps, device)
    except torch.OutOfMemoryError:
        return (
            f"a step of {experiment.training.batch_size} pairs does not fit into the memory of "
            f"{device}: lower it with --set training.batch_size=N, or --set training.accumulate=N"
        )
    except EagleNetError as error:
        return f"no estimate: {error}"
