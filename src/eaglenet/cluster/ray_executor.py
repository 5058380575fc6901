"""The executor of many machines: Ray runs what this machine would run. The only file with ray.

Workers are actors that hold the model and a decoder process with limits. They give back rows,
never pixels: some 25 KB a clip, where its frames are 1.8 MB. Only the driver writes to the store,
so a worker or machine that is lost leaves nothing behind; what it had in hand is given to another.
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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch

from eaglenet.cluster.workers import WorkerPool, LostWorkerError
from eaglenet.core.errors import EagleNetError, UsageError, cause_of
from eaglenet.core.hardware import has_fast_int8
from eaglenet.encoders import int8
from eaglenet.indexing.decoding import (
    ClipFailure,
    ClipRequest,
    decode_clips,
    decoding_budget,
    flatten_outcomes,
)
from eaglenet.indexing.encoding import ClipEncoding
from eaglenet.indexing.executor import EXECUTORS, ClipOutcome, ClusterOptions, ExecutorSettings
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import Inspection, inspect, inspected, inspection_budget
from eaglenet.methods.base import Method
from eaglenet.search.store.manifest import Manifest, Splitting
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Budget, Success, Failure, map_ahead

# Requests in pieces for workers of a cluster: large enough to be worth a call, soon done.

CALL_CLIPS = 32
"""Clips a call has at most."""
FIRST_CALL = 8
"""Clips a call has while nobody knows how fast the workers are."""
LEAST_CALL = 4
CALL_SECONDS = 15.0
"""What a call should take a worker: at the end of a run some wait so long for the others."""


class CallSizer:
    """How many clips the next call takes, by what the workers have done so far."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self._clock = clock
        self._since = 0.0
        self._clips = 0
        self._size = FIRST_CALL

    def done(self, clips: int) -> None:
        """So many clips came back now, of a call that is over."""
        now = self._clock()
        if not self._since:
            self._since = now  # What was done before is counted with the workers' start.
            return
        self._clips += clips
        seconds_a_clip = (now - self._since) * self.workers / self._clips if self._clips else 0.0
        wanted = round(CALL_SECONDS / seconds_a_clip) if seconds_a_clip else CALL_CLIPS
        self._size = min(max(wanted, LEAST_CALL), CALL_CLIPS)

    def size(self) -> int:
        return self._size


def group_requests(
    requests: Iterable[ClipRequest], size: Callable[[], int]
) -> Iterator[list[ClipRequest]]:
    """Every request in pieces of ``size()`` clips; short files share one."""
    call: list[ClipRequest] = []
    clips = 0
    for request in requests:
        start = 0
        while start < len(request.numbers):
            part = slice(start, start + max(size() - clips, 1))
            numbers, windows = request.numbers[part], request.windows[part]
            call.append(dataclasses.replace(request, numbers=numbers, windows=windows))
            clips += len(numbers)
            start += len(numbers)
            if clips >= size():
                yield call
                call, clips = [], 0
    if call:
        yield call


# One process with limits that serves many calls, each of some requests: it starts only once.

Request = TypeVar("Request")
Result = TypeVar("Result")


class PersistentProcess(Generic[Request, Result]):
    """Does ``work`` in a process of its own, which is replaced when it dies; see ``map_ahead``."""

    def __init__(
        self, work: Callable[[Request], Result], budget: Budget[Request], *, prefetch: int = 4
    ) -> None:
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        taken: Iterator[Request] = iter(self._requests.get, None)
        # One: a second would wait for answers while the first waits for requests.
        self._outcomes = map_ahead(work, taken, workers=1, prefetch=prefetch, budget=budget)

    def __call__(
        self, requests: Sequence[Request]
    ) -> Iterator[Success[Request, Result] | Failure[Request]]:
        """An outcome for each request, in order. All have to be taken before the next call."""
        for request in requests:
            self._requests.put(request)
        for _ in requests:
            yield next(self._outcomes)


logger = logging.getLogger(__name__)

FILES_AT_ONCE = 4
WORKERS_OF_AN_INSPECTOR = 8
"""Looking at files waits for the disk: one such process feeds some that decode."""
ANSWER_SECONDS = 5.0
"""For a cluster to take a connection; Ray itself tries for minutes."""
ASKED_SECONDS = 60.0
"""For all machines to say what they are fast in: a process is started on each."""
CLIENT_PORT = 10001
"""Where Ray listens for ``ray://HOST``."""
SETTINGS = b"\0\0\0\4" + bytes(5)
"""The first frame of HTTP/2, which Ray speaks, from either side; its fourth byte says so."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
STORAGE = ("AWS_", "GOOGLE_", "AZURE_")
"""How variables begin that say where object storage is and who asks there."""


def storage_variables() -> dict[str, str]:
    """The driver's variables of object storage.

    A cluster that was started before them does not know them. They go to a worker as an argument,
    since Ray shows the environment of a run to all who see its dashboard.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(STORAGE)}


