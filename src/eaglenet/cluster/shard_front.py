"""The front of several shards: asks all for their shortlists and merges them.

Of a store that one machine would search by codes, it asks for the nearest codes: the candidates of
all parts together are those of one machine, and are ranked here as there.

A shard that does not answer in time is left out, the answer says so, and the shard is asked again
by itself, a moment later and out of anyone's way, until it answers.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.cluster.shards import (
    MAX_QUERIES,
    NEAR_PATH,
    SCAN_PATH,
    packed,
    unpacked_near,
    unpacked_shortlist,
)
from eaglenet.core.errors import StoreError, UnreachableError, UsageError
from eaglenet.search.filters import Filters
from eaglenet.search.shortlist import Shortlist, best_candidates, is_scanned, merged, num_candidates
from eaglenet.search.store.codes import code_bytes, codes_of
from eaglenet.search.store.near_codes import Near, is_halved, nearest_of
from eaglenet.search.store.snapshot import Snapshot

logger = logging.getLogger(__name__)

SHARD_SECONDS = 2.0
"""For the answer of a shard; one that needs longer is left out."""
PROBE_SECONDS = 1.0
"""Between two looks at a shard that is left out."""
STARTING_SECONDS = 60.0
"""That a front waits for shards which start at the same time."""
LONGEST_ANSWER = 64 * 2**20
RECENTLY = 3.0
"""Seconds: an answer in preparation may be of a moment ago."""
VECTOR_BYTES = 128 * 1024
"""Of the vectors of one question; a shard takes no body of more than twice as much."""
CODED_QUERIES = 8
"""In one question: codes are scanned one query after the other, within ``SHARD_SECONDS``."""
CANDIDATES = 2**19
"""Of all queries of one question, which bounds the answer."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ShardQuestion(Generic[Answer]):
    """A question to all shards, and how the answer to each of its queries is read."""

    path: str
    body: Mapping[str, Any]
    read: Callable[[Mapping[str, str]], Answer]


class ShardFailureError(Exception):
    """Why a shard gave no shortlist."""


class RemoteShard:
    """One part of the store at one address."""

    def __init__(self, url: str, part: tuple[int, int], token: str | None, seconds: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--shards: {url!r:.100} is not an address; write http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.label = f"part {part[0]} of {part[1]}"
        self.name = f"{self.label} at {self.url}"
        self.part = part
        self.seconds = seconds
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.failed_at: float | None = None
        """When it last failed; None while it answers."""
        self.last_failure = -RECENTLY
        self.reason = ""

    def answer(self, asked: ShardQuestion[Answer]) -> list[Answer]:
        """What it has for each query; notes whether it answers."""
        begun = time.monotonic()
        try:
            number, parts = self.part
            answer = self._ask(asked.path, {**asked.body, "part": number, "parts": parts})
            found = [asked.read(each) for each in answer["lists"]]
            taken = time.monotonic() - begun
            if taken > self.seconds:
                raise ShardFailureError(f"answered after {taken:.1f} s")
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            failure = ShardFailureError(f"{type(error).__name__}: {error}"[:300])
            self.note(failure)
            raise failure from error
        except ShardFailureError as failure:
            self.note(failure)
            raise
        self.note(None)
        return found

    def note(self, failure: ShardFailureError | None) -> None:
        """Remember whether it answers."""
        if failure is None:
            if self.failed_at is not None:
                logger.warning("%s answers again", self.name)
            self.failed_at, self.reason = None, ""
            return
        if self.failed_at is None:
            logger.warning("%s is left out: %s", self.name, failure)
        self.failed_at = self.last_failure = time.monotonic()
        self.reason = str(failure)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.seconds)
        try:
            connection.request("POST", path, json.dumps(body), self._headers)
            answer = connection.getresponse()
            content = answer.read(LONGEST_ANSWER)
        finally:
            connection.close()
        if answer.status != 200:
            raise ShardFailureError(f"answered {answer.status} {content[:200]!r}")
        return json.loads(content)


