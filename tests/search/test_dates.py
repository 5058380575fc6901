"""Dates inside texts: what is read as one, and above all what is not."""

import time
from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError
from eaglenet.search.dates import take_dates
from eaglenet.search.grammar import parse
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query

TODAY = date(2026, 11, 17)
"""A Tuesday."""


def days(text: str, today: date = TODAY) -> tuple[str, str, str] | None:
    """Rest of the text, first and last day; empty: no limit."""
    rest, dates = take_dates(text, today)
    if dates is None:
        assert rest == text
        return None
    first = "" if dates.after is None else f"{datetime.fromtimestamp(dates.after):%Y-%m-%d}"
    last = "" if dates.before is None else f"{datetime.fromtimestamp(dates.before - 1):%Y-%m-%d}"
    return rest, first, last


@pytest.mark.parametrize(
    ("text", "rest", "first", "last"),
    [
        ("beach, July 2023", "beach", "2023-07-01", "2023-07-31"),
        ("beach july 2023", "beach", "2023-07-01", "2023-07-31"),
        (
            "a wedding in June 2019 on the beach",
            "a wedding on the beach",
            "2019-06-01",
            "2019-06-30",
        ),
        ("14 July 2023 fireworks", "fireworks", "2023-07-14", "2023-07-14"),
        ("July 14, 2023: parade", "parade", "2023-07-14", "2023-07-14"),
        ("boats on the 4th of July 2021", "boats", "2021-07-04", "2021-07-04"),
        ("snow, Dec. 2019", "snow", "2019-12-01", "2019-12-31"),
        ("2024-02-29 a dog", "a dog", "2024-02-29", "2024-02-29"),
        ("a dog 2024-02", "a dog", "2024-02-01", "2024-02-29"),
        ("the lake in the summer of 2022", "the lake", "2022-06-01", "2022-08-31"),
        ("skiing winter 2021", "skiing", "2021-12-01", "2022-02-28"),
        ("children playing in 2021", "children playing", "2021-01-01", "2021-12-31"),
        ("in 2021, a dog", "a dog", "2021-01-01", "2021-12-31"),
        ("beach, 2021", "beach", "2021-01-01", "2021-12-31"),
        ("a dog since 2019", "a dog", "2019-01-01", ""),
        ("a dog after 2019", "a dog", "2020-01-01", ""),
        ("a dog before 2019", "a dog", "", "2018-12-31"),
        ("a dog until 2019", "a dog", "", "2019-12-31"),
        ("parties from 2018 to 2020", "parties", "2018-01-01", "2020-12-31"),
        ("dancing in the 1990s", "dancing", "1990-01-01", "1999-12-31"),
        ("the lake in July", "the lake", "2026-07-01", "2026-07-31"),
        ("the lake in December", "the lake", "2025-12-01", "2025-12-31"),
        ("a dog in May", "a dog", "2026-05-01", "2026-05-31"),
        ("at the lake last summer", "at the lake", "2026-06-01", "2026-08-31"),
        ("last winter at the lake", "at the lake", "2025-12-01", "2026-02-28"),
        ("a cat this year", "a cat", "2026-01-01", "2026-12-31"),
        ("a cat last week", "a cat", "2026-11-09", "2026-11-15"),
        ("a cat last weekend", "a cat", "2026-11-14", "2026-11-15"),
        ("a cat yesterday", "a cat", "2026-11-16", "2026-11-16"),
        ("a cat 3 days ago", "a cat", "2026-11-14", "2026-11-14"),
        ("two years ago, a cat", "a cat", "2024-01-01", "2024-12-31"),
        ("a cat in the last 2 weeks", "a cat", "2026-11-03", "2026-11-17"),
        ("a cat in the past three months", "a cat", "2026-08-17", "2026-11-17"),
        ("July 2023", "July 2023", "2023-07-01", "2023-07-31"),
    ],
)
def test_dates_are_taken_off_the_text(text: str, rest: str, first: str, last: str) -> None:
    assert days(text) == (rest, first, last)


def test_last_summer_is_one_that_is_over() -> None:
    assert days("last summer", date(2026, 7, 1)) == ("last summer", "2025-06-01", "2025-08-31")
    assert days("this summer", date(2026, 7, 1)) == ("this summer", "2026-06-01", "2026-08-31")
    assert days("last winter", date(2026, 1, 5)) == ("last winter", "2024-12-01", "2025-02-28")
    assert days("in the last 1 year", date(2024, 2, 29))[1] == "2023-02-28"  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "a march through the city",
        "soldiers in march",
        "may I",
        "may I come in",
        "a dog in may",
        "an august statue in rome",
        "a man in his twenties",
        "1984 Orwell poster",
        "a poster of 1984",
        "Blade Runner 2049",
        "a city in 2049",
        "scene from 2001 A Space Odyssey",
        "people in 1920 costumes",
        "2000 people in a stadium",
        "Euro 2020",
        "the today show host",
        "today show",
        "last week tonight with john oliver",
        "last year's model",
        "his last fall",
        "the last summer",
        "the last week of school",
        "a spring in the forest",
        "leaves fall",
        "in the 80s",
        "12 monkeys",
        "room 2012-13",
        "version 2021-13-01",
        "2023-02-30",
        "may 3000",
        "January 1960",
        "first a dog and then a cat",
        'a sign that says "July 2023"',
        '"in 2021"',
        "\u4e00\u4e2a\u7537\u4eba 2021",
    ],
)
def test_ordinary_texts_are_not_misread(text: str) -> None:
    assert days(text) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading(text: str) -> None:
    take_dates(text, TODAY)


def test_long_texts_take_no_time() -> None:
    start = time.process_time()
    for text in ("in the last " * 300, "July " * 800, " " * 4000, "from 2019 to " * 300):
        take_dates(text, TODAY)
    assert time.process_time() - start < 1


def test_the_query_carries_dates_and_literal_ones_do_not() -> None:
    query = parse("beach, July 2023")
    assert isinstance(query, Query)
    assert query.dates is not None
    assert (query.text, query.title) == ("beach", "beach, July 2023")
    expected = "'July 2023' was read as a date: only recordings from 2023-07-01 to 2023-07-31"
    assert query.dates.notice == expected
    assert parse(query.title) == query
    assert parse("beach in 2021", negatives=["sand"]).dates is not None
    literal = parse("beach, July 2023", is_literal=True)
    assert isinstance(literal, Query)
    assert (literal.text, literal.dates) == ("beach, July 2023", None)
    assert parse('"a dog" + "in 2021"').dates is None
    assert Query("beach, July 2023").dates is None


def test_dates_of_a_text_and_filters_hold_together() -> None:
    dates = parse("beach in 2021").dates
    options = SearchOptions(Filters(after="2021-06-01"))  # type: ignore[arg-type]
    filters = options.within_dates(dates).filters
    assert filters == Filters(after="2021-06-01", before="2022-01-01")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="option 'literal'"):
        SearchOptions(Filters(after="2022-01-01")).within_dates(dates)  # type: ignore[arg-type]
