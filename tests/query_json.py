"""Queries as JSON."""

from typing import Any

from eaglenet.search.grammar import AnyQuery, ComposedQuery, TemporalQuery


def to_json(query: AnyQuery) -> dict[str, Any]:
    """A query as JSON, as ``from_json`` reads it."""
    if isinstance(query, TemporalQuery):
        record: dict[str, Any] = {"steps": [to_json(step) for step in query.steps]}
        return record if query.within is None else {**record, "within": query.within}
    if isinstance(query, ComposedQuery):
        return {"parts": [{**to_json(part.query), "weight": part.weight} for part in query.parts]}
    if query.text is not None:
        return {"text": query.title}
    if query.clip_id is not None:
        return {"clip_id": query.clip_id}
    raise AssertionError("a file has no JSON")
