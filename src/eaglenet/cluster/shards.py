"""A part of a store, served to a front: the scan over its vectors or codes, and nothing else.

A shard needs no model. It is asked with vectors, for one version of the store, and gives rows and
cosines; of a store that one machine would search by codes it is asked with codes, and gives rows
and distances. The front merges those of all shards and does the rest of a search itself.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, FastAPI, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from eaglenet.core.errors import UsageError
from eaglenet.search.filters import Filters
from eaglenet.search.options import MAX_RESULTS
from eaglenet.search.shortlist import WIDER, Shortlist, exact_shortlists, is_scanned, near_in_part
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.codes import code_bytes
from eaglenet.search.store.near_codes import Near
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.serve.counters import ServiceMetrics
from eaglenet.serve.limits import LimitMiddleware
from eaglenet.serve.problems import Problem, add_handlers
from eaglenet.serve.security import GuardMiddleware, ObserveMiddleware, TokenCheck
from eaglenet.serve.settings import Settings

# What a front and its shards say to each other: questions and answers, arrays in base64.

MAX_QUERIES = 64
MAX_WIDTH = 2 * MAX_RESULTS + 1
"""Of a shortlist: twice as many where moments are folded, and the clip that was asked with."""
MAX_CANDIDATES = 2**22 + WIDER * MAX_WIDTH
SCAN_PATH = "/shard/scan"
NEAR_PATH = "/shard/near"


class Question(BaseModel):
    """Of which part of which version of which store, and with which filters."""

    model_config = ConfigDict(extra="forbid")

    identity: str
    version: int
    part: int
    parts: int
    dim: int = Field(ge=1, le=65_536)
    filters: dict[str, Any] = Field(default_factory=dict)


class ScanRequest(Question):
    """For the best clips. ``vectors``: float32 ``[queries, dim]``, row by row, in base64."""

    k: int = Field(ge=0, le=MAX_WIDTH)
    vectors: str
    shares: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None
    """How much of the clips' levels each query takes off; see ``exact_shortlists``."""


class ScanList(BaseModel):
    """Rows (int64) and cosines (float32) of one query in base64, best first."""

    rows: str
    cosines: str


class ScanBody(BaseModel):
    lists: list[ScanList]


class NearRequest(Question):
    """For the nearest codes. ``codes``: those of the queries, one after the other, in base64.

    The front makes them: of a number near 0 two machines may see different signs.
    """

    count: int = Field(ge=1, le=MAX_CANDIDATES)
    codes: str


class NearList(BaseModel):
    """A ``Near`` of rows in base64: int64, uint16, and where codes are many uint16 and int64."""

    rows: str
    distances: str
    halves: str | None = None
    counts: str | None = None


class NearBody(BaseModel):
    lists: list[NearList]


def packed(values: NDArray[Any], kind: str) -> str:
    """An array as text; ``kind`` is that of numpy, with the order of its bytes."""
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def unpacked(text: str, kind: str) -> NDArray[Any]:
    """An array again; a ``ValueError`` where the text is none."""
    return np.frombuffer(base64.b64decode(text, validate=True), kind)


def packed_shortlist(shortlist: Shortlist) -> ScanList:
    return ScanList(rows=packed(shortlist.rows, "<i8"), cosines=packed(shortlist.cosines, "<f4"))


def unpacked_shortlist(body: Mapping[str, str], num_rows: int) -> Shortlist:
    """The best clips of a part, which must be of this store."""
    rows, cosines = unpacked(body["rows"], "<i8"), unpacked(body["cosines"], "<f4")
    _check_rows(rows, num_rows, len(cosines))
    return Shortlist(rows.astype(np.int64), cosines.astype(np.float32))


def packed_near(near: Near) -> NearList:
    list_ = NearList(rows=packed(near.slots, "<i8"), distances=packed(near.distances, "<u2"))
    if near.halves is not None:
        list_.halves, list_.counts = packed(near.halves, "<u2"), packed(near.counts, "<i8")
    return list_


def unpacked_near(body: Mapping[str, str], num_rows: int, is_halved: bool) -> Near:
    """The nearest codes of a part, which must be of this store and compared as it compares."""
    rows, distances = unpacked(body["rows"], "<i8"), unpacked(body["distances"], "<u2")
    _check_rows(rows, num_rows, len(distances))
    if not is_halved:
        return Near(rows.astype(np.int64), distances.astype(np.uint16))
    halves, counts = unpacked(body["halves"], "<u2"), unpacked(body["counts"], "<i8")
    _check_rows(rows, num_rows, len(halves))
    return Near(
        rows.astype(np.int64),
        distances.astype(np.uint16),
        halves.astype(np.uint16),
        counts.astype(np.int64),
    )


def _check_rows(rows: NDArray[Any], num_rows: int, count: int) -> None:
    if len(rows) != count or (count and not 0 <= rows.min() <= rows.max() < num_rows):
        raise ValueError("its rows are not of this store")


KEPT_VERSIONS = 2
"""A front may still be at the version before the newest."""


def parse_shard(text: str) -> tuple[int, int]:
    """``2/4`` as (2, 4).

    >>> parse_shard("2/4")
    (2, 4)
    """
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(
            f"--shard is the number of the part and of all parts, 1/4 to 4/4 say, not {text!r:.60}"
        )
    return int(match[1]), int(match[2])


