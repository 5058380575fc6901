"""Executors: inspect files, decode and encode their clips, here or on other machines.

An executor receives typed requests and returns typed outcomes, in any order and at least once;
only the run writes to the store, and it stores no clip twice. To add one, write a class that meets
:class:`Executor` and register it with ``EXECUTORS.add(name, factory)``. It can use
:func:`eaglenet.indexing.inspection.inspect_ahead`, :func:`eaglenet.indexing.decoding.decode_ahead`
and :class:`eaglenet.indexing.encoding.ClipEncoding`, as :class:`LocalExecutor` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import num_cores
from eaglenet.core.registry import Registry
from eaglenet.encoders.hardware import free_gpu_memory
from eaglenet.indexing import inspection
from eaglenet.indexing.decoding import ClipFailure, ClipRequest, Damage, decode_ahead
from eaglenet.indexing.encoding import ClipEncoding
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection, inspect_ahead
from eaglenet.indexing.options import ClusterOptions
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import ClipBatch, IndexedFile
from eaglenet.video import gpu
from eaglenet.video.limits import Limits
from eaglenet.video.worker_host import Host

if TYPE_CHECKING:
    from eaglenet.methods.base import Method
    from eaglenet.models.light_model import LightModel

ClipOutcome = ClipBatch | ClipFailure | Damage


class Executor(Protocol):
    """Does the work of one run with one model.

    It may have a ``close()`` that ends its processes; it is called after the last use.
    """

    def inspect(
        self, files: Sequence[CandidateFile], known_contents: frozenset[str]
    ) -> Iterator[Inspection]:
        """Hash, probe and split every file; contents in ``known_contents`` are only hashed."""
        ...

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        """Return every clip, encoded or failed, and damage before the clips it concerns.

        ``requests`` is a long, slow iterator that inspects files on demand: read it only a little
        ahead of the work. It may be read in another thread, but by one thread at a time.
        """
        ...


@dataclass(frozen=True)
class ExecutorSettings:
    """Work and resources of an executor."""

    method: Method | LightModel
    manifest: Manifest
    files: Sequence[CandidateFile]
    """All files to inspect."""
    workers: int | None = None
    """None: depends on the amount of work."""
    limits: Limits = field(default_factory=Limits)
    precision: str = "fp32"
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    decode: str = "cpu"


class ExecutorFactory(Protocol):
    """Entry of :data:`EXECUTORS`.

    It may have a ``require()`` that raises an error if an extra is not installed, and a
    ``supports_int8(cluster)`` that returns whether all of its machines are fast in int8.
    """

    def __call__(self, settings: ExecutorSettings) -> Executor: ...


EXECUTORS: Registry[ExecutorFactory] = Registry(
    "executor",
    is_open=True,
    modules={"local": "eaglenet.indexing.executor", "ray": "eaglenet.cluster.ray_executor"},
)


def find_executor(name: str) -> ExecutorFactory:
    """Return an executor by name; raise an error if it needs an extra that is not installed."""
    factory = EXECUTORS[name]
    require = getattr(factory, "require", None)
    if require is not None:
        require()
    return factory


def supports_int8(factory: ExecutorFactory, cluster: ClusterOptions) -> bool:
    """Return whether the machines that encode are fast in int8; False if that is unknown."""
    supports = getattr(factory, "supports_int8", None)
    return supports is not None and bool(supports(cluster))


class LocalExecutor:
    """This machine: processes with limits inspect and decode, this process encodes."""

    @staticmethod
    def supports_int8(cluster: ClusterOptions) -> bool:
        return True  # The caller has checked this machine.

    def __init__(self, settings: ExecutorSettings) -> None:
        self.manifest = settings.manifest
        self.limits = settings.limits
        is_on_gpu = str(settings.method.device).startswith("cuda")
        self.workers = num_workers(settings.files, settings.workers, encodes_on_gpu=is_on_gpu)
        self.gpu_workers = num_gpu_workers(settings, self.workers)
        self.encoding = ClipEncoding(settings.method, settings.manifest, settings.precision)
        # The module of inspection imports that of decoding.
        self.host = Host(inspection.inspect, settings.limits.memory)

    def inspect(
        self, files: Sequence[CandidateFile], known_contents: frozenset[str]
    ) -> Iterator[Inspection]:
        return inspect_ahead(
            files, self.manifest.splitting, known_contents, self.workers, self.limits, self.host
        )

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        splitting = self.manifest.splitting
        clips = decode_ahead(
            requests,
            self.manifest.frame_spec,
            self.workers,
            self.limits,
            splitting.frame_step,
            self.gpu_workers,
            splitting.overlap,
            self.host,
        )
        return self.encoding.encode(clips)

    def close(self) -> None:
        """End the process from which the workers were forked."""
        self.host.close()


EXECUTORS.add("local", LocalExecutor)


MAX_WORKERS = 8
"""Decoding processes where the CPU encodes as well."""
GPU_WORKERS = 7
"""Processes that decode on the GPU: an H100 or H200 has seven decoders, other GPUs have fewer."""
GPU_WORKER_BYTES = 2**30
"""GPU memory per process that decodes on it."""
MIN_GPU_BYTES = 128 * 2**20
"""Bytes of video from which ``auto`` decodes on the GPU: its processes need seconds to start."""


def num_workers(
    files: Sequence[CandidateFile | IndexedFile],
    number: int | None,
    *,
    encodes_on_gpu: bool = False,
) -> int:
    """Return the number of decoding processes.

    It is zero only on request: without a process of its own, a bad file can end the run.
    """
    cores = num_cores()
    if number is not None:
        # One long video keeps every core busy, but more workers need more files.
        return min(max(0, number), max(cores, len(files)))
    if sum(file.size for file in files) < 32 * 2**20 and len(files) < 64:
        return 1
    return cores if encodes_on_gpu else min(MAX_WORKERS, cores)


def check_decode(choice: str) -> None:
    """Raise an error for an unknown decoder, or one that this machine lacks."""
    if choice not in ("auto", "cpu", "gpu"):
        raise UsageError(f"decode must be auto, cpu or gpu, not {choice!r}")
    if choice == "gpu" and not (free_gpu_memory() and gpu.is_built_in()):
        raise UsageError(
            "decoding on a GPU needs an NVIDIA GPU and a PyAV with CUDA decoders; decode on the cpu"
        )


def num_gpu_workers(settings: ExecutorSettings, workers: int) -> int:
    """Return the number of decoding processes that use the GPU; with ``auto``, at most half."""
    if settings.decode == "gpu":
        return min(GPU_WORKERS, workers)
    is_worthwhile = sum(file.size for file in settings.files) >= MIN_GPU_BYTES
    encodes_on_gpu = str(settings.method.device).startswith("cuda")
    if settings.decode == "cpu" or not (is_worthwhile and encodes_on_gpu and gpu.is_built_in()):
        return 0
    return min(GPU_WORKERS, free_gpu_memory() // (2 * GPU_WORKER_BYTES), workers // 2)
