"""Texts that say what not to show: detection, and the hint in Python."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglenet.search.engine import Engine
from eaglenet.search.grammar import ComposedQuery, parse
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.wording import find_negation, negation_in


@pytest.mark.parametrize(
    ("text", "rest", "negatives"),
    [
        ("a guitar but no girl", "a guitar", ("girl",)),
        ("a beach without people", "a beach", ("people",)),
        ("a street, not at night", "a street", ("at night",)),
        ("a street with no cars and no people", "a street", ("cars", "people")),
        ("a man without a hat on a beach", "a man on a beach", ("hat",)),
        ("a man who isn't wearing a hat", "a man", ("wearing a hat",)),
        ("a man without a shirt playing tennis", "a man playing tennis", ("shirt",)),
        ("an empty room, nobody there", "an empty room", ("people there",)),
        ("people not looking at the camera", "people", ("looking at the camera",)),
        ("everything except the dog", "everything", ("dog",)),
        ("no people", "", ("people",)),
        ("a beach with no people and a boat", "a beach and a boat", ("people",)),
        ("a man without a hat and a coat", "a man", ("hat and a coat",)),
        ("a girl without a smile and with a hat", "a girl with a hat", ("smile",)),
        ("a beach with nobody on it at night", "a beach at night", ("people",)),
        ("a beach with no people, a dog lying on it", "a beach a dog lying on it", ("people",)),
        ("a man with no shoes on is running", "a man is running", ("shoes on",)),
        ("a man wearing no shirt on a beach", "a man on a beach", ("shirt",)),
        ("a man without a shirt plays a guitar", "a man plays a guitar", ("shirt",)),
        ("a man without a pair of shoes", "a man", ("pair of shoes",)),
        ("a sky without a few clouds", "a sky", ("few clouds",)),
        ("a room with no street lights", "a room", ("street lights",)),
        ("no dogs are on a beach", "", ("dogs are on a beach",)),
        ("nobody is wearing a hat", "", ("people wearing a hat",)),
        ("it\u2019s not raining", "", ("raining",)),
        ("a man without a 3.5 mm jack, indoors", "a man indoors", ("3.5 mm jack",)),
    ],
)
def test_a_negation_is_split_from_what_is_left(
    text: str, rest: str, negatives: tuple[str, ...]
) -> None:
    negation = find_negation(text)
    assert negation is not None
    assert (negation.text, negation.negatives) == (rest, negatives)


@pytest.mark.parametrize(
    "text",
    [
        "a red ball",
        "a no smoking sign",
        "a road with no parking",
        "a sign that says do not enter",
        "No Country for Old Men",
        "Gone Without a Trace",
        'signs that say "no entry"',
        "a shop without \u201copen\u201d in the window",
        "platform no. 5",
        "not only a dog but also a cat",
        "an old train no longer in use",
        "a band with no sound",
        "perro en la playa, no gato",
        "no, no, no",
        "no no no",
        "cats are not visible",
        "",
    ],
)
def test_what_is_no_negation_gets_no_hint(text: str) -> None:
    assert find_negation(text) is None


@pytest.mark.parametrize("text", ["a street without cars", "2: a street without cars"])
def test_the_advised_query_means_what_is_left_and_what_is_excluded(text: str) -> None:
    negation = find_negation(text)
    assert negation is not None
    query = parse(negation.query)
    assert isinstance(query, ComposedQuery)
    assert [part.query.text for part in query.parts] == [negation.text, *negation.negatives]
    assert [part.weight for part in query.parts] == [1, *[-0.5] * len(negation.negatives)]


WORDS = "a the no not without nobody isn't and but dog few hats plays running is on it , : 5: + -"


@given(st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join))
def test_every_advised_query_is_valid(text: str) -> None:
    negation = find_negation(text)
    if negation is not None and negation.query:
        query = parse(negation.query)
        assert isinstance(query, ComposedQuery)
        parts = [part.query.text for part in query.parts]
        assert parts == [negation.text, *negation.negatives]


def test_the_advice_keeps_the_date_of_a_text() -> None:
    query = parse("a street in July 2023 without cars")
    negation = negation_in(query, SearchOptions())
    assert negation is not None
    # Queries of several parts have no dates.
    assert negation.query == ""
    assert "describe" not in negation.hint
    advised_query = parse(negation.text, negatives=negation.negatives)
    assert isinstance(advised_query, Query)
    assert advised_query.dates == query.dates
    assert (advised_query.text, advised_query.negatives) == ("a street", ("cars",))


def test_a_long_text_takes_no_time() -> None:
    start = time.perf_counter()
    for text in (
        "no a " * 800,
        "no hat" + " " * 100_000 + "x",
        "is " * 1300 + "not a dog",
        " " * 3900 + "no dog",
    ):
        find_negation(text)
    assert time.perf_counter() - start < 2


def test_hits_carry_the_hint(engine: Engine) -> None:
    notice = engine.search("a red ball but no girl").notice
    assert notice.endswith('write: "a red ball" - "girl"')
    assert engine.search('"a red ball" - "girl"').notice == ""
    assert engine.search(Query("a red ball, no girl", negatives=["girl"])).notice == ""
    assert engine.search("a red ball but no girl", literal=True).notice == ""
    assert engine.search("a red ball but no girl", modalities="speech").notice == ""
