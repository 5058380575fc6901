"""Dates in the text of a query: ``beach, July 2023`` finds beaches recorded in that month.

English only. These forms are understood, because they rarely mean anything else::

    July 2023   14 July 2023   July 14, 2023   2023-07-14   2023-07   summer of 2022
    in 2021   since 2019   before 2020   from 2018 to 2020   in the 1990s   beach, 2021
    in July   last summer   this year   last week   yesterday   3 days ago   in the last 2 weeks

Dates with a year may stand anywhere; the forms of the last two rows only at the beginning or the
end of a text. Days begin at midnight in the local time zone. Seasons are those of the northern
hemisphere: summer is June to August, winter is December to February of the next year.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache
from itertools import chain

FIRST_YEAR = 1971
"""Earlier recording times come from clocks that were never set."""
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
)
SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""First month of each season."""
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
AMBIGUOUS_MONTHS = ("march", "may", "august")
"""Words with another meaning: without a year they need a capital letter, as in ``in May``."""

_HINT = r"\d|ago|last|this|past|today|yesterday|" + "|".join(MONTHS)
"""Cheap first test: texts without a match contain no date."""

Days = tuple[date, date]
"""First day, and the day after the last."""
Bounds = tuple[date | None, date | None]
"""The same; None: no limit."""
DateReader = Callable[[re.Match[str], date], Bounds | None]


@dataclass(frozen=True)
class DateRange:
    """Recording times that a text asks for.

    phrase: the date as written. after, before: seconds since 1970; ``after`` is inclusive, and
    None means no limit.
    """

    phrase: str
    after: float | None
    before: float | None

    @property
    def notice(self) -> str:
        """Sentence that tells a user how the date was understood."""
        first = "" if self.after is None else f"from {_day(self.after)}"
        last = "" if self.before is None else f"to {_day(self.before - 1)}"
        return f"{self.phrase!r} was read as a date: only recordings {first} {last}".replace(
            "  ", " "
        ).strip()


def take_dates(text: str, today: date | None = None) -> tuple[str, DateRange | None]:
    """Split a text into the text without its date, and the date; quoted text is left alone.

    >>> text, dates = take_dates("a beach, July 2023")
    >>> text, dates.phrase
    ('a beach', 'July 2023')
    """
    if not re.search(_HINT, text.lower()):
        return text, None
    today = today or date.today()
    # Quoted text is replaced by as many other characters, so that positions stay the same.
    visible = re.sub(r'"[^"]*"', lambda match: "\x00" * len(match[0]), text)
    for pattern, read in _patterns():
        for match in pattern.finditer(visible):
            try:
                days = read(match, today) if _is_past(match, today) else None
            except ValueError:  # For example 31 June.
                continue
            if days is None:
                continue
            first, end = days
            remaining_text = _remove(text, match.start(), match.end())
            phrase = match["phrase"].strip(" ,")
            return remaining_text or phrase, DateRange(phrase, _seconds(first), _seconds(end))
    return text, None


def _remove(text: str, start: int, end: int) -> str:
    before, after = text[:start].rstrip(" ,;:"), text[end:].lstrip(" ,;:")
    return f"{before} {after}".strip()


def _seconds(day: date | None) -> float | None:
    return None if day is None else datetime(day.year, day.month, day.day).timestamp()


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")


