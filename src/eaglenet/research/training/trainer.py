"""The training loop: steps, log, evaluation, selection, checkpoints. Killed anywhere, it resumes.

Randomness of step k comes from (seed, k) alone, so a resumed run and a run on several processes
draw the same noise as one never interrupted on one process.
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
from eaglenet.core.run_folder import MODEL, LogEvent
from eaglenet.core.types import PairBatch
from eaglenet.encoders.low_rank import adapt_towers, merged_state
from eaglenet.methods.base import Method
from eaglenet.models.folder import save
from eaglenet.research.data.sources import Source
from eaglenet.research.environment import peak_memory
from eaglenet.research.evaluation.metrics import EvaluationOptions
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
from eaglenet.research.training.optimizer import (
    freeze_parameters,
    halve_towers,
    rate_factor,
)
from eaglenet.research.training.step import FiniteWatch, training_losses

# Signals that ask a run to stop: it finishes its step and writes a checkpoint first.

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# `timeout` and `torchrun` send a signal to the process and again to its group.
SAME_SIGNAL_SECONDS = 1.0


STOP_SECONDS = 2.0
"""Seconds that a second Ctrl-C waits for an operation that does not return to the interpreter."""


class StopRequest:
    """Within its ``with`` block, remembers the first signal; a later second one acts as usual.

    Python calls signal handlers between two of its own instructions only, and a backward pass on a
    CPU is a single one that may take a minute. So a thread, woken by the signal itself, says what
    happens, and ends the process if the handler of a second Ctrl-C cannot run.

    Outside the main thread signals cannot be caught, and act as usual.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._time = 0.0
        self._usual: dict[signal.Signals, Any] = {}
        self._wakeup_fd = -1

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._usual = {number: signal.signal(number, self._ask) for number in SIGNALS}
            receiver, sender = socket.socketpair()
            sender.setblocking(False)
            self._sender = sender
            self._wakeup_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(receiver,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _ask(self, number: int, _frame: Any) -> None:
        if self.signal is None:
            self.signal, self._time = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._time > SAME_SIGNAL_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _watch(self, receiver: socket.socket) -> None:
        """Answer each Ctrl-C at once; runs in a thread until the end of the block."""
        first = math.inf
        with receiver:
            while numbers := receiver.recv(1):
                now = time.monotonic()
                if numbers[0] != signal.SIGINT:
                    continue
                if first == math.inf:
                    first = now
                    # Not through a logger: the signal may have come while one was writing.
                    os.write(2, b"finishing and saving this step; Ctrl-C again stops at once\n")
                elif now - first > SAME_SIGNAL_SECONDS:
                    receiver.settimeout(STOP_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        if not receiver.recv(1):
                            return  # The handler has run.
                    os.write(2, b"stopped during a step; the last checkpoint is intact\n")
                    os._exit(128 + signal.SIGINT)

    def _restore(self) -> None:
        if self._usual:
            signal.set_wakeup_fd(self._wakeup_fd)
            self._sender.close()  # Ends the thread, which reads the end of the stream.
        for number, handler in self._usual.items():
            signal.signal(number, handler)
        self._usual = {}


logger = logging.getLogger(__name__)
CHECKPOINT_SECONDS = 480.0
"""Seconds after which a checkpoint is due whatever the number of steps: within ten minutes."""
RECENT_SECONDS = 10.0
"""Age up to which a checkpoint is enough after an epoch without an evaluation: heads on stored
features have epochs of half a second and checkpoints of 100 MB."""
SEED_STRIDE = 1_000_003  # a prime, so that (seed, step) pairs of usual runs do not collide


class Trainer:
    """Trains ``method`` on ``train`` and keeps the epoch that is best on ``selection``.

    ``experiment``, as plain values, is kept in every checkpoint for whoever opens one. ``boards``
    are names of :data:`eaglenet.research.training.checkpoint.BOARDS`.
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
        self._log_started = self._counted = self._saved = time.perf_counter()
        self._resume()
        self.logbook = None
        if world.is_main:
            opened = open_boards(boards, folder, self.position.step, experiment)
            self.logbook = Logbook(folder, opened)

    def _next_batches(self) -> tuple[PairSampler, int, int]:
        """Sampler of the next step, epochs before it, and batches of its epoch before it."""
        step = self.position.step
        if step < self.coarse_steps:
            return (self.coarse_sampler, *divmod(step, len(self.coarse_sampler)))
        epoch, start = divmod(step - self.coarse_steps, len(self.sampler))
        return self.sampler, self.config.coarse_epochs + epoch, start

    def _prepare_method(self) -> torch.optim.Optimizer:
        frozen = freeze_parameters(self.method, self.config.freeze)
        logger.info("%d parameters are frozen (freeze=%s)", frozen, self.config.freeze)
        if self.config.lora_rank:
            encoder = cast(nn.Module, self.method.encoder)
            count = adapt_towers(encoder, self.config.lora_rank, self.config.lora_targets)
            logger.info("%d matrices change by rank %d", count, self.config.lora_rank)
        if self.config.checkpointing:
            self.method.encoder.set_gradient_checkpointing(self.config.checkpointed_blocks or True)
        if self.config.precision == "fp16_weights":
            halve_towers(self.method)
        if self.config.compile and self.world.device.type == "cuda":
            # A machine without a working compiler trains uncompiled, with a warning.
            torch._dynamo.config.suppress_errors = True
            self.method.compile()
        broadcast_state(self.method, self.world)
        if self.config.shard:
            count = shard_towers(cast(nn.Module, self.method.encoder), self.world)
            logger.info("%d blocks are shared out over %d processes", count, self.world.size)
        return self.config.make_optimizer(self.method)

    def fit(self) -> Position:
        """Train to the end (or until patience is lost); gives where the run stands then.

        SIGTERM and SIGINT end it after the step with a checkpoint and a :class:`StoppedError`.
        """
        try:
            with self.stop:
                return self._fit()
        finally:
            if self.logbook is not None:
                self.logbook.close()

    def _fit(self) -> Position:
        self._counted = time.perf_counter()
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
            patience = self.config.patience or math.inf
            is_over = self.position.evaluations_since_best >= patience
            if self.position.step >= self.num_steps or is_over:
                break
            self._log_started = time.perf_counter()
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
        self.watch.look(step, values)
        self._remember(values)
        is_log_due = (
            self.position.step % self.config.log_every == 0 or self.world.device.type == "cpu"
        )
        if is_log_due:
            self._flush()
        every = self.config.checkpoint_every
        is_checkpoint_due = bool(every) and self.position.step % every == 0
        if is_log_due or self.world.size == 1:
            is_old = time.perf_counter() - self._saved > CHECKPOINT_SECONDS
            is_checkpoint_due = is_checkpoint_due or self._on_any_rank(is_old)
        # Ranks agree by a message that waits for the device, as the log does.
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
        # A rank that got none itself stops for the one that did.
        number = self.stop.signal or signal.SIGTERM
        raise StoppedError(
            f"stopped by {number.name} after step {self.position.step} of {self.num_steps}, which "
            f"is saved in {self.folder / 'checkpoints'}; run the same command again to continue",
            number,
        )

    def _remember(self, values: dict[str, Tensor]) -> None:
        """Keep the values on the device; they are copied together when the log is due."""
        if tuple(values) != self.names:
            self._flush()
            self.names = tuple(values)
        stacked = torch.stack([value.detach().float() for value in values.values()])
        self.pending.append((self.position.step, stacked))

    def _flush(self) -> None:
        self.watch.check()
        if not self.pending:
            return
        rows = torch.stack([values for _, values in self.pending]).tolist()
        elapsed = time.perf_counter() - self._log_started
        self.position.step_seconds += elapsed
        seconds = elapsed / len(rows)
        rates = {group["name"]: group["lr"] for group in self.optimizer.param_groups}
        for (step, _), row in zip(self.pending, rows, strict=True):
            named = dict(zip(self.names, row, strict=True))
            self._log("step", {**named, "seconds": round(seconds, 5)}, step)
            detail = f"loss {named['total']:.4f}{self._last_score}"
            report_progress(self.progress, "step", step, self.num_steps, detail)
        logger.debug("rates after step %d: %s", self.position.step, rates)
        self.pending = []
        self._log_started = time.perf_counter()

    def _finish_epoch(self, epoch: int) -> None:
        self._flush()
        self.position.epoch_seconds = self.position.step_seconds / epoch
        broadcast_state(self.method, self.world, buffers_only=True)
        is_due = epoch % self.config.eval_every == 0 or self.position.step >= self.num_steps
        # Until its own epochs begin, the method's head is untrained.
        if is_due and epoch > self.config.coarse_epochs:
            self._evaluate(epoch)
        self.position.evaluated = self.position.step
        is_old = time.perf_counter() - self._saved > RECENT_SECONDS
        if is_due or self._on_any_rank(is_old):
            self._checkpoint()

    def _evaluate(self, epoch: int) -> None:
        evaluated, precision = self.method, "fp32"
        if self.config.precision == "fp16_weights":
            # Towers compute in fp16 all the same: the precision that they are trained in.
            evaluated, precision = copy.deepcopy(self.method).float(), "fp16"
        with whole_weights(evaluated):
            result = evaluate_source(
                evaluated, self.selection, self.world, EvaluationOptions(precision=precision)
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
            weights = whole_state(evaluated.state_dict(), self.world)
            if self.world.is_main:
                save_model(evaluated, self.folder / MODEL, weights)
        barrier(self.world, "waiting for rank 0 to save the model")

    def _count(self) -> None:
        """Add the time since the last count, and what memory it took at most."""
        now = time.perf_counter()
        self.position.seconds += now - self._counted
        self._counted = now
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
        self._saved = time.perf_counter()
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
            at = self.position.step if step is None else step
            self.logbook.write(LogEvent(event, at, values))


def save_model(method: Method, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Save a model folder so that the old one is whole until the new one is.

    Low-rank changes are added to the weights they change.
    """
    with atomic_folder(folder) as fresh:
        save(method, fresh, weights=merged_state(weights))