class ShardScan:
    """Makes the shortlists of an engine from those of its shards; see ``Engine(scan=...)``."""

    def __init__(
        self,
        urls: Sequence[str],
        identity: str,
        *,
        token: str | None = None,
        seconds: float = SHARD_SECONDS,
    ) -> None:
        if not urls:
            raise UsageError("--shards names no address; write http://HOST:PORT,http://HOST:PORT")
        self.identity = identity
        self.seconds = seconds
        self.shards = [
            RemoteShard(url, (number, len(urls)), token, seconds)
            for number, url in enumerate(urls, 1)
        ]
        self._threads = ThreadPoolExecutor(4 * len(urls), thread_name_prefix="shards")
        self._last: Snapshot | None = None
        self._closed = threading.Event()
        self._prober = threading.Thread(target=self._probe, name="shards-probe", daemon=True)
        self._prober.start()

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that are left out now, or were a moment ago."""
        now = time.monotonic()
        return tuple(
            shard.label
            for shard in self.shards
            if shard.failed_at is not None or now - shard.last_failure < RECENTLY
        )

    def shortlists(
        self,
        snapshot: Snapshot,
        queries: Tensor,
        k: int,
        filters: Filters | None,
        shares: Sequence[float] | None = None,
    ) -> list[Shortlist]:
        self._last = snapshot
        queries = queries.to("cpu", torch.float32)
        if is_scanned(snapshot):
            return self._scanned(snapshot, queries, k, filters, shares)
        count = num_candidates(snapshot, k)
        results = []
        for chunk in _chunks(len(queries), min(CODED_QUERIES, CANDIDATES // count)):
            codes = np.concatenate([codes_of(queries[number, None].numpy()) for number in chunk])
            found = self._answers(self._coded(snapshot, codes, count, filters), len(chunk))
            for place, number in enumerate(chunk):
                rows = nearest_of([near[place] for near in found], count, snapshot.num_slots)
                share = shares[number] if shares else 0.0
                results.append(best_candidates(snapshot, rows, queries[number], k, share))
        return results

    def _scanned(
        self,
        snapshot: Snapshot,
        queries: Tensor,
        k: int,
        filters: Filters | None,
        shares: Sequence[float] | None,
    ) -> list[Shortlist]:
        results = []
        for chunk in _chunks(len(queries), VECTOR_BYTES // (4 * queries.shape[1])):
            some = None if shares is None else [shares[number] for number in chunk]
            asked = self._exact(snapshot, queries[chunk.start : chunk.stop], k, filters, some)
            found = self._answers(asked, len(chunk))
            results += [merged([lists[place] for lists in found], k) for place in range(len(chunk))]
        return results

    def _answers(self, asked: ShardQuestion[Answer], num_queries: int) -> list[list[Answer]]:
        """What each shard that answers has for each query."""
        futures = {
            self._threads.submit(shard.answer, asked): shard
            for shard in self.shards
            if shard.failed_at is None
        }
        done, late = wait(futures, timeout=self.seconds)
        for future in late:
            futures[future].note(ShardFailureError(f"no answer within {self.seconds:g} s"))
        found = [lists for future in done if (lists := _result(future)) is not None]
        if not found:
            reasons = "; ".join(f"{shard.name}: {shard.reason}" for shard in self.shards)
            raise UnreachableError(f"no shard of the store answers: {reasons}")
        if any(len(lists) != num_queries for lists in found):
            raise StoreError("a shard answered another question than it was asked")
        return found

    def _exact(
        self,
        snapshot: Snapshot,
        queries: Tensor,
        k: int,
        filters: Filters | None = None,
        shares: Sequence[float] | None = None,
    ) -> ShardQuestion[Shortlist]:
        """For the best clips of each part."""
        body = {
            **self._body(snapshot, filters),
            "k": k,
            "vectors": packed(queries.numpy(), "<f4"),
            **({} if shares is None else {"shares": list(shares)}),
        }
        return ShardQuestion(SCAN_PATH, body, lambda each: unpacked_shortlist(each, len(snapshot)))

    def _coded(
        self,
        snapshot: Snapshot,
        codes: NDArray[np.uint8],
        count: int,
        filters: Filters | None = None,
    ) -> ShardQuestion[Near]:
        """For the nearest codes of each part."""
        body = {**self._body(snapshot, filters), "count": count, "codes": packed(codes, "u1")}
        is_half = is_halved(snapshot.num_slots, code_bytes(snapshot.dim) // 8)
        return ShardQuestion(
            NEAR_PATH, body, lambda each: unpacked_near(each, len(snapshot), is_half)
        )

    def _body(self, snapshot: Snapshot, filters: Filters | None) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "version": snapshot.version,
            "dim": snapshot.dim,
            "filters": dataclasses.asdict(filters) if filters else {},
        }

    def _small(self, snapshot: Snapshot) -> ShardQuestion[Any]:
        """A question that shows whether a shard answers."""
        if is_scanned(snapshot):
            return self._exact(snapshot, torch.zeros(1, snapshot.dim), 1)
        return self._coded(snapshot, np.zeros((1, code_bytes(snapshot.dim)), np.uint8), 1)

    def wait_until_up(self, snapshot: Snapshot, seconds: float) -> None:
        """Ask until every shard answers, or the time is over."""
        self._last, asked = snapshot, self._small(snapshot)
        end, is_told = time.monotonic() + seconds, False
        while True:
            for shard in self.shards:
                _result(self._threads.submit(shard.answer, asked))
            missing = [shard for shard in self.shards if shard.failed_at is not None]
            if not missing or time.monotonic() > end:
                return
            if not is_told:
                logger.warning(
                    "%d of %d shards do not answer yet; waiting up to %.0f s for them",
                    len(missing), len(self.shards), seconds,
                )  # fmt: skip
                is_told = True
            time.sleep(PROBE_SECONDS / 4)

    def _probe(self) -> None:
        """Ask shards that are left out something small, until they answer."""
        while not self._closed.wait(PROBE_SECONDS):
            for shard in self.shards:
                if shard.failed_at is not None and self._last is not None:
                    _result(self._threads.submit(shard.answer, self._small(self._last)))

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[list[Answer]]) -> list[Answer] | None:
    """What a shard gave; None where it is left out, which it has noted itself."""
    try:
        return future.result()
    except ShardFailureError:
        return None


def _chunks(count: int, size: int) -> Iterator[range]:
    """The numbers up to ``count``, so many at a time."""
    size = max(1, min(size, MAX_QUERIES))
    for first in range(0, count, size):
        yield range(first, min(first + size, count))
