"""Duration of an index run: a formula, and a simulation of every call.

    python benchmarks/scale_model.py        # both, for docs/explanation/scale.md

``tests/test_scale_model.py`` compares the simulation with measurements of ``benchmarks/scale.py``.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

CLIPS_PER_HOUR = 450
"""Clips of ten seconds that overlap by two."""


@dataclass(frozen=True)
class Run:
    """An index run on one machine or a cluster."""

    clips: int
    cores: int
    workers: int
    """Processes that decode, at most one per core."""
    decode_seconds: float = 1 / 2.3
    """Core seconds per clip for decoding 12 frames of 224 pixels from H.264."""
    encode_seconds: float = 0.0
    """Core seconds per clip for encoding; 0 if GPUs encode."""
    encoders: int = 0
    """Threads that encode on the cores: all of one machine, or one per worker on Ray."""
    gpus: int = 0
    encode_per_gpu: float = 1200.0
    """Clips per second."""
    call_clips: int = 16
    """Clips per call to a worker."""
    start_seconds: float = 10.0
    """Start of a worker: Python, torch and the model."""
    losses_per_hour: float = 0.0
    """Workers lost per hour and core."""
    link: float = 0.0
    """Bytes per second from the storage to all machines together; 0 if the files are local."""
    video_bytes: float = 8e6
    """Bytes per clip: 8 seconds that no other clip has, at 8 Mbit/s."""
    commit_clips: int = 256
    commit_seconds: float = 0.05
    commit_seconds_per_million: float = 0.0
    """Additional seconds for each million clips in the store."""
    rows_before: int = 0
    """Clips in the store before the run."""
    pause: float = 4.0
    max_waiting: int = 4096
    """Commits are ``pause`` times their duration apart unless this many clips wait for one, as in
    ``eaglenet.indexing.run``."""


def rate_of(run: Run) -> float:
    """Return clips per second: the slowest of decoding, encoding, cores, GPUs, storage, commits."""
    rates = [run.workers / run.decode_seconds]
    if run.gpus:
        rates.append(run.gpus * run.encode_per_gpu)
    else:
        rates.append(run.cores / (run.decode_seconds + run.encode_seconds))
        if run.encode_seconds:
            rates.append(run.encoders / run.encode_seconds)
    if run.link:
        rates.append(run.link / run.video_bytes)
    rates.append(run.max_waiting / commit_time(run, run.clips / 2))
    return min(rates)


def commit_time(run: Run, rows: float) -> float:
    """Return the seconds of a commit into a store to which the run has added ``rows`` clips."""
    return run.commit_seconds + run.commit_seconds_per_million * (run.rows_before + rows) / 1e6


def predict(run: Run) -> float:
    """Return the seconds of the run: start + clips / rate * (1 + losses * (call / 2 + start)).

    A worker that is lost costs half a call and a start.
    """
    rate = rate_of(run)
    call_seconds = run.call_clips * run.workers / rate
    overhead = run.losses_per_hour / 3600 * (call_seconds / 2 + run.start_seconds)
    return run.start_seconds + run.clips / rate * (1 + overhead)


@dataclass
class _Clock:
    """Clock that plays events in the order of their times."""

    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + seconds, self.count, action))

    def play(self) -> None:
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()


class _Simulation:
    """Calls go from the storage to a worker, to an encoder, and to the driver, which commits."""

    def __init__(self, run: Run) -> None:
        self.run, self.clock, self.chance = run, _Clock(), random.Random(0)
        self.num_remaining = -(-run.clips // run.call_clips)
        self.cores = run.cores
        self.workers = 0
        self.encoders = run.gpus if run.gpus else run.encoders
        self.num_decoded = 0
        """Calls that wait for an encoder."""
        self.num_ahead = 0
        """Calls that have begun and that the driver has not received: up to two per worker + 2."""
        self.num_finished = 0
        self.link_free = 0.0
        self.num_waiting = self.num_committed = 0
        """Clips that wait for a commit, and clips in the store."""
        self.is_committing = False
        self.last_commit, self.commit_duration = 0.0, 0.0

    def play(self) -> float:
        for _ in range(self.run.workers):
            self.clock.after(self.run.start_seconds, self._arrive)
        self.clock.play()
        return self.clock.now

    def _arrive(self) -> None:
        self.workers += 1
        self._go_on()

    def _go_on(self) -> None:
        """Begin all work that can begin, encoding before decoding."""
        run = self.run
        while self.num_decoded and self.encoders and (run.gpus or self.cores):
            self.num_decoded -= 1
            self.encoders -= 1
            self.cores -= 0 if run.gpus else 1
            seconds = run.call_clips * (1 / run.encode_per_gpu if run.gpus else run.encode_seconds)
            self.clock.after(seconds, self._finish_encoding)
        max_ahead = 2 * run.workers + 2
        while self.num_remaining and self.workers and self.cores and self.num_ahead < max_ahead:
            self.num_remaining -= 1
            self.num_ahead += 1
            self.workers -= 1
            self.cores -= 1
            self._decode()
        if self.num_waiting and not self.is_committing:
            self._consider_commit()

    def _decode(self) -> None:
        run = self.run
        arrival = self.clock.now
        if run.link:
            self.link_free = max(self.clock.now, self.link_free)
            self.link_free += run.call_clips * run.video_bytes / run.link
            arrival = self.link_free
        work = run.call_clips * run.decode_seconds * self.chance.uniform(0.8, 1.2)
        seconds = arrival - self.clock.now + work
        loss = self.chance.expovariate(run.losses_per_hour / 3600) if run.losses_per_hour else 1e30
        if loss < seconds:
            self.clock.after(loss, self._lose_worker)
        else:
            self.clock.after(seconds, self._finish_decoding)

    def _lose_worker(self) -> None:
        self.num_remaining += 1
        self.num_ahead -= 1
        self.cores += 1
        self.clock.after(self.run.start_seconds, self._arrive)
        self._go_on()

    def _finish_decoding(self) -> None:
        self.workers += 1
        self.cores += 1
        if self.run.gpus or self.run.encode_seconds:
            self.num_decoded += 1
        else:
            self._receive()
        self._go_on()

    def _finish_encoding(self) -> None:
        self.encoders += 1
        self.cores += 0 if self.run.gpus else 1
        self._receive()
        self._go_on()

    def _receive(self) -> None:
        """Receive results in the driver; during a commit they wait, and so do the workers."""
        self.num_finished += 1
        if not self.is_committing:
            self.num_ahead -= self.num_finished
            self.num_waiting += self.num_finished * self.run.call_clips
            self.num_finished = 0

    def _consider_commit(self) -> None:
        run, pause = self.run, self.clock.now - self.last_commit
        is_last = not self.num_remaining and not self.num_ahead
        is_early = pause < run.pause * self.commit_duration
        if not is_last and self.num_waiting < run.max_waiting and is_early:
            return
        if not is_last and self.num_waiting < run.commit_clips:
            return
        self.is_committing = True
        num_clips, self.num_waiting = self.num_waiting, 0
        self.commit_duration = commit_time(run, self.num_committed)

        def finish() -> None:
            self.num_committed += num_clips
            self.is_committing = False
            self.last_commit = self.clock.now
            self.num_finished -= 1
            self._receive()
            self._go_on()

        self.clock.after(self.commit_duration, finish)


def simulate(run: Run) -> float:
    """Return the seconds of a simulated run."""
    return _Simulation(run).play()


def archive(hours: float, cores: int, gpus: int, **changes: float) -> Run:
    """Return a run over an archive with GPUs."""
    values: dict[str, float] = {"call_clips": 32, **changes}
    return Run(round(hours * CLIPS_PER_HOUR), cores, cores, gpus=gpus, **values)  # type: ignore[arg-type]


def main() -> None:
    for run in (
        archive(1_000, 64, 1),
        archive(1_000, 64, 1, losses_per_hour=2.0),
        archive(1_000, 1_000, 1),
        archive(1_000, 64, 1, link=100e6),
        archive(1_000, 64, 1, commit_seconds_per_million=0.6, rows_before=5_000_000),
    ):
        formula, simulation = predict(run), simulate(run)
        ratio = formula / simulation
        print(f"{run}\n  formula {formula:,.0f} s, simulation {simulation:,.0f} s: {ratio:.3f}")


if __name__ == "__main__":
    main()
