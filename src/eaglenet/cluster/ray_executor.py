"""Executor on a Ray cluster. The only module that imports ray.

Workers are actors with a model and a sandboxed decoder process. They return features (about 25 KB
per clip) instead of frames (1.8 MB). Only the driver writes to the store, so a lost worker or
machine leaves nothing behind; its work goes to another worker.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import queue
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch

from eaglenet.cluster.workers import LostWorkerError, WorkerPool
from eaglenet.core.errors import EagleNetError, UsageError, cause_of, naming_extra
from eaglenet.core.frame_spec import Splitting
from eaglenet.encoders import int8
from eaglenet.encoders.hardware import has_fast_int8
from eaglenet.indexing.decoding import (
    ClipRequest,
    decode_clips,
    decoding_access,
    decoding_budget,
    failed_clips,
    flatten_outcomes,
)
from eaglenet.indexing.encoding import ClipEncoding
from eaglenet.indexing.executor import EXECUTORS, ClipOutcome, ExecutorSettings
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import (
    Inspection,
    inspect,
    inspection_access,
    inspection_budget,
    inspection_of,
)
from eaglenet.indexing.options import ClusterOptions
from eaglenet.methods.base import Method
from eaglenet.models.light_model import LightModel
from eaglenet.store.manifest import Manifest
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead

logger = logging.getLogger(__name__)

MAX_CALL = 32
"""Maximum clips per call."""
FIRST_CALL = 8
"""Clips per call until the speed of the workers is known."""
MIN_CALL = 4
CALL_SECONDS = 15.0
"""Target time per call; at the end of a run, workers are idle for up to this time."""
FILES_PER_CALL = 4
WORKERS_PER_INSPECTOR = 8
"""Number of encoding workers per inspector; an inspector mostly waits for the disk."""
CONNECT_TIMEOUT = 5.0
"""Seconds in which a cluster must accept a connection; Ray itself would try for minutes."""
CAPABILITY_TIMEOUT = 60.0
"""Seconds in which all machines must report their capabilities; each starts a process for it."""
PREFETCH = 4
"""Requests that a persistent process reads ahead."""
CLIENT_PORT = 10001
"""Default port of ``ray://HOST``."""
SETTINGS = b"\0\0\0\4" + bytes(5)
"""First frame of HTTP/2, which Ray uses; its fourth byte is the type."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
STORAGE_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
"""Prefixes of the environment variables for object storage."""


class CallSizer:
    """Adapts the number of clips per call to the speed of the workers."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self._clock = clock
        self._start = 0.0
        self._clips = 0
        self._size = FIRST_CALL

    def record(self, clips: int) -> None:
        now = self._clock()
        if not self._start:
            self._start = now  # The first call includes the start of the workers.
            return
        self._clips += clips
        seconds = (now - self._start) * self.workers / self._clips if self._clips else 0.0
        target = round(CALL_SECONDS / seconds) if seconds else MAX_CALL
        self._size = min(max(target, MIN_CALL), MAX_CALL)

    def size(self) -> int:
        return self._size


def group_requests(
    requests: Iterable[ClipRequest], size: Callable[[], int]
) -> Iterator[list[ClipRequest]]:
    """Group requests into calls of ``size()`` clips; short files share a call."""
    call: list[ClipRequest] = []
    clips = 0
    for request in requests:
        start = 0
        while start < len(request.numbers):
            selection = slice(start, start + max(size() - clips, 1))
            numbers, windows = request.numbers[selection], request.windows[selection]
            call.append(dataclasses.replace(request, numbers=numbers, windows=windows))
            clips += len(numbers)
            start += len(numbers)
            if clips >= size():
                yield call
                call, clips = [], 0
    if call:
        yield call


Request = TypeVar("Request")
Result = TypeVar("Result")


class PersistentProcess(Generic[Request, Result]):
    """Sandboxed process that serves many calls; replaced if it dies, see ``map_ahead``."""

    def __init__(
        self,
        work: Callable[[Request], Result],
        budget: Budget[Request],
        access: Access[Request, Result] | None = None,
    ) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        requests: Iterator[Request] = iter(self._requests.get, None)
        # With two workers, each could wait for the other.
        self._outcomes = map_ahead(
            work, requests, workers=1, prefetch=PREFETCH, budget=budget, access=access
        )

    def __call__(
        self, requests: Sequence[Request]
    ) -> Iterator[Success[Request, Result] | Failure[Request]]:
        """Yield an outcome per request, in order; read all of them before the next call."""
        for request in requests:
            self._requests.put(request)
        for _ in requests:
            yield next(self._outcomes)


