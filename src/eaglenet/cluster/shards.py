"""Shard server: scans the vectors or codes of one shard of a store for a front.

A shard needs no model. It receives query vectors for one version of the store and returns rows and
cosines, or, for a store that is searched by codes, receives bit weights and returns rows and
distances. The front merges the results of all shards and does the rest of the search.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from eaglenet.core.errors import UsageError
from eaglenet.search.options import MAX_RESULTS, Filters
from eaglenet.search.shortlist import (
    CANDIDATES_PER_RESULT,
    Shortlist,
    allowed_rows,
    exact_shortlists,
    nearest_in_shard,
    rows_of_shard,
    uses_exact_scan,
)
from eaglenet.serve.limits import LimitMiddleware, ServiceMetrics
from eaglenet.serve.problems import Problem, add_handlers
from eaglenet.serve.security import GuardMiddleware, ObserveMiddleware, TokenCheck
from eaglenet.serve.settings import Settings
from eaglenet.store.base import Store
from eaglenet.store.codes import MAX_SUM, NearestRows, num_bits
from eaglenet.store.snapshot import OutdatedError, Snapshot

MAX_QUERIES = 64
MAX_WIDTH = 3 * MAX_RESULTS
"""Maximum length of a shortlist: twice the results, because near copies are left out of the hits,
and once more for the clips of query files, which are left out too."""
MAX_CANDIDATES = 2**22 + CANDIDATES_PER_RESULT * MAX_WIDTH
SCAN_PATH = "/shard/scan"
NEAR_PATH = "/shard/near"


class ShardRequest(BaseModel):
    """Request to a shard: its store, version, shard and filters. Arrays are in base64."""

    model_config = ConfigDict(extra="forbid")

    identity: str
    version: int
    shard: int
    num_shards: int
    dim: int = Field(ge=1, le=65_536)
    filters: dict[str, Any] = Field(default_factory=dict)


class ScanRequest(ShardRequest):
    """Request for the best clips. ``vectors``: float32 ``[queries, dim]``."""

    k: int = Field(ge=0, le=MAX_WIDTH)
    vectors: str
    hubness_weights: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None
    """Factor of the hubness offsets per query; see ``exact_shortlists``."""


class NearRequest(ShardRequest):
    """Request for the best codes. ``weights``: int16 ``[queries, bits]``.

    The front computes them, because machines may disagree on the sign of a number near 0.
    """

    count: int = Field(ge=1, le=MAX_CANDIDATES)
    weights: str


Lists = dict[str, list[dict[str, str]]]
"""Answer of a shard: ``lists`` with one dictionary of arrays per query.

``scan``: ``rows`` (int64) and ``cosines`` (float32), best first. ``near``: ``rows`` in ascending
order, ``distances`` (uint16) and ``scores`` (int32); for large stores also ``prefix_distances`` and
``prefix_counts``.
"""


def pack(values: NDArray[Any], dtype: str) -> str:
    """Encode an array as base64; ``dtype`` includes the byte order."""
    return base64.b64encode(values.astype(dtype).tobytes()).decode()


def unpack(text: str, dtype: str) -> NDArray[Any]:
    """Decode an array; raise ``ValueError`` for invalid text."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


def unpack_shortlist(body: Mapping[str, str], bounds: tuple[int, int]) -> Shortlist:
    """Decode the best clips of a shard; raise ``ValueError`` for impossible values."""
    rows, cosines = unpack(body["rows"], "<i8"), unpack(body["cosines"], "<f4")
    _check_rows(rows, bounds, len(cosines))
    if len(np.unique(rows)) != len(rows) or not np.isfinite(cosines).all():
        raise ValueError("a repeated row, or cosines that are not finite")
    return Shortlist(rows.astype(np.int64), cosines.astype(np.float32))


def pack_near(near: NearestRows) -> dict[str, str]:
    assert near.scores is not None
    arrays = {
        "rows": pack(near.rows, "<i8"),
        "distances": pack(near.distances, "<u2"),
        "scores": pack(near.scores, "<i4"),
    }
    if near.prefix_distances is not None:
        arrays["prefix_distances"] = pack(near.prefix_distances, "<u2")
        arrays["prefix_counts"] = pack(near.counts, "<i8")
    return arrays


