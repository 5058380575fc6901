"""Training loop: steps, log, evaluation, selection of the best epoch, checkpoints, resuming.

The random state of step k depends only on (seed, k) and, while videos and texts are encoded, on the
rank. So a resumed run draws the same noise as an uninterrupted one, and the losses of a run with
several processes the same as with one.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from eaglenet.core.errors import StoppedError
from eaglenet.core.files import atomic_folder
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import PairBatch
from eaglenet.encoders.fp8_gradients import use_fp8_gradients
from eaglenet.encoders.low_rank import adapt_towers, merged_state
from eaglenet.methods.base import Method
from eaglenet.models.files import MODEL
from eaglenet.models.folder import save
from eaglenet.research.data.sources import Source
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.evaluation.run_records import LogEvent, peak_memory
from eaglenet.research.training.checkpoint import (
    Logbook,
    Position,
    cut_log,
    latest_checkpoint,
    open_boards,
    write_checkpoint,
)
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import (
    World,
    average_gradients,
    barrier,
    broadcast_state,
    clip_gradients,
    load_whole_state,
    shard_towers,
    sum_over_ranks,
    whole_state,
    whole_weights,
)
from eaglenet.research.training.epochs import (
    PairSampler,
    epoch_batches,
    evaluate_source,
    pair_samplers,
)
from eaglenet.research.training.optimizer import freeze_parameters, halve_towers, rate_factor
from eaglenet.research.training.step import FiniteWatch, training_losses

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals after which a run completes its step and writes a checkpoint."""
SAME_SIGNAL_SECONDS = 1.0
"""Time within which a repeated signal is ignored; `timeout` and `torchrun` send signals twice."""
STOP_SECONDS = 2.0
"""Time after a second Ctrl-C until the process is ended, if its signal handler does not run."""


