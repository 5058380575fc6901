"""What a front and its shards say to each other: questions and answers, arrays in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from eaglenet.search.approximate import WIDER
from eaglenet.search.options import MAX_RESULTS
from eaglenet.search.shortlist import Shortlist
from eaglenet.search.store.near_codes import Near

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
