"""Any text is a query or is refused with a message; a query has exactly one source."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, features

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips
from eaglenet.search.engine import Engine
from eaglenet.search.grammar import ComposedQuery, parse
from eaglenet.search.query import MAX_PHRASES, Query, TranscriptQuery, clean_text
from eaglenet.store.records import Phrase

NASTY = ["", " ", "\x00", "\n\t\r", "\ud800", "\u202e\u200f", "x" * 10**6, "' OR 1=1 --", "%s%n"]


def test_texts_are_cleaned() -> None:
    assert clean_text("a\x00b\tc\ud800d") == "a b c d"
    assert (
        clean_text("\u05e9\u05dc\u05d5\u05dd \U0001f600") == "\u05e9\u05dc\u05d5\u05dd \U0001f600"
    )
    assert len(clean_text("word " * 10**6)) < 5000
    for empty in ("", " \n", "\x00\x01", "\u202e"):
        with pytest.raises(UsageError, match="empty"):
            clean_text(empty)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        (Query(" a\x00 dog "), "a dog"),
        (Query(image=Path("dog.png")), "dog.png"),
        (Query(video="dog.mp4", window=(1.0, 2.0)), "dog.mp4"),
        (Query(clip_id="3f9c-0"), "3f9c-0"),
    ],
)
def test_query_has_a_title(query: Query, title: str) -> None:
    assert query.title == title


def test_query_has_exactly_one_source() -> None:
    with pytest.raises(UsageError, match="exactly one of text, image, video and clip_id, not noth"):
        Query()
    with pytest.raises(UsageError, match="not text and image"):
        Query("a dog", image="dog.png")
    clips = Clips(torch.zeros(1, 1, 3, 2, 2).byte(), torch.ones(1, 1).bool(), torch.zeros(1, 1))
    with pytest.raises(UsageError, match="not video and clips"):
        Query(video="dog.mp4", clips=clips)
    with pytest.raises(UsageError, match=r"dog\.MP4 is a video; pass it as video='dog\.MP4'"):
        Query(image=Path("dog.MP4"))


def test_negatives_are_cleaned_and_need_a_text() -> None:
    assert Query("a cat", negatives=[" a\x00 dog "]).negatives == ("a dog",)
    with pytest.raises(UsageError, match="a list of texts"):
        Query("a cat", negatives="a dog")
    with pytest.raises(UsageError, match="with a text only, not with clip_id"):
        Query(clip_id="3f9c-0", negatives=("dog",))


def test_quotation_marks_enclose_phrases() -> None:
    query = Query('cars near \u201cno entry\u201d "signs').transcript
    assert query == TranscriptQuery(
        "cars near no entry signs",
        (("cars", "car"), ("near",), ("signs", "sign")),
        (Phrase(("no", "entry")),),
    )
    assert not query.has_only_phrases
    assert TranscriptQuery.parse('"no entry"').has_only_phrases
    assert Query(clip_id="3f9c-0").transcript is None


def test_a_number_after_a_phrase_is_a_distance() -> None:
    query = TranscriptQuery.parse('lost "keys table"~5 "home"~x "a b"~1000')
    assert query.plain == "lost keys table home ~x a b"
    assert [(phrase.terms, phrase.gap) for phrase in query.phrases] == [
        (("keys", "table"), 5),
        (("home",), None),
        (("a", "b"), 99),
    ]
    assert query.terms == (("lost",), ("x",))
    assert isinstance(parse('"keys table"~5'), Query)
    composed = parse('"a dog"~5 + "a cat"')
    assert isinstance(composed, ComposedQuery)
    assert [part.query.text for part in composed.parts] == ["a dog", "a cat"]


def test_phrases_are_counted_once_and_limited() -> None:
    repeated = TranscriptQuery.parse('"a b"~5 ' * 100)
    assert repeated.phrases == (Phrase(("a", "b"), 5),)
    different = TranscriptQuery.parse(" ".join(f'"a b"~{gap}' for gap in range(1, 99)))
    assert len(different.phrases) == MAX_PHRASES


def check_query(engine: Engine, text: str, negative: str) -> None:
    negatives = (negative,) if negative else ()
    try:
        clean_text(text), clean_text(negative or "none")
    except UsageError:
        with pytest.raises(UsageError, match="empty"):
            engine.search(Query(text, negatives), k=2)
        return
    assert len(engine.search(Query(text, negatives), k=2)) == 2


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=300) | st.sampled_from(NASTY), negative=st.text(max_size=20))
def test_any_text_is_a_query_or_refused(engine: Engine, text: str, negative: str) -> None:
    check_query(engine, text, negative)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=2000) | st.sampled_from(NASTY), negative=st.text(max_size=20))
def test_ten_thousand_texts_are_queries_or_refused(
    engine: Engine, text: str, negative: str
) -> None:
    check_query(engine, text, negative)


@pytest.mark.parametrize("query", [["red", "car"], ("red",), None, 3, b"red", Path("red")])
def test_refuses_what_is_no_text(engine: Engine, query: object) -> None:
    with pytest.raises(UsageError, match="a query must be one text or a Query, not") as error:
        engine.search(query)
    assert ("search_many" in str(error.value)) == isinstance(query, list | tuple)
    with pytest.raises(UsageError, match="negatives: expected a list of texts; one of them is"):
        Query("red", negatives=[query])


@pytest.mark.parametrize("queries", ["red car", b"red", None, 3, Query("red")])
def test_refuses_what_is_no_list_of_queries(engine: Engine, queries: object) -> None:
    with pytest.raises(UsageError, match="a list of queries"):
        engine.search_many(queries)


def test_texts_and_clips_are_searched_together(engine: Engine) -> None:
    clip_id = engine.search("red car", k=1)[0].clip_id
    queries = ["red car", Query(clip_id=clip_id), Query("blue dog", negatives=("red",))]
    together = engine.search_many(queries, k=3)
    assert together == [engine.search(query, k=3) for query in queries]
    assert clip_id not in {hit.clip_id for hit in together[1]}


def encoded(format: str) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((40, 30), 50).convert("RGB").save(file, format)
    return file.getvalue()


def test_bytes_are_read_in_the_formats_of_files_only() -> None:
    """An EPS would start Ghostscript."""
    assert Query(image=encoded("PNG")).image.size == (40, 30)
    for format in ("EPS", "PPM"):
        with pytest.raises(UsageError, match="bytes are not an image: unknown format"):
            Query(image=encoded(format))


@pytest.mark.skipif(not features.check("avif"), reason="needs a Pillow with AVIF")
def test_damaged_bytes_are_refused() -> None:
    """Decoders raise errors of any type."""
    content, generator = encoded("AVIF"), np.random.default_rng(1)
    for _ in range(60):
        damaged_content = bytearray(content[: generator.integers(10, len(content) + 1)])
        for index in generator.integers(0, len(damaged_content), 6):
            damaged_content[index] = int(generator.integers(0, 256))
        with contextlib.suppress(UsageError):
            Query(image=bytes(damaged_content))