class StopRequest:
    """Context manager that catches the first signal; a second one has its default effect.

    Python runs signal handlers only between bytecode instructions, and a backward pass on a CPU is
    one instruction that may take a minute. So a thread, which the signal wakes directly, prints a
    message, and ends the process if the handler of a second Ctrl-C cannot run.

    Outside the main thread, signals cannot be caught and have their default effect.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._time = 0.0
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._wakeup_fd = -1

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._old_handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
            receiver, sender = socket.socketpair()
            sender.setblocking(False)
            self._sender = sender
            self._wakeup_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(receiver,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _handle(self, number: int, _frame: Any) -> None:
        if self.signal is None:
            self.signal, self._time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._time > SAME_SIGNAL_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _watch(self, receiver: socket.socket) -> None:
        """Print a message for each Ctrl-C; runs in a thread until the end of the block."""
        first = math.inf
        with receiver:
            while numbers := receiver.recv(1):
                now = time.monotonic()
                if numbers[0] != signal.SIGINT:
                    continue
                if first == math.inf:
                    first = now
                    # Not through a logger, which may be writing just now.
                    os.write(2, b"finishing and saving this step; Ctrl-C again stops at once\n")
                elif now - first > SAME_SIGNAL_SECONDS:
                    receiver.settimeout(STOP_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        if not receiver.recv(1):
                            return  # The handler has run.
                    os.write(2, b"stopped during a step; the last checkpoint is intact\n")
                    os._exit(128 + signal.SIGINT)

    def _restore(self) -> None:
        if self._old_handlers:
            signal.set_wakeup_fd(self._wakeup_fd)
            self._sender.close()  # Ends the thread.
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers = {}


logger = logging.getLogger(__name__)
CHECKPOINT_SECONDS = 480.0
"""Longest time between checkpoints, whatever the number of steps."""
RECENT_SECONDS = 10.0
"""Age of a checkpoint below which an epoch without an evaluation writes none: heads on stored
features have epochs of half a second and checkpoints of 100 MB."""
SEED_STRIDE = 1_000_003
"""A prime, so that (seed, step) pairs of usual runs do not collide."""


def prepare_method(method: Method, config: TrainingConfig) -> None:
    """Freeze and adapt the towers of a new method as ``config`` says."""
    num_frozen = freeze_parameters(method, config.freeze)
    logger.info("%d parameters are frozen (freeze=%s)", num_frozen, config.freeze)
    if config.lora_rank:
        encoder = cast(nn.Module, method.encoder)
        count = adapt_towers(encoder, config.lora_rank, config.lora_targets)
        logger.info("%d matrices have updates of rank %d", count, config.lora_rank)
    if config.precision == "fp8_gradients":
        encoder = cast(nn.Module, method.encoder)
        count = use_fp8_gradients(encoder, method.device)
        logger.info("%d layers compute their gradients in fp8", count)
    if config.checkpointing:
        method.encoder.set_gradient_checkpointing(config.checkpointed_blocks or True)


class Trainer:
    """Trainer of ``method`` on ``train``; saves the epoch that is best on ``selection``.

    experiment: plain values, saved in every checkpoint for information. boards: names of
    :data:`eaglenet.research.training.checkpoint.BOARDS`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        method: Method,
        train: Source,
        selection: Source,
        folder: Path,
        world: World,
        *,
        experiment: Mapping[str, Any],
        progress: Progress | None = None,
        boards: Sequence[str] = (),
    ) -> None:
        self.experiment = experiment
        self.config = config
        self.method = method.to(world.device)
        self.train, self.selection = train, selection
        self.folder, self.world = folder, world
        self.coarse_sampler, self.sampler = pair_samplers(self.config, train.video_of_text, world)
        self.coarse_steps = self.config.coarse_epochs * len(self.coarse_sampler)
        self.num_steps = self.coarse_steps + self.config.epochs * len(self.sampler)
        self.optimizer = self._prepare_method()
        self.position = Position()
        self.watch = FiniteWatch(world.device)
        self.pending: list[tuple[int, Tensor]] = []
        self.names: tuple[str, ...] = ()
        self.stop = StopRequest()
        self.progress = progress if world.is_main else None
        self._last_score = ""
        self._flush_time = self._count_time = self._save_time = time.perf_counter()
        self._resume()
        self.logbook = None
        if world.is_main:
            board_writers = open_boards(boards, folder, self.position.step, experiment)
            self.logbook = Logbook(folder, board_writers)

    def _next_batches(self) -> tuple[PairSampler, int, int]:
        """Return the sampler of the next step, its epoch, and its batch within the epoch."""
        step = self.position.step
        if step < self.coarse_steps:
            return (self.coarse_sampler, *divmod(step, len(self.coarse_sampler)))
        epoch, start = divmod(step - self.coarse_steps, len(self.sampler))
        return self.sampler, self.config.coarse_epochs + epoch, start

    def _prepare_method(self) -> torch.optim.Optimizer:
        prepare_method(self.method, self.config)
        if self.config.precision == "fp16_weights":
            halve_towers(self.method)
        if self.config.compile and self.world.device.type == "cuda":
            # A machine without a working compiler trains uncompiled, with a warning.
            torch._dynamo.config.suppress_errors = True
            self.method.compile()
        broadcast_state(self.method, self.world)
        if self.config.shard:
            count = shard_towers(cast(nn.Module, self.method.encoder), self.world)
            logger.info("%d blocks are sharded over %d processes", count, self.world.size)
        return self.config.make_optimizer(self.method)

    def fit(self) -> Position:
        """Train to the end, or until ``config.patience`` is exceeded; return the final position.

        Raises:
            StoppedError: SIGTERM or SIGINT arrived; a checkpoint was written after the step.
        """
        try:
            with self.stop:
                return self._fit()
        finally:
            if self.logbook is not None:
                self.logbook.close()

    def _fit(self) -> Position:
        self._count_time = time.perf_counter()
        self._log("start", {"num_steps": self.num_steps})
        report_progress(self.progress, "step", self.position.step, self.num_steps, is_notable=True)
        self.method.train()
        while True:
            sampler, epoch, start = self._next_batches()
            if start == 0 and self.position.evaluated < self.position.step:
                self._finish_epoch(epoch)
                if self._on_any_rank(self.stop.signal is not None):
                    self._checkpoint()
                    self._stop()
            max_evaluations = self.config.patience or math.inf
            is_stalled = self.position.evaluations_since_best >= max_evaluations
            if self.position.step >= self.num_steps or is_stalled:
                break
            self._flush_time = time.perf_counter()
            for batch in epoch_batches(self.train, sampler, epoch, start, self.world):
                self._step(batch)
        self._count()
        self._log("end", {"best_epoch": self.position.best_epoch})
        return self.position

    def _step(self, batch: PairBatch) -> None:
        step = self.position.step
        self.optimizer.zero_grad(set_to_none=True)
        seed = self.config.seed * SEED_STRIDE + step * self.config.accumulate
        is_coarse = step < self.coarse_steps
        losses = training_losses(
            self.method, batch, self.config, self.world, seed=seed, is_coarse=is_coarse
        )
        average_gradients(self.method.parameters(), self.world)
        clip_norm = self.config.clip_norm or float("inf")
        norm = clip_gradients(self.method.parameters(), clip_norm, self.world)
        factor = rate_factor(
            step,
            self.num_steps,
            warmup=self.config.warmup,
            schedule=self.config.schedule,
            epochs=self.config.epochs + self.config.coarse_epochs,
            decay=self.config.rate_decay,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.step()
        self.position.step = step + 1
        self.position.pairs += len(batch.video_ids) * self.world.size
        values = {**losses.terms, "total": losses.total, "gradient norm": norm}
        self.watch.record(step, values)
        self._remember(values)
        is_log_due = (
            self.position.step % self.config.log_every == 0 or self.world.device.type == "cpu"
        )
        if is_log_due:
            self._flush()
        interval = self.config.checkpoint_every
        is_checkpoint_due = bool(interval) and self.position.step % interval == 0
        if is_log_due or self.world.size == 1:
            is_old = time.perf_counter() - self._save_time > CHECKPOINT_SECONDS
            is_checkpoint_due = is_checkpoint_due or self._on_any_rank(is_old)
        # Several ranks agree only when the log is due, because agreement waits for the device.
        is_stopping = (is_log_due or self.world.size == 1) and self._on_any_rank(
            self.stop.signal is not None
        )
        if is_checkpoint_due or is_stopping:
            self._checkpoint()
        if is_stopping:
            self._stop()

    def _on_any_rank(self, flag: bool) -> bool:
        return bool(sum_over_ranks(torch.tensor(int(flag)), self.world))

    def _stop(self) -> None:
        # None if another rank received the signal.
        number = self.stop.signal or signal.SIGTERM
        raise StoppedError(
            f"stopped by {number.name} after step {self.position.step} of {self.num_steps}, which "
            f"is saved in {self.folder / 'checkpoints'}; run the same command again to continue",
            number,
        )

    def _remember(self, values: dict[str, Tensor]) -> None:
        """Keep the values on the device until the log is due."""
        if tuple(values) != self.names:
            self._flush()
            self.names = tuple(values)
        row = torch.stack([value.detach().float() for value in values.values()])
        self.pending.append((self.position.step, row))

    def _flush(self) -> None:
        self.watch.check()
        if not self.pending:
            return
        rows = torch.stack([values for _, values in self.pending]).tolist()
        duration = time.perf_counter() - self._flush_time
        self.position.step_seconds += duration
        seconds = duration / len(rows)
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        for (step, _), row in zip(self.pending, rows, strict=True):
            values = dict(zip(self.names, row, strict=True))
            self._log("step", {**values, "seconds": round(seconds, 5)}, step)
            detail = f"loss {values['total']:.4f}{self._last_score}"
            report_progress(self.progress, "step", step, self.num_steps, detail)
        logger.debug("rates after step %d: %s", self.position.step, rates)
        self.pending = []
        self._flush_time = time.perf_counter()

    def _finish_epoch(self, epoch: int) -> None:
        self._flush()
        self.position.epoch_seconds = self.position.step_seconds / epoch
        broadcast_state(self.method, self.world, buffers_only=True)
        is_due = epoch % self.config.eval_every == 0 or self.position.step >= self.num_steps
        # The head of the method is untrained during the coarse epochs.
        if is_due and epoch > self.config.coarse_epochs:
            self._evaluate(epoch)
        self.position.evaluated = self.position.step
        is_old = time.perf_counter() - self._save_time > RECENT_SECONDS
        if is_due or self._on_any_rank(is_old):
            self._checkpoint()

    def _evaluate(self, epoch: int) -> None:
        model, precision = self.method, "fp32"
        if self.config.precision == "fp16_weights":
            # Autocast lets the towers compute in fp16, as in training.
            model, precision = copy.deepcopy(self.method).float(), "fp16"
        with whole_weights(model):
            result = evaluate_source(
                model,
                self.selection,
                self.world,
                EvaluationOptions(precision=precision),
                progress=self.progress,
            )
        record = {"epoch": epoch, "protocol": result.protocol, **result.metrics.to_dict()}
        self._log("evaluation", record)
        score = result.metrics.t2v.recall_at_1
        headline = f"epoch {epoch}: t2v R@1 {score:.1f}"
        self._last_score = f", {headline}"
        report_progress(
            self.progress, "step", self.position.step, self.num_steps, headline, is_notable=True
        )
        self.position.history.append(record)
        self.position.evaluations_since_best += 1
        if score > self.position.best_score:
            self.position.best_score, self.position.best_epoch = score, epoch
            self.position.evaluations_since_best = 0
            weights = whole_state(model.state_dict(), self.world)
            if self.world.is_main:
                save_model(model, self.folder / MODEL, weights)
        barrier(self.world, "waiting for rank 0 to save the model")

    def _count(self) -> None:
        """Add the time since the last call, and update the peak memory."""
        now = time.perf_counter()
        self.position.seconds += now - self._count_time
        self._count_time = now
        peaks = [self.position.peak_bytes, peak_memory(self.world.device)]
        self.position.peak_bytes = max((peak for peak in peaks if peak is not None), default=None)

    def _checkpoint(self) -> None:
        self._flush()
        self._count()
        weights = whole_state(self.method.state_dict(), self.world)
        moments = whole_state(self.optimizer.state_dict(), self.world)
        if self.world.is_main:
            write_checkpoint(
                self.folder / "checkpoints",
                self.position.step,
                {
                    "experiment": dict(self.experiment),
                    "position": vars(self.position).copy(),
                    "sampler": self._next_batches()[0].identity(),
                    "method": weights,
                    "optimizer": moments,
                },
            )
        self._save_time = time.perf_counter()
        barrier(self.world, "waiting for rank 0 to write a checkpoint")

    def _resume(self) -> None:
        state = latest_checkpoint(self.folder / "checkpoints")
        if state is None:
            if self.world.is_main:
                cut_log(self.folder, -1, -1)
            return
        self.position = Position(**state["position"])
        self._next_batches()[0].check_identity(state["sampler"])
        load_whole_state(self.method, self.optimizer, state["method"], state["optimizer"])
        if self.world.is_main:
            cut_log(self.folder, self.position.step, self.position.evaluated)
        logger.info("resuming after step %d of %d", self.position.step, self.num_steps)

    def _log(self, event: str, values: Mapping[str, Any], step: int | None = None) -> None:
        if self.logbook is not None:
            step = self.position.step if step is None else step
            self.logbook.write(LogEvent(event, step, values))


def save_model(method: Method, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Replace a model folder atomically; low-rank changes are merged into the weights."""
    with atomic_folder(folder) as new_folder:
        save(method, new_folder, weights=merged_state(weights))
