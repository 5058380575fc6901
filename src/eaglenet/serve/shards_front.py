"""The front of several shards: asks all for their shortlists and merges them.

A shard that does not answer in time is left out, the answer says so, and the shard is asked again
by itself, a moment later and out of anyone's way, until it answers.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from torch import Tensor

from eaglenet.errors import StoreError, UnreachableError, UsageError
from eaglenet.search.filters import Filters
from eaglenet.search.shortlist import Shortlist, merged
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

    def scan(self, snapshot: Snapshot, body: dict[str, Any]) -> list[Shortlist]:
        """Its shortlist for each query; notes whether it answers."""
        begun = time.monotonic()
        try:
            number, parts = self.part
            answer = self._ask({**body, "part": number, "parts": parts})
            found = [_shortlist(each, len(snapshot)) for each in answer["lists"]]
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

    def _ask(self, body: dict[str, Any]) -> Any:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.seconds)
        try:
            connection.request("POST", "/shard/scan", json.dumps(body), self._headers)
            answer = connection.getresponse()
            content = answer.read(LONGEST_ANSWER)
        finally:
            connection.close()
        if answer.status != 200:
            raise ShardFailureError(f"answered {answer.status} {content[:200]!r}")
        return json.loads(content)


def _shortlist(packed: Mapping[str, str], num_rows: int) -> Shortlist:
    rows = np.frombuffer(base64.b64decode(packed["rows"]), "<i8")
    cosines = np.frombuffer(base64.b64decode(packed["cosines"]), "<f4")
    if len(rows) != len(cosines) or (len(rows) and not 0 <= rows.min() <= rows.max() < num_rows):
        raise ValueError("its rows are not of this store")
    return Shortlist(rows.astype(np.int64), cosines.astype(np.float32))


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
        self._last: tuple[Snapshot, dict[str, Any]] | None = None
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
        body = {
            "identity": self.identity,
            "version": snapshot.version,
            "k": k,
            "dim": queries.shape[1],
            "vectors": base64.b64encode(queries.cpu().numpy().astype("<f4").tobytes()).decode(),
            "filters": dataclasses.asdict(filters) if filters else {},
            **({} if shares is None else {"shares": list(shares)}),
        }
        self._last = (snapshot, {**body, "k": 1})
        asked = {
            self._threads.submit(shard.scan, snapshot, body): shard
            for shard in self.shards
            if shard.failed_at is None
        }
        done, late = wait(asked, timeout=self.seconds)
        for future in late:
            asked[future].note(ShardFailureError(f"no answer within {self.seconds:g} s"))
        found = [lists for future in done if (lists := _result(future)) is not None]
        if not found:
            reasons = "; ".join(f"{shard.name}: {shard.reason}" for shard in self.shards)
            raise UnreachableError(f"no shard of the store answers: {reasons}")
        if any(len(lists) != len(queries) for lists in found):
            raise StoreError("a shard answered another question than it was asked")
        return [merged([lists[number] for lists in found], k) for number in range(len(queries))]

    def wait_until_up(self, snapshot: Snapshot, dim: int, seconds: float) -> None:
        """Ask until every shard answers, or the time is over."""
        query = np.zeros((1, dim), "<f4")
        body = {
            "identity": self.identity,
            "version": snapshot.version,
            "k": 1,
            "dim": dim,
            "vectors": base64.b64encode(query.tobytes()).decode(),
        }
        self._last = (snapshot, body)
        end = time.monotonic() + seconds
        while True:
            for shard in self.shards:
                _result(self._threads.submit(shard.scan, snapshot, body))
            if time.monotonic() > end or all(shard.failed_at is None for shard in self.shards):
                return
            time.sleep(PROBE_SECONDS / 4)

    def _probe(self) -> None:
        """Ask shards that are left out something small, until they answer."""
        while not self._closed.wait(PROBE_SECONDS):
            for shard in self.shards:
                if shard.failed_at is not None and self._last is not None:
                    snapshot, body = self._last
                    _result(self._threads.submit(shard.scan, snapshot, body))

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[list[Shortlist]]) -> list[Shortlist] | None:
    """What a shard gave; None where it is left out, which it has noted itself."""
    try:
        return future.result()
    except ShardFailureError:
        return None
