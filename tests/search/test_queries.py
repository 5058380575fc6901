"""What may be asked: any text is a query or refused politely."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError
from eaglenet.search.engine import Engine
from eaglenet.search.query import clean_query

NASTY = ["", " ", "\x00", "\n\t\r", "\ud800", "\u202e\u200f", "x" * 10**6, "' OR 1=1 --", "%s%n"]


def test_queries_are_cleaned_not_trusted() -> None:
    assert clean_query("a\x00b\tc\ud800d") == "a b c d"
    assert (
        clean_query("\u05e9\u05dc\u05d5\u05dd \U0001f600") == "\u05e9\u05dc\u05d5\u05dd \U0001f600"
    )
    assert len(clean_query("word " * 10**6)) < 5000
    for empty in ("", " \n", "\x00\x01", "\u202e"):
        with pytest.raises(UsageError, match="empty"):
            clean_query(empty)


def check_query(engine: Engine, query: str, negative: str) -> None:
    try:
        clean_query(query), clean_query(negative or "none")
    except UsageError:
        with pytest.raises(UsageError, match="empty"):
            engine.search(query, k=2, negatives=[negative] if negative else [])
        return
    assert len(engine.search(query, k=2, negatives=[negative] if negative else [])) == 2


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(query=st.text(max_size=300) | st.sampled_from(NASTY), negative=st.text(max_size=20))
def test_any_text_is_a_query_or_a_polite_refusal(engine: Engine, query: str, negative: str) -> None:
    check_query(engine, query, negative)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(query=st.text(max_size=2000) | st.sampled_from(NASTY), negative=st.text(max_size=20))
def test_ten_thousand_texts_are_queries_or_polite_refusals(
    engine: Engine, query: str, negative: str
) -> None:
    check_query(engine, query, negative)


@pytest.mark.parametrize("query", [["red", "car"], ("red",), None, 3, b"red", Path("red")])
def test_what_is_no_sentence_is_refused(engine: Engine, query: object) -> None:
    with pytest.raises(UsageError, match="search_many"):
        engine.search(query)
    with pytest.raises(UsageError, match="search_many"):
        engine.search("red", negatives=[query])


@pytest.mark.parametrize("queries", ["red car", b"red", None, 3])
def test_what_is_no_list_of_sentences_is_refused(engine: Engine, queries: object) -> None:
    with pytest.raises(UsageError, match="a list of sentences"):
        engine.search_many(queries)
    with pytest.raises(UsageError, match="a list of sentences"):
        engine.search("red", negatives=queries)