def storage_variables() -> dict[str, str]:
    """Return the environment variables of the driver for object storage.

    They are passed to workers as arguments, because the dashboard of Ray shows the environment.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(STORAGE_PREFIXES)}


class RayExecutor:
    """Executor that connects to a cluster when there is work, and disconnects afterwards."""

    _is_connected_here: ClassVar[bool] = False
    """True if this class made the only connection of the process."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings = settings
        self._ray = self.require()
        gpus = settings.cluster.gpus_per_worker
        if gpus < 0:
            raise UsageError(f"--gpus-per-worker must be 0 or more, not {gpus:g}")
        if gpus and settings.precision == "int8":
            raise UsageError("int8 is for CPUs; use --precision bf16, or --gpus-per-worker 0")

    def inspect(
        self, files: Sequence[CandidateFile], known_contents: frozenset[str]
    ) -> Iterator[Inspection]:
        self._connect(self.settings.cluster)
        ray, settings = self._ray, self.settings
        size = max(1, self._num_workers() // WORKERS_PER_INSPECTOR)
        actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Inspector)
        arguments = (
            storage_variables(),
            settings.manifest.splitting,
            ray.put(known_contents),
            settings.limits,
        )
        pool: WorkerPool[Sequence[CandidateFile], list[Inspection]] = WorkerPool(
            _RayBackend(ray, lambda: actor.remote(*arguments)), size
        )
        starts = range(0, len(files), FILES_PER_CALL)
        calls = [files[start : start + FILES_PER_CALL] for start in starts]
        for outcome in pool.map(calls):
            if isinstance(outcome, Failure):
                yield from (Inspection(file, problem=outcome.reason) for file in outcome.request)
            else:
                yield from outcome.result

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        self._connect(self.settings.cluster)
        ray, settings = self._ray, self.settings
        gpus = settings.cluster.gpus_per_worker
        method = settings.method
        assert not isinstance(method, LightModel)  # Compact models run on one machine only.
        if method.device.type != "cpu":
            method = copy.deepcopy(method).to("cpu")
        arguments = (
            storage_variables(),
            ray.put(method),
            settings.manifest,
            settings.limits,
            settings.precision,
            gpus > 0,
        )
        actor = ray.remote(num_cpus=1, num_gpus=gpus)(_Encoder)
        size = self._num_workers()
        pool: WorkerPool[list[ClipRequest], list[ClipOutcome]] = WorkerPool(
            _RayBackend(ray, lambda: actor.remote(*arguments)), size
        )
        sizer = CallSizer(size)
        try:
            with closing(pool.map(group_requests(requests, sizer.size))) as outcomes:
                for outcome in outcomes:
                    sizer.record(sum(len(request.numbers) for request in outcome.request))
                    if isinstance(outcome, Failure):
                        for request in outcome.request:
                            yield from failed_clips(Failure(request, outcome.reason))
                    else:
                        yield from outcome.result
        finally:
            if RayExecutor._is_connected_here:
                ray.shutdown()
                RayExecutor._is_connected_here = False

    @staticmethod
    def require() -> Any:
        """Import Ray, or raise an error that names the extra."""
        with naming_extra("ray", "--executor ray needs Ray"):
            import ray
        return ray

    @classmethod
    def supports_int8(cls, cluster: ClusterOptions) -> bool:
        """Return True if every machine of the cluster with CPUs has fast int8 instructions.

        Without them, results may also differ, because sums of int8 products saturate at 16 bits.
        """
        if cluster.gpus_per_worker:
            return False
        ray = cls.require()
        cls._connect(cluster)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        check = ray.remote(num_cpus=0)(_is_fast_in_int8)
        nodes = [
            NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        ]
        calls = [check.options(scheduling_strategy=node).remote() for node in nodes]
        try:
            return all(ray.get(calls, timeout=CAPABILITY_TIMEOUT))
        except ray.exceptions.RayError as error:
            logger.info("a machine did not report whether it has fast int8 instructions: %s", error)
            return False

    @classmethod
    def _connect(cls, cluster: ClusterOptions) -> None:
        ray, address = cls.require(), cluster.address
        if ray.is_initialized():
            return
        target = address
        if address in (None, "auto"):
            target = os.environ.get("RAY_ADDRESS") or address
        try:
            _require_answer(target)
            # Ray adds the current folder to the module path of its workers.
            with contextlib.chdir(sys.prefix):
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    include_dashboard=None if address else False,
                    # By default Ray listens on all interfaces.
                    _node_ip_address=None if address else "127.0.0.1",
                )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"at {target}" if target and target != "auto" else "on this machine"
            reason = (cause_of(error) or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"no Ray cluster {where} ({reason}); start one with: ray start --head, and pass "
                "its address with --ray-address HOST:PORT"
            ) from error
        RayExecutor._is_connected_here = True

    def _num_workers(self) -> int:
        """Return the requested number of workers, or as many as the cluster has resources for."""
        if self.settings.workers:
            return self.settings.workers
        resources = self._ray.cluster_resources()
        gpus = self.settings.cluster.gpus_per_worker
        capacities = [resources.get("CPU", 0.0)]
        if gpus:
            capacities.append(resources.get("GPU", 0.0) / gpus)
        return max(1, int(min(capacities)))