def _month(year: int, month: int) -> Days:
    """Return the days of a month; months 0 and 13 belong to the years before and after."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return date(year, month, 1), date(year + month // 12, month % 12 + 1, 1)


def _season(year: int, name: str) -> Days:
    first = SEASONS[name]
    return _month(year, first)[0], _month(year, first + 2)[1]


def _year(year: int) -> Days:
    return date(year, 1, 1), date(year + 1, 1, 1)


def _month_number(name: str) -> int:
    """Return the number of a month from its name or digits; raises ``ValueError``."""
    if not name.isdecimal():
        return [month[:3] for month in MONTHS].index(name[:3].lower()) + 1
    return date(FIRST_YEAR, int(name), 1).month


def _is_past(match: re.Match[str], today: date) -> bool:
    """Return whether recordings can exist from the years in a match."""
    groups = match.groupdict()
    years = [int(groups[name]) for name in ("year", "first", "last") if groups.get(name)]
    if groups.get("decade"):  # One valid year of the decade is enough.
        years.append(max(int(groups["decade"]), min(int(groups["decade"]) + 9, FIRST_YEAR)))
    return all(FIRST_YEAR <= year <= today.year for year in years)


def _read_month(match: re.Match[str], today: date) -> Days:
    return _month(int(match["year"]), _month_number(match["month"]))


def _read_day(match: re.Match[str], today: date) -> Days:
    day = date(int(match["year"]), _month_number(match["month"]), int(match["day"]))
    return day, day + timedelta(days=1)


def _read_season(match: re.Match[str], today: date) -> Days:
    return _season(int(match["year"]), match["season"].lower())


def _read_years(match: re.Match[str], today: date) -> Days | None:
    first, last = int(match["first"]), int(match["last"])
    return (_year(first)[0], _year(last)[1]) if first <= last else None


def _read_decade(match: re.Match[str], today: date) -> Days:
    year = int(match["decade"])
    return _year(year)[0], _year(year + 9)[1]


def _read_year(match: re.Match[str], today: date) -> Days:
    return _year(int(match["year"]))


def _read_bound(match: re.Match[str], today: date) -> Bounds:
    days, word = _year(int(match["year"])), match["word"].lower()
    if word in ("before", "until"):
        return None, days[word == "until"]
    return days[word == "after"], None


def _read_recent_month(match: re.Match[str], today: date) -> Days | None:
    """Read ``in July``, the latest that has begun, or ``last July``, the latest that is over."""
    name = match["month"]
    if name.lower() in AMBIGUOUS_MONTHS and not name[0].isupper():
        return None
    return _latest(lambda year: _month(year, _month_number(name)), match["word"], today)


def _read_recent_season(match: re.Match[str], today: date) -> Days | None:
    return _latest(lambda year: _season(year, match["season"].lower()), match["word"], today)


def _latest(days_in: Callable[[int], Days], word: str, today: date) -> Days:
    is_over = word.lower() == "last"
    for year in range(today.year, today.year - 2, -1):
        first, end = days_in(year)
        if end <= today if is_over else first <= today:
            return first, end
    return days_in(today.year - 2)


def _read_relative(match: re.Match[str], today: date) -> Days | None:
    text = " ".join(match["phrase"].lower().split())
    tomorrow = today + timedelta(days=1)
    if text == "today":
        return today, tomorrow
    if text == "yesterday":
        return today - timedelta(days=1), today
    shift = -1 if text.startswith("last") else 0
    return _unit(text.split()[-1], shift, today)


def _read_ago(match: re.Match[str], today: date) -> Days | None:
    return _unit(match["unit"].lower(), -_count(match["count"]), today)


def _read_last(match: re.Match[str], today: date) -> Days | None:
    unit, count = match["unit"].lower(), _count(match["count"])
    first = {
        "day": lambda: today - timedelta(days=count),
        "week": lambda: today - timedelta(weeks=count),
        "month": lambda: _month(today.year, today.month - count)[0].replace(day=min(today.day, 28)),
        "year": lambda: today.replace(year=today.year - count, day=min(today.day, 28)),
    }[unit]()
    return first, today + timedelta(days=1)


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else NUMBERS.index(text.lower()) + 1


def _unit(unit: str, shift: int, today: date) -> Days | None:
    """Return the day, week, weekend, month or year ``shift`` units after the current one."""
    monday = today - timedelta(days=today.weekday()) + timedelta(weeks=shift)
    if unit == "day":
        day = today + timedelta(days=shift)
        return day, day + timedelta(days=1)
    if unit == "week":
        return monday, monday + timedelta(weeks=1)
    if unit == "weekend":
        return monday + timedelta(days=5), monday + timedelta(weeks=1)
    if unit == "month":
        return _month(today.year, today.month + shift)
    return _year(today.year + shift) if today.year + shift >= FIRST_YEAR else None


@cache
def _patterns() -> list[tuple[re.Pattern[str], DateReader]]:
    names = "|".join(chain(MONTHS, (f"{month[:3]}\\.?" for month in MONTHS), ("sept\\.?",)))
    month = f"(?P<month>{names})"
    season = f"(?P<season>{'|'.join(SEASONS)})"
    year, day = r"(?P<year>(?:19|20)\d\d)(?![-\d])", r"(?P<day>\d\d?)(?:st|nd|rd|th)?"
    count = f"(?P<count>\\d{{1,2}}|{'|'.join(NUMBERS)})"
    lead = r"(?:\b(?:in|from|during|of|on|at)\s+(?:the\s+)?)?"
    end = r"(?=\s*[,.!?]*\s*$|\s*,)"
    # What may follow a date at the beginning: "today show host" contains no date.
    following = r"(?=\s+(?:an?|the|at|in|on|with|by|my|our|his|her|we|i)\b)"
    # "his last fall" and "the last week of school" contain no date.
    free = r"(?<!\bthe )(?<!\bhis )(?<!\bher )(?<!\btheir )(?<!\bmy )(?<!\bour )(?<!'s )(?<!\ba )"
    anywhere: list[tuple[str, DateReader]] = [
        (rf"{lead}(?P<phrase>\b{day}(?:\s+of)?\s+{month},?\s+{year})", _read_day),
        (rf"{lead}(?P<phrase>\b{month}\s+{day},?\s+{year})", _read_day),
        (
            r"(?:\bon\s+)?(?P<phrase>\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)\b)(?!-)",
            _read_day,
        ),
        (r"(?:\bin\s+)?(?P<phrase>\b(?P<year>\d{4})-(?P<month>\d\d)\b)(?!-)", _read_month),
        (rf"{lead}(?P<phrase>\b{month},?(?:\s+of)?\s+{year})", _read_month),
        (rf"{lead}(?P<phrase>\b{season}(?:\s+of)?\s+{year})", _read_season),
        (
            r"\b(?P<phrase>(?:from|between)\s+(?P<first>(?:19|20)\d\d)\s+(?:to|until|and|-)\s+"
            r"(?P<last>(?:19|20)\d\d)\b)",
            _read_years,
        ),
        (r"\b(?P<phrase>(?:in|from|during)\s+the\s+(?P<decade>(?:19|20)\d0)s\b)", _read_decade),
    ]
    at_ends: list[tuple[str, DateReader]] = [
        (rf"\b(?P<phrase>(?P<word>since|after|before|until)\s+{year})", _read_bound),
        (rf"\b(?P<phrase>(?:in|from|during)\s+{year})", _read_year),
        (
            rf"{free}\b(?P<phrase>(?P<word>in|last|this)\s+(?P<month>{'|'.join(MONTHS)})\b)",
            _read_recent_month,
        ),
        (
            rf"{free}\b(?P<phrase>(?P<word>last|this)\s+(?P<season>spring|summer|autumn|winter)\b)",
            _read_recent_season,
        ),
        (
            rf"{free}\b(?P<phrase>today|yesterday|(?:last|this)\s+(?:week|weekend|month|year))\b",
            _read_relative,
        ),
        (rf"\b(?P<phrase>{count}\s+(?P<unit>day|week|month|year)s?\s+ago)\b", _read_ago),
        (
            rf"\b(?:in|from|during|within)\s+(?P<phrase>the\s+(?:last|past)\s+{count}\s+"
            r"(?P<unit>day|week|month|year)s?)\b",
            _read_last,
        ),
    ]
    after_comma = rf",\s*(?P<phrase>{year})"
    expressions: list[tuple[str, DateReader]] = [
        *anywhere,
        *((expression + end, read) for expression, read in at_ends),
        *((rf"^\s*{expression}{following}", read) for expression, read in at_ends),
        (after_comma + r"(?=\s*[.!?]*\s*$)", _read_year),
    ]
    return [(re.compile(expression, re.IGNORECASE), read) for expression, read in expressions]
