"""Front of several shards: requests a shortlist from each of them and merges the shortlists.

For a store that is searched by codes, it requests the nearest codes instead. The candidates of all
shards together equal those of a single machine, and are ranked in the same way.

A shard that does not answer in time, or answers with invalid data, is left out, which results
report. It is probed in the background until it answers.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from eaglenet.cluster.shards import (
    MAX_QUERIES,
    NEAR_PATH,
    OTHER_VERSION,
    SCAN_PATH,
    pack,
    shard_token,
    unpack_near,
    unpack_shortlist,
)
from eaglenet.core import untrusted
from eaglenet.core.errors import UnreachableError, UsageError
from eaglenet.search.options import Filters
from eaglenet.search.shortlist import (
    Shortlist,
    Vectors,
    merge_shortlists,
    num_candidates,
    rank_candidates,
    rows_of_shard,
    uses_exact_scan,
)
from eaglenet.store.codes import (
    WORD_BITS,
    NearestRows,
    has_prefixes,
    merge_best,
    num_bits,
    num_ranked,
    weights_of,
)
from eaglenet.store.snapshot import OutdatedError, Snapshot

logger = logging.getLogger(__name__)

SHARD_TIMEOUT = 2.0
"""Seconds for the answer of a shard; slower shards are left out."""
PROBE_SECONDS = 1.0
"""Seconds between probes of a shard that is left out."""
START_TIMEOUT = 60.0
"""Seconds that a front waits for shards that start at the same time."""
MAX_ANSWER = 64 * 2**20
"""Maximum bytes of an answer."""
ANSWER_BYTES = 64 * 1024
"""Maximum bytes of an answer without its rows."""
ROW_BYTES = 32
"""Maximum bytes per row of an answer, in base64."""
RECENT_SECONDS = 3.0
"""Seconds for which a shard that was left out counts as missing."""
VECTOR_BYTES = 128 * 1024
"""Bytes of vectors per request; shards accept bodies of up to twice that."""
CODED_QUERIES = 8
"""Queries by codes per request; a shard must scan them one after the other within the timeout."""
CANDIDATES = 2**19
"""Candidates of all queries of a request, which limits the size of the answer."""
THREADS = 4
"""Threads per shard: a request that hangs must not block others."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ShardQuery(Generic[Answer]):
    """Request to all shards, with a function that reads the answer to each of its queries."""

    path: str
    body: Mapping[str, Any]
    num_queries: int
    num_rows: int
    """Maximum rows per query."""
    read: Callable[[Mapping[str, str], tuple[int, int]], Answer]
    """Reads one list of an answer; its second argument is the shard (number, count)."""


class ShardFailureError(Exception):
    """A shard did not return a shortlist."""


class OtherVersionError(ShardFailureError):
    """The shard has another version of the store than the front."""


class RemoteShard:
    """Shard of the store at one address."""

    def __init__(self, url: str, shard: tuple[int, int], token: str | None, timeout: float) -> None:
        address = urlsplit(url if "://" in url else f"http://{url}")
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UsageError(f"--shards: {url!r:.100} is not an address; use http://HOST:PORT")
        self.url = f"{address.scheme}://{address.netloc}"
        self.label = f"shard {shard[0]} of {shard[1]}"
        self.name = f"{self.label} at {self.url}"
        self.shard = shard
        self.timeout = timeout
        self._is_secure = address.scheme == "https"
        self._host, self._port = address.hostname, address.port
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {shard_token(token, shard)}"
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"shard-{shard[0]}")
        self._lock = threading.Lock()
        self.failed_at: float | None = None
        """Time of the last failure; None while the shard works."""
        self.last_missing = -math.inf
        """Time at which the shard was last left out of results."""
        self.reason = ""

    def submit(self, query: ShardQuery[Answer]) -> Future[list[Answer]]:
        return self._threads.submit(self.answer, query)

    def answer(self, query: ShardQuery[Answer]) -> list[Answer]:
        """Return the answer to each query, and record whether the shard works."""
        start = time.monotonic()
        try:
            number, total = self.shard
            answer = self._post(query, {**query.body, "shard": number, "num_shards": total})
            answers = [query.read(each, self.shard) for each in answer["lists"]]
            if len(answers) != query.num_queries:
                raise ValueError(f"{len(answers)} lists for {query.num_queries} queries")
            seconds = time.monotonic() - start
            if seconds > self.timeout:
                raise ShardFailureError(f"answered after {seconds:.1f} s")
        except OtherVersionError:
            raise  # The caller decides whether the shard or the front is outdated.
        except ShardFailureError as failure:
            self.record(failure)
            raise
        except Exception as error:  # Whatever it is, results must say that the shard is missing.
            unforeseen = ShardFailureError(f"{type(error).__name__}: {error}"[:300])
            self.record(unforeseen)
            raise unforeseen from error
        self.record(None)
        return answers

    def record(self, failure: ShardFailureError | None) -> None:
        with self._lock:
            has_failed = self.failed_at is not None
            if failure is not None or has_failed:
                self.last_missing = time.perf_counter()
            self.failed_at = None if failure is None else self.last_missing
            self.reason = "" if failure is None else str(failure)
        if failure is None and has_failed:
            logger.warning("%s answers again", self.name)
        elif failure is not None and not has_failed:
            logger.warning("%s is left out: %s", self.name, failure)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _post(self, query: ShardQuery[Any], body: dict[str, Any]) -> Any:
        expected_bytes = ANSWER_BYTES + query.num_queries * query.num_rows * ROW_BYTES
        limit = min(expected_bytes, MAX_ANSWER)
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout)
        try:
            connection.request("POST", query.path, json.dumps(body), self._headers)
            answer = connection.getresponse()
            content = answer.read(limit + 1)
        finally:
            connection.close()
        if answer.status != 200:
            text = f"answered {answer.status} {content[:200]!r}"
            if answer.status == 409 and OTHER_VERSION.encode() in content[:1000]:
                raise OtherVersionError(text)
            if answer.status == 401:
                text = (
                    "refused the token; start it with the EAGLENET_TOKEN of the front, and pass "
                    "the addresses to the front in the order of the shards"
                )
            raise ShardFailureError(text)
        if len(content) > limit:
            raise ShardFailureError(f"answered with more than {limit} bytes")
        return untrusted.parse_json(content)