def unpack_near(
    body: Mapping[str, str], bounds: tuple[int, int], has_prefixes: bool
) -> NearestRows:
    """Decode the nearest codes of a shard; raise ``ValueError`` for impossible values."""
    rows, distances = unpack(body["rows"], "<i8"), unpack(body["distances"], "<u2")
    scores = unpack(body["scores"], "<i4").astype(np.int32)
    _check_rows(rows, bounds, len(distances))
    _check_rows(rows, bounds, len(scores))
    if (rows[1:] <= rows[:-1]).any():
        raise ValueError("rows out of order")
    if len(scores) and not -MAX_SUM < scores.min() <= scores.max() < MAX_SUM:
        raise ValueError("impossible scores")
    if not has_prefixes:
        return NearestRows(rows.astype(np.int64), distances.astype(np.uint16), scores=scores)
    prefixes, counts = unpack(body["prefix_distances"], "<u2"), unpack(body["prefix_counts"], "<i8")
    _check_rows(rows, bounds, len(prefixes))
    # Checked because they decide how many rows of all shards are compared.
    size = bounds[1] - bounds[0]
    is_count = len(counts) <= 2**16 and bool(((counts >= 0) & (counts <= size)).all())
    if not is_count or counts.sum() > size:
        raise ValueError("impossible counts")
    return NearestRows(
        rows.astype(np.int64),
        distances.astype(np.uint16),
        prefixes.astype(np.uint16),
        counts.astype(np.int64),
        scores,
    )


def _check_rows(rows: NDArray[Any], bounds: tuple[int, int], count: int) -> None:
    first, end = bounds
    if len(rows) != count or (count and not first <= rows.min() <= rows.max() < end):
        raise ValueError("rows outside the shard")


