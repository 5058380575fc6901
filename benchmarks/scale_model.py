"""What an index run takes: a formula, and a simulation that plays the run call by call.

    python benchmarks/scale_model.py        # both, for docs/explanation/scale.md

``tests/test_scale_model.py`` holds the simulation against what ``benchmarks/scale.py`` measured.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

CLIPS_AN_HOUR = 450
"""Of ten seconds that overlap by two."""


@dataclass(frozen=True)
class Run:
    """An index run on one machine or a cluster. Rates are of one core and one clip."""

    clips: int
    cores: int
    workers: int
    """Processes that decode, at most one a core."""
    decode_seconds: float = 1 / 2.3
    """Core seconds a clip; 12 frames of 224 from H.264."""
    encode_seconds: float = 0.0
    """Core seconds a clip where the cores encode; 0 where GPUs do."""
    encoders: int = 0
    """Threads that encode on the cores: all of one machine's, or one of each worker on Ray."""
    gpus: int = 0
    encode_a_gpu: float = 1200.0
    """Clips a second."""
    shard: int = 16
    """Clips of a call to a worker."""
    start_seconds: float = 10.0
    """Of a worker: Python, torch and the model."""
    losses_an_hour: float = 0.0
    """Workers lost in an hour, of each core."""
    link: float = 0.0
    """Bytes a second that the storage gives all machines together; 0: the files are local."""
    video_bytes: float = 8e6
    """Of a clip: 8 seconds that no other clip has, at 8 Mbit/s."""
    commit_clips: int = 256
    commit_seconds: float = 0.05
    commit_seconds_a_million: float = 0.0
    """More for each million clips that the store holds."""
    rows_before: int = 0
    """Clips that the store holds when the run begins."""
    pause: float = 4.0
    most_waiting: int = 4096
    """As in ``eaglenet.indexing.run``."""


def rate_of(run: Run) -> float:
    """Clips a second: the slowest of decoding, encoding, cores, GPUs, storage and commits."""
    rates = [run.workers / run.decode_seconds]
    if run.gpus:
        rates.append(run.gpus * run.encode_a_gpu)
    else:
        rates.append(run.cores / (run.decode_seconds + run.encode_seconds))
        if run.encode_seconds:
            rates.append(run.encoders / run.encode_seconds)
    if run.link:
        rates.append(run.link / run.video_bytes)
    rates.append(run.most_waiting / commit_time(run, run.clips / 2))
    return min(rates)


def commit_time(run: Run, rows: float) -> float:
    """Seconds of one commit into a store of so many clips."""
    return run.commit_seconds + run.commit_seconds_a_million * (run.rows_before + rows) / 1e6


def predicted(run: Run) -> float:
    """Seconds = start + clips / rate * (1 + losses * (shard / 2 + start)).

    A worker that is lost costs half a shard and a start.
    """
    rate = rate_of(run)
    shard_seconds = run.shard * run.workers / rate
    wasted = run.losses_an_hour / 3600 * (shard_seconds / 2 + run.start_seconds)
    return run.start_seconds + run.clips / rate * (1 + wasted)