class RayExecutor:
    """Connects when there is work, and leaves the cluster as it was."""

    _started: ClassVar[bool] = False
    """Whether the connection, of which a process has one, was made here."""

    def __init__(self, setting: ExecutorSettings) -> None:
        self.setting = setting
        self._ray = self.require()
        gpus = setting.cluster.gpus_per_worker
        if gpus < 0:
            raise UsageError(f"--gpus-per-worker must be 0 or more, not {gpus:g}")
        if gpus and setting.precision == "int8":
            raise UsageError("int8 products are for CPUs; give bf16, or --gpus-per-worker 0")

    def inspect(self, files: Sequence[CandidateFile], known: frozenset[str]) -> Iterator[Inspection]:
        self._connect(self.setting.cluster)
        ray, setting = self._ray, self.setting
        size = max(1, self._num_workers() // WORKERS_OF_AN_INSPECTOR)
        actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Inspector)
        arguments = (
            storage_variables(),
            setting.manifest.splitting,
            ray.put(known),
            setting.limits,
        )
        crew: WorkerPool[Sequence[CandidateFile], list[Inspection]] = WorkerPool(
            _RayBackend(ray, lambda: actor.remote(*arguments)), size
        )
        starts = range(0, len(files), FILES_AT_ONCE)
        parts = [files[start : start + FILES_AT_ONCE] for start in starts]
        for outcome in crew.map(parts):
            if isinstance(outcome, Failure):
                yield from (Inspection(file, problem=outcome.reason) for file in outcome.request)
            else:
                yield from outcome.result

    def encode(self, requests: Iterable[ClipRequest]) -> Iterator[ClipOutcome]:
        self._connect(self.setting.cluster)
        ray, setting = self._ray, self.setting
        gpus = setting.cluster.gpus_per_worker
        method = setting.method
        if method.device.type != "cpu":
            method = copy.deepcopy(method).to("cpu")
        arguments = (
            storage_variables(),
            ray.put(method),
            setting.manifest,
            setting.limits,
            setting.precision,
            gpus > 0,
        )
        actor = ray.remote(num_cpus=1, num_gpus=gpus)(_Encoder)
        size = self._num_workers()
        crew: WorkerPool[list[ClipRequest], list[ClipOutcome]] = WorkerPool(
            _RayBackend(ray, lambda: actor.remote(*arguments)), size
        )
        pace = CallSizer(size)
        try:
            with closing(crew.map(group_requests(requests, pace.size))) as outcomes:
                for outcome in outcomes:
                    pace.done(sum(len(request.numbers) for request in outcome.request))
                    if isinstance(outcome, Failure):
                        yield from _failures(outcome)
                    else:
                        yield from outcome.result
        finally:
            if RayExecutor._started:
                ray.shutdown()
                RayExecutor._started = False

    @staticmethod
    def require() -> Any:
        """Ray, or the name of the extra that brings it."""
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                f"--executor ray needs Ray ({error}); install it with: pip install 'eaglenet[ray]'"
            ) from error
        return ray

    @classmethod
    def supports_int8(cls, cluster: ClusterOptions) -> bool:
        """Whether every machine of a cluster whose cores would encode is fast in int8.

        One that is not might give other numbers too: on a CPU without an instruction for them,
        sums of int8 products are cut off at 16 bits.
        """
        if cluster.gpus_per_worker:
            return False
        ray = cls.require()
        cls._connect(cluster)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

        ask = ray.remote(num_cpus=0)(_takes_int8)
        places = [
            At(node["NodeID"], soft=False)
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        ]
        calls = [ask.options(scheduling_strategy=place).remote() for place in places]
        try:
            return all(ray.get(calls, timeout=ASKED_SECONDS))
        except ray.exceptions.RayError as error:
            logger.info("a machine did not say what it is fast in: %s", error)
            return False

    @classmethod
    def _connect(cls, cluster: ClusterOptions) -> None:
        ray, address = cls.require(), cluster.address
        if ray.is_initialized():
            return
        named = address
        if address in (None, "auto"):
            named = os.environ.get("RAY_ADDRESS") or address
        try:
            _require_answer(named)
            with warnings.catch_warnings():
                # Ray forks its own processes and replaces them at once: none reads a store before.
                warnings.filterwarnings("ignore", message="lancedb fork support")
                # Ray puts the folder in which it is started on the module path of its workers.
                with contextlib.chdir(sys.prefix):
                    ray.init(
                        address=address,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        include_dashboard=None if address else False,
                        # On its own it listens on all interfaces.
                        _node_ip_address=None if address else "127.0.0.1",
                    )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"at {named}" if named and named != "auto" else "on this machine"
            reason = (cause_of(error) or type(error).__name__).splitlines()[0]
            raise UsageError(
                f"no Ray cluster {where} ({reason}); start one with: ray start --head, "
                "and give its address with --ray-address HOST:PORT"
            ) from error
        RayExecutor._started = True

    def _num_workers(self) -> int:
        """As many as are asked for, or as the cluster has cores or parts of GPUs for now."""
        if self.setting.workers:
            return self.setting.workers
        resources = self._ray.cluster_resources()
        gpus = self.setting.cluster.gpus_per_worker
        rooms = [resources.get("CPU", 0.0)]
        if gpus:
            rooms.append(resources.get("GPU", 0.0) / gpus)
        return max(1, int(min(rooms)))