class Shard:
    """One part of one store; sees what a writer publishes."""

    def __init__(self, store: Store, part: tuple[int, int]) -> None:
        self.store = store
        self.part = part
        self._opening = threading.Lock()
        self._snapshots: tuple[Snapshot, ...] = ()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """A version that is open, or the newest; a :class:`Problem` where it is another one.

        While a newer one is opened, questions about those that are open do not wait.
        """
        found = self._opened(version)
        if found is not None:
            return found
        with self._opening:
            found = self._opened(version)  # By another question, meanwhile.
            if found is not None:
                return found
            self.store = open_store(self.store.location)
            newest = self.store.snapshot()
            self._read(newest)
            kept = [found for found in self._snapshots if found.version != newest.version]
            self._snapshots = (newest, *kept)[:KEPT_VERSIONS]
            if version is not None and newest.version != version:
                raise Problem(
                    409,
                    f"version {version} of the store was asked for, this shard is at version "
                    f"{newest.version}",
                    code="other_version",
                    hint="ask again; the two see the store at different moments",
                )
            return newest

    def _opened(self, version: int | None) -> Snapshot | None:
        return next((found for found in self._snapshots if found.version == version), None)

    def _read(self, snapshot: Snapshot) -> None:
        """Read and compare what questions about a version need, before the first one does."""
        stretch = snapshot.part(*self.part)
        if is_scanned(snapshot):
            snapshot.vectors_between(*stretch)
        else:
            snapshot.codes_between(*stretch)

    def scan(self, asked: ScanRequest) -> ScanBody:
        """The best clips of this part."""
        snapshot, allowed = self._asked(asked)
        queries = torch.from_numpy(_arrays("vectors", asked.vectors, "<f4", asked.dim).copy())
        if not queries.isfinite().all():
            raise Problem(422, "vectors: not all are numbers")
        if asked.shares is not None and len(asked.shares) != len(queries):
            raise Problem(422, f"shares: {len(asked.shares)} for {len(queries)} vectors")
        found = exact_shortlists(
            snapshot, queries, asked.k, allowed, self.part, shares=asked.shares
        )
        return ScanBody(lists=[packed_shortlist(each) for each in found])

    def near(self, asked: NearRequest) -> NearBody:
        """The clips of this part that may be among those with the nearest codes of all."""
        snapshot, allowed = self._asked(asked)
        codes = _arrays("codes", asked.codes, "u1", code_bytes(asked.dim))
        if not snapshot.has_codes:
            raise Problem(409, "the store has no codes", code="no_codes")
        found = near_in_part(snapshot, codes, asked.count, self.part, allowed)
        return NearBody(lists=[packed_near(each) for each in found])

    def _asked(self, asked: Question) -> tuple[Snapshot, NDArray[np.bool_] | None]:
        """The version that is asked about and the rows that may be found; None: all."""
        if (asked.part, asked.parts) != self.part:
            number, parts = self.part
            raise Problem(
                409,
                f"part {asked.part} of {asked.parts} was asked for, this is part {number} of "
                f"{parts}",
                code="other_part",
                hint="give the front the addresses in the order of their parts",
            )
        snapshot = self.snapshot(asked.version)
        manifest = self.store.manifest
        if asked.identity != manifest.identity or asked.dim != manifest.dim:
            raise Problem(
                409,
                "another store was asked for than this shard serves",
                code="other_store",
                hint="give shards and front the same --store",
            )
        filters = _filters(asked.filters)
        return snapshot, snapshot.rows_of(filters.allowed(snapshot.files)) if filters else None


def _arrays(name: str, text: str, kind: str, size: int) -> NDArray[Any]:
    """``[queries, size]``."""
    try:
        values = unpacked(text, kind)
    except ValueError as error:
        raise Problem(422, f"{name}: {error}") from None
    if not len(values) or len(values) % size or len(values) > MAX_QUERIES * size:
        raise Problem(422, f"{name}: expected 1 to {MAX_QUERIES} of {size} numbers")
    return values.reshape(-1, size)


def _filters(values: dict[str, Any]) -> Filters:
    try:
        given = {**values, "tags": tuple(values.get("tags", ()))}
        return Filters(**given)
    except TypeError as error:
        raise Problem(422, f"filters: {error}"[:300]) from None


router = APIRouter()


@router.get("/health")
def health(request: Request) -> dict[str, str]:
    """Whether the shard answers."""
    return {"status": "ok"}


@router.post(SCAN_PATH)
def scan(request: Request, asked: ScanRequest) -> ScanBody:
    """Rows and cosines of the best clips of this part."""
    shard: Shard = request.app.state.shard
    return shard.scan(asked)


@router.post(NEAR_PATH)
def near(request: Request, asked: NearRequest) -> NearBody:
    """Rows of this part with the nearest codes, and their distances."""
    shard: Shard = request.app.state.shard
    return shard.near(asked)


def create_shard_app(
    store: Store, part: tuple[int, int], settings: Settings | None = None
) -> FastAPI:
    """An app that scans one part of a store, behind the same guards as the service."""
    settings = settings or Settings()
    shard = Shard(store, part)
    # Reads and compares its part now, so that the first question is as fast as the next.
    shard.snapshot()
    app = FastAPI(title="eaglenet shard", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.shard = shard
    app.state.routes = list(router.routes)
    add_handlers(app)
    app.include_router(router)
    metrics = ServiceMetrics()
    tokens = TokenCheck(settings.token) if settings.token is not None else None
    app.add_middleware(LimitMiddleware, settings=settings, metrics=metrics)
    app.add_middleware(GuardMiddleware, settings=settings, tokens=tokens)
    app.add_middleware(ObserveMiddleware, metrics=metrics)
    return app