OTHER_VERSION = "other_version"
"""Error code for a version of the store that the shard does not have."""
OPEN_VERSIONS = 2
"""Number of versions that stay open; a front may still use the previous one."""


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``--shard``: the number of the shard, and the number of shards.

    >>> parse_shard("2/4")
    (2, 4)
    """
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text!r:.60}: expected NUMBER/TOTAL, such as 1/4")
    return int(match[1]), int(match[2])


def shard_token(token: str, shard: tuple[int, int]) -> str:
    """Derive the token of one shard from that of the service, which is never sent to a shard.

    A hostile server at the address of a shard therefore cannot learn the token of the service or of
    another shard. Front and shard derive it from the same ``EAGLENET_TOKEN``.
    """
    name = f"eaglenet shard {shard[0]} of {shard[1]}"
    return hmac.new(token.encode(), name.encode(), hashlib.sha256).hexdigest()


class Shard:
    """Shard of a store; opens new versions as they are published."""

    def __init__(self, store: Store, shard: tuple[int, int]) -> None:
        self.store = store
        self.shard = shard
        self._opening = threading.Lock()
        self._snapshots: tuple[Snapshot, ...] = ()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version, by default the newest; raise a :class:`Problem` if it does not exist.

        Requests for open versions do not wait while a newer one is opened.
        """
        snapshot = self._find_open(version)
        if snapshot is not None:
            return snapshot
        with self._opening:
            snapshot = self._find_open(version)  # Another request may have opened it.
            if snapshot is not None:
                return snapshot
            newest = self._open()
            older = [each for each in self._snapshots if each.version != newest.version]
            self._snapshots = (newest, *older)[:OPEN_VERSIONS]
            if version is not None and newest.version != version:
                raise _other_version(f"version {newest.version} of the store, not {version}")
            return newest

    def _find_open(self, version: int | None) -> Snapshot | None:
        return next((each for each in self._snapshots if each.version == version), None)

    def _open(self) -> Snapshot:
        """Open, read and check the newest version; retry if the store changes meanwhile."""
        snapshot = self.store.snapshot()
        try:
            self._read(snapshot)
        except OutdatedError:
            snapshot = self.store.snapshot()
            self._read(snapshot)
        return snapshot

    def _read(self, snapshot: Snapshot) -> None:
        """Read and check the vectors or codes of a version before the first request."""
        rows = rows_of_shard(snapshot, self.shard)
        if uses_exact_scan(snapshot):
            list(snapshot.vector_parts(*rows))
        else:
            snapshot.codes(*rows)

    def scan(self, request: ScanRequest) -> Lists:
        snapshot, row_mask = self._check(request)
        queries = _arrays("vectors", request.vectors, "<f4", request.dim).astype(np.float32)
        if not np.isfinite(queries).all():
            raise Problem(422, "vectors: all values must be finite")
        weights = request.hubness_weights
        if weights is not None and len(weights) != len(queries):
            raise Problem(422, f"hubness_weights: {len(weights)} for {len(queries)} vectors")
        with self._current():
            shortlists = exact_shortlists(
                snapshot, queries, request.k, row_mask, self.shard, hubness_weights=weights
            )
        lists = [
            {"rows": pack(shortlist.rows, "<i8"), "cosines": pack(shortlist.cosines, "<f4")}
            for shortlist in shortlists
        ]
        return {"lists": lists}

    def find_nearest(self, request: NearRequest) -> Lists:
        """Return the rows of this shard that may have the nearest codes of the store."""
        snapshot, row_mask = self._check(request)
        weights = _arrays("weights", request.weights, "<i2", num_bits(request.dim))
        if np.abs(weights.astype(np.int64)).sum(axis=1).max(initial=0) >= MAX_SUM:
            raise Problem(422, f"weights: absolute values must add up to less than {MAX_SUM}")
        with self._current():
            nearest = nearest_in_shard(
                snapshot, weights.astype(np.int16), request.count, self.shard, row_mask
            )
        return {"lists": [pack_near(near) for near in nearest]}

    def _check(self, request: ShardRequest) -> tuple[Snapshot, NDArray[np.bool_] | None]:
        """Return the snapshot of a request, and the mask of rows that pass its filters."""
        number, total = self.shard
        if (request.shard, request.num_shards) != self.shard:
            raise Problem(
                409,
                f"this is shard {number} of {total}, not {request.shard} of {request.num_shards}",
                code="other_shard",
                hint="pass the addresses to the front in the order of the shards",
            )
        snapshot = self.snapshot(request.version)
        manifest = snapshot.manifest
        if request.identity != manifest.identity or request.dim != manifest.dim:
            raise Problem(
                409,
                "this shard serves another store",
                code="other_store",
                hint="start shards and front with the same --store",
            )
        filters = _filters(request.filters)
        with self._current():
            return snapshot, allowed_rows(snapshot, filters)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Close all versions if a writer removed files of one; the front tries again."""
        try:
            yield
        except OutdatedError as error:
            self._snapshots = ()
            raise _other_version("a newer version of the store") from error


def _other_version(text: str) -> Problem:
    return Problem(
        409,
        f"this shard has {text}",
        code=OTHER_VERSION,
        hint="try again; shard and front see new versions at different moments",
    )


def _arrays(name: str, text: str, dtype: str, size: int) -> NDArray[Any]:
    try:
        values = unpack(text, dtype)
    except ValueError as error:
        raise Problem(422, f"{name}: {error}") from None
    if not len(values) or len(values) % size or len(values) > MAX_QUERIES * size:
        raise Problem(422, f"{name}: expected 1 to {MAX_QUERIES} of {size} numbers")
    return values.reshape(-1, size)


def _filters(values: dict[str, Any]) -> Filters:
    try:
        return Filters(**{**values, "tags": tuple(values.get("tags", ()))})
    except TypeError as error:
        raise Problem(422, f"filters: {error}"[:300]) from None


router = APIRouter()


@router.get("/health")
def health(request: Request) -> dict[str, str]:
    return {"status": "ok"}


@router.post(SCAN_PATH)
def scan(request: Request, scan_request: ScanRequest) -> Lists:
    """Return rows and cosines of the best clips of this shard."""
    shard: Shard = request.app.state.shard
    return shard.scan(scan_request)


@router.post(NEAR_PATH)
def near(request: Request, near_request: NearRequest) -> Lists:
    """Return the rows of this shard with the nearest codes, and their distances."""
    shard: Shard = request.app.state.shard
    return shard.find_nearest(near_request)


def create_shard_app(
    store: Store, number: tuple[int, int], settings: Settings | None = None
) -> FastAPI:
    """Create the app of one shard of a store, with the access checks of the service."""
    settings = settings or Settings()
    shard = Shard(store, number)
    shard.snapshot()  # Opens the store, so that the first request is fast.
    app = FastAPI(title="eaglenet shard", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.shard = shard
    app.state.routes = list(router.routes)
    add_handlers(app)
    app.include_router(router)
    metrics = ServiceMetrics()
    token = settings.token
    tokens = TokenCheck(shard_token(token, number)) if token is not None else None
    app.add_middleware(LimitMiddleware, settings=settings, metrics=metrics)
    app.add_middleware(GuardMiddleware, settings=settings, tokens=tokens)
    app.add_middleware(ObserveMiddleware, metrics=metrics)
    return app