@dataclass
class _Clock:
    """Events in the order of their times."""

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
    """Shards go from the storage to a worker, to an encoder, and to the driver, who commits."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.clock, self.chance = run, _Clock(), random.Random(seed)
        self.left = -(-run.clips // run.shard)
        self.cores = run.cores
        self.workers = 0
        self.encoders = run.gpus if run.gpus else run.encoders
        self.decoded: deque[int] = deque()
        self.ahead = 0
        """Shards that were begun and not taken by the driver: two a worker, and a few more."""
        self.finished = 0
        self.link_free = 0.0
        self.waiting = self.committed = 0
        self.is_committing = False
        self.last_commit, self.spent = 0.0, 0.0

    def play(self) -> float:
        for _ in range(self.run.workers):
            self.clock.after(self.run.start_seconds, self._arrive)
        self.clock.play()
        return self.clock.now

    def _arrive(self) -> None:
        self.workers += 1
        self._go_on()

    def _go_on(self) -> None:
        """Begin what can begin: encoding before decoding, as rows are what is wanted."""
        run = self.run
        while self.decoded and self.encoders and (run.gpus or self.cores):
            self.decoded.popleft()
            self.encoders -= 1
            self.cores -= 0 if run.gpus else 1
            seconds = run.shard * (1 / run.encode_a_gpu if run.gpus else run.encode_seconds)
            self.clock.after(seconds, self._encoded)
        while self.left and self.workers and self.cores and self.ahead < 2 * run.workers + 2:
            self.left -= 1
            self.ahead += 1
            self.workers -= 1
            self.cores -= 1
            self._decode()
        if self.waiting and not self.is_committing:
            self._consider_commit()

    def _decode(self) -> None:
        run = self.run
        fetched = self.clock.now
        if run.link:
            self.link_free = max(self.clock.now, self.link_free)
            self.link_free += run.shard * run.video_bytes / run.link
            fetched = self.link_free
        work = run.shard * run.decode_seconds * self.chance.uniform(0.8, 1.2)
        seconds = fetched - self.clock.now + work
        lost = self.chance.expovariate(run.losses_an_hour / 3600) if run.losses_an_hour else 1e30
        if lost < seconds:
            self.clock.after(lost, self._lost)
        else:
            self.clock.after(seconds, self._is_decoded)

    def _lost(self) -> None:
        self.left += 1
        self.ahead -= 1
        self.cores += 1
        self.clock.after(self.run.start_seconds, self._arrive)
        self._go_on()

    def _is_decoded(self) -> None:
        self.workers += 1
        self.cores += 1
        if self.run.gpus or self.run.encode_seconds:
            self.decoded.append(0)
        else:
            self._rows()
        self._go_on()

    def _encoded(self) -> None:
        self.encoders += 1
        self.cores += 0 if self.run.gpus else 1
        self._rows()
        self._go_on()

    def _rows(self) -> None:
        """The driver takes rows, unless it commits: then they wait, and so do the workers."""
        self.finished += 1
        if not self.is_committing:
            self.ahead -= self.finished
            self.waiting += self.finished * self.run.shard
            self.finished = 0

    def _consider_commit(self) -> None:
        run, since = self.run, self.clock.now - self.last_commit
        is_last = not self.left and not self.ahead
        if not is_last and self.waiting < run.most_waiting and since < run.pause * self.spent:
            return
        if not is_last and self.waiting < run.commit_clips:
            return
        self.is_committing = True
        taken, self.waiting = self.waiting, 0
        self.spent = commit_time(run, self.committed)

        def done() -> None:
            self.committed += taken
            self.is_committing = False
            self.last_commit = self.clock.now
            self.finished -= 1
            self._rows()
            self._go_on()

        self.clock.after(self.spent, done)


def simulated(run: Run, seed: int = 0) -> float:
    """Seconds of the run, call by call."""
    return _Simulation(run, seed).play()


def archive(hours: float, cores: int, gpus: int, **changes: float) -> Run:
    """A run over an archive with GPUs."""
    values: dict[str, float] = {"shard": 32, **changes}
    return Run(round(hours * CLIPS_AN_HOUR), cores, cores, gpus=gpus, **values)  # type: ignore[arg-type]


def main() -> None:
    for run in (
        archive(1_000, 64, 1),
        archive(1_000, 64, 1, losses_an_hour=2.0),
        archive(1_000, 1_000, 1),
        archive(1_000, 64, 1, link=100e6),
        archive(1_000, 64, 1, commit_seconds_a_million=0.6, rows_before=5_000_000),
    ):
        formula, played = predicted(run), simulated(run)
        print(
            f"{run}\n  formula {formula:,.0f} s, simulated {played:,.0f} s: {formula / played:.3f}"
        )


if __name__ == "__main__":
    main()