class ShardScan:
    """Scan of several shards, for ``Engine(scan=...)``."""

    def __init__(
        self,
        urls: Sequence[str],
        identity: str,
        *,
        token: str | None = None,
        timeout: float = SHARD_TIMEOUT,
    ) -> None:
        if not urls:
            raise UsageError("--shards has no address; use http://HOST:PORT,http://HOST:PORT")
        self.identity = identity
        self.timeout = timeout
        self.shards = [
            RemoteShard(url, (number, len(urls)), token, timeout)
            for number, url in enumerate(urls, 1)
        ]
        self._last_snapshot: Snapshot | None = None
        self._outdated_version: int | None = None
        """Version that a shard did not have, for which a search was already repeated."""
        self._stop = threading.Event()
        self._prober = threading.Thread(target=self._probe, name="shards-probe", daemon=True)
        self._prober.start()

    @property
    def missing_shards(self) -> tuple[str, ...]:
        """Labels of the shards that are left out now, or were recently."""
        return self.missing_since(time.perf_counter() - RECENT_SECONDS)

    def missing_since(self, start: float) -> tuple[str, ...]:
        return tuple(
            shard.label
            for shard in self.shards
            if shard.failed_at is not None or shard.last_missing >= start
        )

    def shortlists(
        self,
        snapshot: Snapshot,
        queries: Vectors,
        k: int,
        filters: Filters | None,
        hubness_weights: Sequence[float] | None = None,
    ) -> list[Shortlist]:
        self._last_snapshot = snapshot
        results = []
        if uses_exact_scan(snapshot):
            for chunk in _chunks(len(queries), VECTOR_BYTES // (4 * queries.shape[1])):
                chunk_weights = None
                if hubness_weights is not None:
                    chunk_weights = [hubness_weights[number] for number in chunk]
                vectors = queries[chunk.start : chunk.stop]
                query = self._vector_query(snapshot, vectors, k, filters, chunk_weights)
                lists = self._answers(query)
                results += [
                    merge_shortlists([each[index] for each in lists], k)
                    for index in range(len(chunk))
                ]
            return results
        count = num_candidates(snapshot, k)
        for chunk in _chunks(len(queries), min(CODED_QUERIES, CANDIDATES // num_ranked(count))):
            weights = np.stack([weights_of(queries[number]) for number in chunk])
            answers = self._answers(self._code_query(snapshot, weights, count, filters))
            for index, number in enumerate(chunk):
                rows = merge_best([near[index] for near in answers], count, snapshot.num_rows)
                weight = hubness_weights[number] if hubness_weights else 0.0
                results.append(rank_candidates(snapshot, rows, queries[number], k, weight))
        return results

    def _answers(self, query: ShardQuery[Answer]) -> list[list[Answer]]:
        """Return the answers of all working shards, per shard and query."""
        working_shards = [shard for shard in self.shards if shard.failed_at is None]
        answers = self._send(query, working_shards, is_search=True)
        if not answers:
            reasons = "; ".join(f"{shard.name}: {shard.reason}" for shard in self.shards)
            raise UnreachableError(f"no shard of the store answers: {reasons}")
        return answers

    def _send(
        self, query: ShardQuery[Answer], shards: Sequence[RemoteShard], *, is_search: bool = False
    ) -> list[list[Answer]]:
        """Send a query to these shards; return the answers that arrive in time."""
        futures = {}
        for shard in shards:
            try:
                futures[shard.submit(query)] = shard
            except Exception as reason:  # Such as no thread for it: the other shards answer.
                shard.record(ShardFailureError(f"{type(reason).__name__}: {reason}"[:300]))
        finished_futures, late_futures = wait(futures, timeout=self.timeout)
        for future in late_futures:
            futures[future].record(ShardFailureError(f"no answer within {self.timeout:g} s"))
        errors = {future: future.exception() for future in finished_futures}
        version_errors = {
            future: error
            for future, error in errors.items()
            if isinstance(error, OtherVersionError)
        }
        version = query.body["version"]
        if version_errors and is_search and self._outdated_version != version:
            # The front may be outdated. Raised once per version: afterwards the shard is to blame.
            self._outdated_version = version
            raise OutdatedError("the store changed during the search; search again")
        for future, error in version_errors.items():
            futures[future].record(error)
        return [future.result() for future, error in errors.items() if error is None]

    def _vector_query(
        self,
        snapshot: Snapshot,
        vectors: Vectors,
        k: int,
        filters: Filters | None = None,
        hubness_weights: Sequence[float] | None = None,
    ) -> ShardQuery[Shortlist]:
        body = {
            **self._body(snapshot, filters),
            "k": k,
            "vectors": pack(vectors, "<f4"),
            **({} if hubness_weights is None else {"hubness_weights": list(hubness_weights)}),
        }
        return ShardQuery(
            SCAN_PATH,
            body,
            len(vectors),
            k,
            lambda each, shard: unpack_shortlist(each, rows_of_shard(snapshot, shard)),
        )

    def _code_query(
        self,
        snapshot: Snapshot,
        weights: NDArray[np.int16],
        count: int,
        filters: Filters | None = None,
    ) -> ShardQuery[NearestRows]:
        body = {**self._body(snapshot, filters), "count": count, "weights": pack(weights, "<i2")}
        by_prefixes = has_prefixes(snapshot.num_rows, weights.shape[-1] // WORD_BITS)
        return ShardQuery(
            NEAR_PATH,
            body,
            len(weights),
            snapshot.num_rows,
            lambda each, shard: unpack_near(each, rows_of_shard(snapshot, shard), by_prefixes),
        )

    def _body(self, snapshot: Snapshot, filters: Filters | None) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "version": snapshot.version,
            "dim": snapshot.manifest.dim,
            "filters": dataclasses.asdict(filters) if filters else {},
        }

    def _probe_query(self, snapshot: Snapshot) -> ShardQuery[Any]:
        """Make a small query that shows whether a shard works."""
        if uses_exact_scan(snapshot):
            return self._vector_query(snapshot, np.zeros((1, snapshot.manifest.dim), np.float32), 1)
        weights = np.zeros((1, num_bits(snapshot.manifest.dim)), np.int16)
        return self._code_query(snapshot, weights, 1)

    def wait_until_up(self, snapshot: Snapshot, seconds: float) -> None:
        """Wait until every shard answers, or for ``seconds``."""
        self._last_snapshot, query = snapshot, self._probe_query(snapshot)
        end, has_warned = time.monotonic() + seconds, False
        while True:
            self._send(query, self.shards)
            missing_shards = [shard for shard in self.shards if shard.failed_at is not None]
            if not missing_shards or time.monotonic() > end:
                return
            if not has_warned:
                logger.warning(
                    "%d of %d shards do not answer yet; waiting up to %.0f s for them",
                    len(missing_shards), len(self.shards), seconds,
                )  # fmt: skip
                has_warned = True
            time.sleep(PROBE_SECONDS / 4)

    def _probe(self) -> None:
        """Send a small query to each shard that is left out, until it answers."""
        probes: dict[RemoteShard, Future[Any]] = {}
        while not self._stop.wait(PROBE_SECONDS):
            for shard in self.shards:
                is_pending = shard in probes and not probes[shard].done()
                snapshot = self._last_snapshot
                if shard.failed_at is not None and snapshot is not None and not is_pending:
                    try:
                        probes[shard] = shard.submit(self._probe_query(snapshot))
                    except Exception as error:  # Such as no thread for it: the next probe tries.
                        logger.warning("%s cannot be probed: %s", shard.name, error)

    def close(self) -> None:
        self._stop.set()
        for shard in self.shards:
            shard.close()


def _chunks(count: int, size: int) -> Iterator[range]:
    """Yield ranges of up to ``size`` numbers that cover ``range(count)``."""
    size = max(1, min(size, MAX_QUERIES))
    for first in range(0, count, size):
        yield range(first, min(first + size, count))
