"""Grammar of queries: combinations of texts, images, videos and clips, steps in time, and dates.

::

    query    = step { "then" step } [ "within" DURATION ]
    step     = operand { ("+" | "-") operand }
    operand  = [ WEIGHT ":" ] ( "quoted text" | FILE | "clip:" ID )

``+``, ``-`` and ``then`` are operators only between spaces and beside a marked operand: a text in
quotation marks, an image or video file, or a clip id. So a plain sentence keeps its meaning:
``first a dog - then a cat`` is a text. An operand without marks is allowed beside a marked one.
``from_json`` reads the same queries as JSON.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home
from eaglenet.search.dates import take_dates
from eaglenet.search.query import MAX_CHARACTERS, QUOTED, Query, normalise_quotes
from eaglenet.video.containers import IMAGE_SUFFIXES, INDEXED_SUFFIXES

AUDIO_SUFFIXES = frozenset({".mp3", ".wav", ".flac", ".m4a", ".aac", ".ogg", ".opus", ".wma"})
MAX_PARTS = 16
MAX_STEPS = 8
MAX_WEIGHT = 100.0
MAX_WITHIN = 7 * 86400.0
DEFAULT_WEIGHT = 1.0
SUBTRACTED_WEIGHT = 0.5
"""Default weight of an operand after ``-``, equal to that of ``--not``."""
_WEIGHT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*:(?!\d)\s*(\S.*)", re.DOTALL)
"""Matches ``2: a dog`` and ``2:a dog``, but not the time of day 10:30."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?)?", re.I)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TOKEN = re.compile(rf'{QUOTED.pattern}|([^\s"]+)')


@dataclass(frozen=True)
class Part:
    """One operand of a step; a negative weight ranks clips that match it lower."""

    query: Query
    weight: float = DEFAULT_WEIGHT

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float) or not 0 < abs(self.weight) <= MAX_WEIGHT:
            raise UsageError(
                f"{self.query.title!r:.60} has the weight {self.weight!r:.40}; use a number other "
                f"than 0, up to {MAX_WEIGHT:g}"
            )


class _FrameQuery:
    """Query that searches frames only, without transcripts and dates."""

    transcript: ClassVar[None] = None
    dates: ClassVar[None] = None