class _RayBackend:
    """How a crew calls workers that are Ray actors; see :class:`eaglenet...crew.WorkerBackend`."""

    def __init__(self, ray: Any, start: Any) -> None:
        self.ray = ray
        self._start = start

    def start(self) -> Any:
        return self._start()

    def is_ready(self, worker: Any) -> Any:
        return worker.ready.remote()

    def call(self, worker: Any, item: Any) -> Any:
        return worker.work.remote(item)

    def wait(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        done, _ = self.ray.wait(list(calls), num_returns=1, timeout=seconds)
        return list(done)

    def result(self, call: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(call)
        except errors.RayTaskError as error:
            # Raised by our own code over there: the same error here.
            cause = error.cause if isinstance(error.cause, EagleNetError) else None
            raise cause or EagleNetError(f"a worker failed: {error.cause!r:.500}") from error
        except errors.RayError as error:
            text = " ".join(str(error).split())
            raise LostWorkerError(f"{type(error).__name__}: {text[:500]}") from error

    def end(self, worker: Any) -> None:
        self.ray.kill(worker)


def _require_answer(address: str | None) -> None:
    """Raise what a cluster of this address says to a connection: nobody is there, or no answer."""
    if address in (None, "auto", "local"):
        return  # Ray looks for it on this machine, or starts it.
    scheme, _, place = str(address).rpartition("://")
    if scheme not in ("", "ray"):
        return  # Of a maker who has his own ways.
    place = place.partition("?")[0]
    if scheme and ":" not in place:
        place = f"{place}:{CLIENT_PORT}"
    host, _, port = place.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ValueError("this is not HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as connection:
        try:
            connection.sendall(GREETING)
            answer = connection.recv(9)
        except OSError:
            return  # It may be busy: Ray will see.
    if answer and answer[3:4] != SETTINGS[3:4] and not os.environ.get("RAY_USE_TLS"):
        raise ConnectionError("what answers there is not Ray's head: is it the dashboard's port?")


def _failures(lost: Failure[list[ClipRequest]]) -> Iterator[ClipFailure]:
    for request in lost.request:
        for number in request.numbers:
            yield ClipFailure((request.content, number), lost.reason)


def _takes_int8() -> bool:
    """Asked on a worker's machine."""
    return has_fast_int8("cpu") and int8.is_installed()


class _Inspector:
    """Runs on a worker: looks at files."""

    def __init__(
        self,
        storage: Mapping[str, str],
        splitting: Splitting,
        known: frozenset[str],
        limits: Limits,
    ) -> None:
        os.environ.update(storage)
        work = partial(inspect, splitting=splitting, known=known)
        self._look = PersistentProcess(work, inspection_budget(limits))

    def ready(self) -> bool:
        return True

    def work(self, files: Sequence[CandidateFile]) -> list[Inspection]:
        return [inspected(outcome) for outcome in self._look(files)]


class _Encoder:
    """Runs on a worker: decodes and encodes."""

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
        self._encoding = ClipEncoding(method, manifest, 1, limits, precision)
        work = partial(decode_clips, spec=manifest.frame_spec, step=manifest.splitting.frame_step)
        self._decode = PersistentProcess(work, decoding_budget(limits))

    def ready(self) -> bool:
        return True

    def work(self, requests: Sequence[ClipRequest]) -> list[ClipOutcome]:
        return list(self._encoding.encode(flatten_outcomes(self._decode(requests))))


EXECUTORS.add("ray", RayExecutor)