class _RayBackend:
    """Backend whose workers are Ray actors."""

    def __init__(self, ray: Any, start: Any) -> None:
        self.ray = ray
        self._start = start

    def start(self) -> Any:
        return self._start()

    def is_ready(self, worker: Any) -> Any:
        return worker.is_ready.remote()

    def call(self, worker: Any, item: Any) -> Any:
        return worker.work.remote(item)

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        finished_calls, _ = self.ray.wait(list(calls), num_returns=1, timeout=seconds)
        return list(finished_calls)

    def result(self, call: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(call)
        except errors.RayTaskError as error:
            # Raised by our code on the worker.
            cause = error.cause if isinstance(error.cause, EagleNetError) else None
            raise cause or EagleNetError(f"a worker failed: {error.cause!r:.500}") from error
        except errors.RayError as error:
            text = " ".join(str(error).split())
            raise LostWorkerError(f"{type(error).__name__}: {text[:500]}") from error

    def end(self, worker: Any) -> None:
        self.ray.kill(worker)


def _require_answer(address: str | None) -> None:
    """Raise an error unless Ray answers at the address of a cluster."""
    if address in (None, "auto", "local"):
        return  # Ray looks for it on this machine, or starts it.
    scheme, _, location = str(address).rpartition("://")
    if scheme not in ("", "ray"):
        return  # A third-party scheme; leave it to Ray.
    location = location.partition("?")[0]
    if scheme and ":" not in location:
        location = f"{location}:{CLIENT_PORT}"
    host, _, port = location.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ValueError("the address must be HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT) as connection:
        try:
            connection.sendall(GREETING)
            answer = connection.recv(9)
        except OSError:
            return  # It may be busy; let Ray try.
    if answer and answer[3:4] != SETTINGS[3:4] and not os.environ.get("RAY_USE_TLS"):
        raise ConnectionError("this is not the port of a Ray head; is it that of the dashboard?")


def _is_fast_in_int8() -> bool:
    """Return whether this machine, a node of the cluster, has fast int8 instructions."""
    return has_fast_int8("cpu") and int8.is_installed()


class _Inspector:
    """Actor that inspects files."""

    def __init__(
        self,
        storage: Mapping[str, str],
        splitting: Splitting,
        known_contents: frozenset[str],
        limits: Limits,
    ) -> None:
        os.environ.update(storage)
        work = partial(inspect, splitting=splitting, known_contents=known_contents)
        access = inspection_access(splitting, known_contents)
        self._inspect = PersistentProcess(work, inspection_budget(limits), access)

    def is_ready(self) -> bool:
        return True

    def work(self, files: Sequence[CandidateFile]) -> list[Inspection]:
        return [inspection_of(outcome) for outcome in self._inspect(files)]


class _Encoder:
    """Actor that decodes and encodes clips."""

    def __init__(
        self,
        storage: Mapping[str, str],
        method: Method,
        manifest: Manifest,
        limits: Limits,
        precision: str,
        on_gpu: bool,
    ) -> None:
        os.environ.update(storage)
        torch.set_num_threads(1)
        method = method.to("cuda") if on_gpu else method
        self._encoding = ClipEncoding(method, manifest, precision)
        splitting = manifest.splitting
        work = partial(
            decode_clips,
            spec=manifest.frame_spec,
            step=splitting.frame_step,
            overlap=splitting.overlap,
        )
        access = decoding_access(manifest.frame_spec)
        self._decode = PersistentProcess(work, decoding_budget(limits), access)

    def is_ready(self) -> bool:
        return True

    def work(self, requests: Sequence[ClipRequest]) -> list[ClipOutcome]:
        return list(self._encoding.encode(flatten_outcomes(self._decode(requests))))


EXECUTORS.add("ray", RayExecutor)