@dataclass(frozen=True)
class ComposedQuery(_FrameQuery):
    """Weighted sum of texts, images, videos and clips, all about one moment.

    See :class:`eaglenet.search.reranking.EncodedComposition` for the score.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise UsageError(f"{len(self.parts)} parts; a query combines 1 to {MAX_PARTS}")
        if not any(part.weight > 0 for part in self.parts):
            raise UsageError("every part is subtracted; add at least one part to search for")

    @property
    def title(self) -> str:
        """The query as a user can type it."""
        titles = []
        for number, part in enumerate(self.parts):
            sign = "- " if part.weight < 0 else "+ " if number else ""
            titles.append(f"{sign}{_format_operand(part)}")
        return " ".join(titles)


@dataclass(frozen=True)
class TemporalQuery(_FrameQuery):
    """Steps that follow each other in one file.

    within: longest time from one step to the next, in seconds; None: any.
    """

    steps: tuple[ComposedQuery, ...]
    within: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= len(self.steps) <= MAX_STEPS:
            raise UsageError(f"a sequence has 2 to {MAX_STEPS} steps, not {len(self.steps)}")
        if self.within is not None and not 0 < self.within <= MAX_WITHIN:
            raise UsageError(f"within {self.within!r} s; use more than 0 s, and at most 7 days")

    @property
    def title(self) -> str:
        """The query as a user can type it."""
        steps = " then ".join(step.title for step in self.steps)
        if self.within is None:
            return steps
        is_minutes = self.within % 60 == 0
        return f"{steps} within " + (
            f"{self.within / 60:g}min" if is_minutes else f"{self.within:g}s"
        )


AnyQuery = Query | ComposedQuery | TemporalQuery


def file_name_in(query: AnyQuery) -> str:
    """Return the plain text of a query if it looks like the name of a file, else ``""``.

    >>> file_name_in(Query('"my photo.jpg"'))
    'my photo.jpg'
    """
    name = query.text.strip('"') if isinstance(query, Query) and query.text else ""
    return name if _is_file_name(name) else ""


def clip_id_in(query: AnyQuery) -> str:
    """Return the clip id of a plain text that is only ``clip:ID``, else ``""``.

    >>> clip_id_in(Query("clip:3f9c-0")), clip_id_in(Query("clip: a fox"))
    ('3f9c-0', '')
    """
    text = query.text if isinstance(query, Query) and query.text else ""
    is_clip = _is_clip(text) and len(text.split()) == 1
    return text[len("clip:") :] if is_clip else ""


def parse(
    text: str,
    *,
    folder: Path | None = None,
    negatives: Sequence[str] = (),
    is_literal: bool = False,
) -> AnyQuery:
    """Parse a query. A text without an operator beside a marked operand is a plain :class:`Query`.

    ``folder``: base of relative file names. None refuses files: the clients of a service must not
    read its disk. With ``negatives``, every text is plain. ``is_literal``: ignore operators, files
    and dates in the text.

    >>> query = parse('"2: a retriever" - "fruit"')
    >>> [(part.weight, part.query.text) for part in query.parts]
    [(2.0, 'a retriever'), (-0.5, 'fruit')]
    >>> parse('"a man opens a door" then "a dog runs out" within 30s').within
    30.0
    >>> parse("first a red ball - then a blue one").text
    'first a red ball - then a blue one'
    """
    if is_literal or not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return Query(text, tuple(negatives))  # Raises an error for an invalid text.
    tokens = _tokenize(normalise_quotes(text), folder)
    if not negatives:
        _require_operands(tokens)
    if negatives or not _is_composed(tokens):
        remaining_text, dates = take_dates(normalise_quotes(text))
        return Query(remaining_text if dates else text, tuple(negatives), dates=dates)
    steps, within = _split_steps(tokens)
    queries = tuple(_parse_step(step, folder) for step in steps)
    return TemporalQuery(queries, within) if len(queries) > 1 else queries[0]


@dataclass(frozen=True)
class _Token:
    text: str
    is_quoted: bool = False
    is_reference: bool = False
    """True for a file or ``clip:ID``."""

    @property
    def is_marked(self) -> bool:
        return self.is_quoted or self.is_reference

    def is_word(self, *words: str) -> bool:
        return not self.is_marked and self.text.lower() in words


def _tokenize(text: str, folder: Path | None) -> list[_Token]:
    if text.count('"') % 2:
        return [_Token(text)]  # As in `Query`, an unclosed quotation mark is plain text.
    tokens = []
    for match in _TOKEN.finditer(text):
        phrase, _, word = match.groups()  # The distance matters for transcripts only.
        if phrase is not None:
            is_file = _is_existing_file(phrase, folder)
            tokens.append(_Token(phrase, is_quoted=True, is_reference=is_file))
            continue
        weight = _WEIGHT.fullmatch(word)
        name = weight.group(2) if weight else word
        tokens.append(_Token(word, is_reference=_is_clip(name) or _is_file_name(name)))
    return tokens


def _is_clip(name: str) -> bool:
    return name.lower().startswith("clip:") and len(name) > len("clip:")


def _is_file_name(name: str) -> bool:
    return Path(name).suffix.lower() in INDEXED_SUFFIXES | AUDIO_SUFFIXES


def _is_existing_file(name: str, folder: Path | None) -> bool:
    return folder is not None and _is_file_name(name) and os.path.isfile(folder / expand_home(name))


def _is_composed(tokens: Sequence[_Token]) -> bool:
    """Return whether an operator stands beside a marked operand."""
    for number, token in enumerate(tokens[1:-1], 1):
        before = tokens[number - 1]
        if token.is_word("+", "-") and (before.is_marked or _begins_marked(tokens[number + 1 :])):
            return True
        if token.is_word("then") and before.is_marked and _begins_marked(tokens[number + 1 :]):
            return True
    return False


def _require_operands(tokens: Sequence[_Token]) -> None:
    """Refuse a trailing operator, and an unmarked step after ``then``."""
    if len(tokens) > 1 and tokens[-1].is_word("+", "-", "then") and tokens[-2].is_marked:
        word = tokens[-1].text.lower()
        raise UsageError(
            f"nothing follows {word!r}; write another part after it: "
            f'"{tokens[-2].text:.40}" {word} "another part"'
        )
    is_step = len(tokens) > 2 and tokens[0].is_marked and tokens[1].is_word("then")
    if is_step and not _begins_marked(tokens[2:]):
        rest = " ".join(token.text for token in tokens[2:])
        raise UsageError(
            "put what follows 'then' in quotation marks: "
            f'"{tokens[0].text:.40}" then "{rest:.40}"; or ignore operators with the '
            "option 'literal'"
        )


def _begins_marked(tokens: Sequence[_Token]) -> bool:
    """Return whether the next operand is marked, perhaps after its weight: ``2: "a dog"``."""
    if not tokens:
        return False
    has_weight = re.fullmatch(r"\d+(\.\d+)?:", tokens[0].text) and not tokens[0].is_quoted
    return tokens[0].is_marked or bool(has_weight and len(tokens) > 1 and tokens[1].is_marked)


def _split_steps(tokens: Sequence[_Token]) -> tuple[list[list[_Token]], float | None]:
    tokens, within = _take_within(list(tokens))
    steps: list[list[_Token]] = [[]]
    for number, token in enumerate(tokens):
        is_then = (
            token.is_word("then")
            and number > 0
            and tokens[number - 1].is_marked
            and _begins_marked(tokens[number + 1 :])
        )
        if is_then:
            steps.append([])
        else:
            steps[-1].append(token)
    if within is not None and len(steps) == 1:
        raise UsageError('"within" needs two steps: "a" then "b" within 30s')
    return steps, within


def _take_within(tokens: list[_Token]) -> tuple[list[_Token], float | None]:
    """Remove ``within 30s`` or ``within 2 minutes`` from the end."""
    for length in (2, 3):
        if len(tokens) > length and tokens[-length].is_word("within"):
            if not tokens[-length - 1].is_marked:
                break
            if any(token.is_marked for token in tokens[1 - length :]):
                break
            text = " ".join(token.text for token in tokens[1 - length :])
            return tokens[:-length], parse_duration(text)
    return tokens, None


def parse_duration(text: str) -> float:
    """Return the seconds of ``30``, ``30s``, ``2 min`` or ``1.5h``.

    >>> parse_duration("2min")
    120.0
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r:.40} is not a duration; write it like 30s, 2min or 1.5h")
    number, unit = match.groups()
    return float(number) * _UNITS[(unit or "s")[0].lower()]


