"""Who does the work of an index run: looking at files, decoding and encoding their clips.

An executor is handed typed requests and gives typed outcomes back, in any order and at least once;
the run alone writes to the store, and takes no clip twice. Another executor (a cluster) is one file
with a class that meets :class:`Executor` and a line ``EXECUTORS.add(name, function)``; its workers
can call :func:`eaglenet.indexing.inspection.inspect` and
:meth:`eaglenet.indexing.encoding.ClipEncoding.run`, as the one here does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from eaglenet.core.platform import num_cores
from eaglenet.core.registry import Registry
from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage
from eaglenet.indexing.encoding import ClipEncoding
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection, inspect_ahead
from eaglenet.methods.base import Method
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.tables import ClipRows
from eaglenet.video.limits import Limits

ClipOutcome = ClipRows | ClipFailure | Damage


class Executor(Protocol):
    """Does the work of one run with one model."""

    def inspect(
        self, files: Sequence[CandidateFile], known: frozenset[str]
    ) -> Iterator[Inspection]:
        """Hash, probe and split every file; contents in ``known`` are only hashed."""
        ...

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        """Rows or a failure for every requested clip, and damage before the clips it is of.

        ``requests`` is long, slow and lazy: it inspects files as it is read, and should be read
        only a little ahead of the work. It may be read in another thread, but in one at a time.
        """
        ...


@dataclass(frozen=True)
class ClusterOptions:
    """Where an executor of many machines finds them, and what a worker holds of one."""

    address: str | None = None
    """None: that of the environment, or a cluster of this machine alone."""
    gpus_per_worker: float = 0.0
    """A part of a GPU where several workers share one; 0 encodes on the CPU."""


@dataclass(frozen=True)
class ExecutorSettings:
    """What an executor is made for. ``workers`` None: as many as the work is worth."""

    method: Method
    manifest: Manifest
    files: Sequence[CandidateFile]
    """All that will be looked at."""
    workers: int | None = None
    limits: Limits = field(default_factory=Limits)
    precision: str = "fp32"
    """To encode in; a model for int8 is int8 by itself."""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


class ExecutorFactory(Protocol):
    """The entry of :data:`EXECUTORS`."""

    def __call__(self, setting: ExecutorSettings) -> Executor: ...


EXECUTORS: Registry[ExecutorFactory] = Registry(
    "executor",
    is_open=True,
    modules={"local": "eaglenet.indexing.executor", "ray": "eaglenet.cluster.ray_executor"},
)


def find_executor(name: str) -> ExecutorFactory:
    """The entry of a name. An extra that it lacks is told here, before a model is loaded.

    An entry that needs one has a ``require()`` that raises where it is not installed.
    """
    entry = EXECUTORS[name]
    require = getattr(entry, "require", None)
    if require is not None:
        require()
    return entry


def supports_int8(entry: ExecutorFactory, cluster: ClusterOptions) -> bool:
    """Whether the machines that encode multiply int8 fast where this one does.

    An entry that knows has a ``supports_int8(cluster)``.
    """
    ask = getattr(entry, "supports_int8", None)
    return ask is not None and bool(ask(cluster))


class LocalExecutor:
    """This machine: processes with limits look at files and decode, this process encodes."""

    @staticmethod
    def supports_int8(cluster: ClusterOptions) -> bool:
        """It is this machine that was asked."""
        return True

    def __init__(self, setting: ExecutorSettings) -> None:
        self.manifest = setting.manifest
        workers = num_workers(setting.files, setting.workers)
        self.workers, self.limits = workers, setting.limits
        self.encoding = ClipEncoding(
            setting.method, setting.manifest, workers, setting.limits, setting.precision
        )

    def inspect(
        self, files: Sequence[CandidateFile], known: frozenset[str]
    ) -> Iterator[Inspection]:
        splitting = self.manifest.splitting
        return inspect_ahead(files, splitting, known, self.workers, self.limits)

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        return self.encoding.run(requests)


EXECUTORS.add("local", LocalExecutor)


def num_workers(files: Sequence[CandidateFile], wanted: int | None) -> int:
    """None only where that is asked for: a bad file must not end the run or eat the machine."""
    cores = num_cores()
    if wanted is not None:
        # A long film keeps every core busy, but more workers need more files.
        return min(max(0, wanted), max(cores, len(files)))
    if sum(file.size for file in files) < 32 * 2**20 and len(files) < 64:
        return 1
    return min(8, cores)