def _parse_step(tokens: Sequence[_Token], folder: Path | None) -> ComposedQuery:
    parts: list[Part] = []
    operand: list[_Token] = []
    sign = 1
    for token in (*tokens, None):
        if token is not None and not token.is_word("+", "-"):
            operand.append(token)
            continue
        if not operand and token is None:
            raise UsageError("the query ends with an operator; write what to add or subtract")
        if not operand and parts:
            raise UsageError("two operators follow each other; write a text between them")
        if operand:
            parts.append(_parse_operand(operand, sign, folder))
        if token is not None:
            sign, operand = (-1 if token.text == "-" else 1), []
    if not parts:
        raise UsageError("a step is empty; write a text in quotation marks")
    return ComposedQuery(tuple(parts))


def _parse_operand(tokens: Sequence[_Token], sign: int, folder: Path | None) -> Part:
    weight: float | None = None
    tokens = list(tokens)
    if not tokens[0].is_quoted and re.fullmatch(r"\d+(\.\d+)?:", tokens[0].text):
        weight = float(tokens.pop(0).text[:-1])
        if not tokens:
            raise UsageError(f"nothing follows the weight {weight:g}:; write a text after it")
    if len(tokens) == 1:
        text = tokens[0].text
        match = _WEIGHT.fullmatch(text)
        if match is not None and weight is None:
            weight, text = float(match.group(1)), match.group(2)
        is_reference = tokens[0].is_reference or _is_file_name(text)
        query = _parse_reference(text, folder) if is_reference else Query(text)
    elif _is_existing_file(name := " ".join(token.text for token in tokens), folder):
        query = _parse_reference(name, folder)
    else:
        if any(token.is_word("then", "within") for token in tokens):
            raise UsageError('put every step in quotation marks: "a" then "b" within 30s')
        if _is_file_name(name):
            _parse_reference(name, folder)  # Raises: there is no such file.
        # Plain words around a phrase: its quotation marks stay, so it must match exactly.
        query = Query(
            " ".join(f'"{each.text}"' if each.is_quoted else each.text for each in tokens)
        )
    if weight is None:
        weight = DEFAULT_WEIGHT if sign > 0 else SUBTRACTED_WEIGHT
    return Part(query, sign * weight)


def _parse_reference(name: str, folder: Path | None) -> Query:
    if name.lower().startswith("clip:"):
        return Query(clip_id=name[len("clip:") :])
    if folder is None:
        raise UsageError(
            f"{name!r:.80}: files cannot be named here; upload the image or video (in Python: "
            f"Query(image=...)), or search for a text without {Path(name).suffix!r:.20}"
        )
    path = folder / expand_home(name)
    # Unlike `Path.is_file`, this does not raise for a name that is too long.
    if not os.path.isfile(path):
        raise UsageError(
            f"{name!r:.80}: no such file; to search for a text, leave out {path.suffix!r:.20}"
        )
    if path.suffix.lower() in AUDIO_SUFFIXES:
        raise UsageError(f"{name!r:.80} is an audio file; use a text, an image or a video")
    is_image = path.suffix.lower() in IMAGE_SUFFIXES
    return Query(image=path) if is_image else Query(video=path)


def _format_operand(part: Part) -> str:
    text = part.query.text
    default = SUBTRACTED_WEIGHT if part.weight < 0 else DEFAULT_WEIGHT
    # A text that begins like a weight needs its own weight before it.
    is_default = abs(part.weight) == default and not (text and _WEIGHT.fullmatch(text))
    weight = "" if is_default else f"{abs(part.weight):g}: "
    if text is not None:
        return f"{weight}{text}" if '"' in text else f'"{weight}{text}"'
    if part.query.clip_id is not None:
        return f"{weight}clip:{part.query.clip_id}"
    title = part.query.title
    return f'{weight}"{title}"' if " " in title else f"{weight}{title}"


def from_json(value: Any) -> AnyQuery:
    """Read a query from JSON: ``{"text"}``, ``{"clip_id"}``, ``{"parts"}`` or ``{"steps"}``."""
    record = _check_object(value, {"text", "clip_id", "parts", "steps", "within"})
    names = [name for name in ("text", "clip_id", "parts", "steps") if name in record]
    if len(names) != 1:
        raise UsageError("a query has exactly one of text, clip_id, parts and steps")
    if "within" in record and names != ["steps"]:
        raise UsageError("within is allowed together with steps only")
    if names == ["steps"]:
        within = record.get("within")
        if within is not None and not _is_number(within):
            raise UsageError(f"within must be a number of seconds, not {within!r:.40}")
        steps = tuple(_read_step(step) for step in _check_list(record["steps"], "steps"))
        return TemporalQuery(steps, None if within is None else float(within))
    if names == ["parts"]:
        return ComposedQuery(
            tuple(_read_part(part) for part in _check_list(record["parts"], "parts"))
        )
    return _read_source(record)


def _read_step(value: Any) -> ComposedQuery:
    # Not recursive: an object may be nested as deeply as a client likes.
    if isinstance(value, Mapping) and "steps" in value:
        raise UsageError("steps cannot contain steps")
    step = from_json(value)
    return step if isinstance(step, ComposedQuery) else ComposedQuery((Part(cast(Query, step)),))


def _read_part(value: Any) -> Part:
    record = _check_object(value, {"text", "clip_id", "weight"})
    weight = record.pop("weight", DEFAULT_WEIGHT)
    if not _is_number(weight) or not math.isfinite(weight):
        raise UsageError(f"a weight must be a number, not {weight!r:.40}")
    return Part(_read_source(record), float(weight))


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold; JSON integers have any size."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (isinstance(value, float) or abs(value) < 2**53)


def _read_source(record: Mapping[str, Any]) -> Query:
    if len(record) != 1:
        raise UsageError("a part has exactly one of text and clip_id")
    [(name, value)] = record.items()
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a text, not {value!r:.40}")
    if len(value) > MAX_CHARACTERS:
        raise UsageError(f"{name} has {len(value)} characters; use at most {MAX_CHARACTERS}")
    return Query(text=value) if name == "text" else Query(clip_id=value)


def _check_object(value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"expected an object, not {value!r:.40}")
    unknown = sorted(set(map(str, value)) - names)
    if unknown:
        raise UsageError(f"unknown {', '.join(unknown)!r:.60}; known: {', '.join(sorted(names))}")
    return dict(value)


def _check_list(value: Any, name: str) -> list[Any]:
    limit = MAX_STEPS if name == "steps" else MAX_PARTS
    if not isinstance(value, list) or not 1 <= len(value) <= limit:
        raise UsageError(f"{name} must be a list of 1 to {limit} objects")
    return value
