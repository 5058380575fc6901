"""Queries: what to search for."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.settings import NamedFields, option
from eaglenet.search.dates import DateRange
from eaglenet.store.records import Phrase
from eaglenet.transcripts.lines import analyse, singular
from eaglenet.video.containers import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from PIL.Image import Image

    from eaglenet.video.inputs import FrameBatch

MAX_CHARACTERS = 4000
"""Maximum characters of a text; the rest is ignored."""
MAX_TERMS = 64
"""Maximum terms of a text to search for in transcripts."""
MAX_PHRASES = 16
"""Maximum different phrases of a text; every line is searched once per phrase."""
MAX_GAP = 99
"""Maximum number after ``~``; a transcript line rarely has more words."""
PREFIX = "*"
"""After a word: matches every word in transcripts that begins with it."""
QUOTED = re.compile(r'"([^"]*)"(?:~([0-9]{1,9})(?!\w))?')
"""A text in quotation marks, and the number after ``~``."""
_QUOTES = re.compile("[\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f\uff02]")


@dataclass(frozen=True, repr=False)
class Query(NamedFields):
    """A text, an image, a video or an indexed clip: exactly one of them.

    text: the text to find. Words in quotation marks must occur as a phrase in speech or on-screen
        text, or near each other: ``"keys table"~5``.
    negatives: texts that rank a clip lower; with ``text`` only.
    image: an image file, its bytes, a Pillow image, or a uint8 array ``[height, width, 3]``.
    video: a video file; ``window`` is the span to use, in seconds.
    clip_id: id of an indexed clip, or its beginning. Clips of its file are not returned, unless
        only this file is searched; the clip itself never is.
    clips: a decoded video or image.
    dates: recording times that the text named; see :mod:`eaglenet.search.dates`.
    """

    text: str | None = None
    negatives: Sequence[str] = option(
        (),
        "Rank clips that match this text lower; repeatable.",
        name="--not",
        type=tuple[str, ...],
    )
    image: str | Path | bytes | NDArray[Any] | Image | None = option(
        None, "Search with an image file.", metavar="FILE", type=Path
    )
    video: str | Path | None = option(None, "Search with a video file.", metavar="FILE", type=Path)
    clip_id: str | None = option(
        None,
        "Find moments in other files like this clip (the id of a result).",
        name="--similar",
        metavar="CLIP",
    )
    window: tuple[float, float] | None = None
    clips: FrameBatch | None = None
    dates: DateRange | None = None

    def __post_init__(self) -> None:
        names = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(names) != 1:
            problem = "nothing" if not names else " and ".join(names)
            raise UsageError(
                f"a query has exactly one of text, image, video and clip_id, not {problem}"
            )
        if self.text is not None:
            object.__setattr__(self, "text", clean_text(self.text))
        if self.image is not None:
            object.__setattr__(self, "image", _read_image(self.image))
        object.__setattr__(self, "negatives", tuple(clean_texts(self.negatives, "negatives")))
        if self.negatives and self.text is None:
            raise UsageError(f"negatives work with a text only, not with {names[0]}")

    @property
    def image_source(self) -> str | Path | Image | None:
        """The image as a path or a Pillow image."""
        return cast("str | Path | Image | None", self.image)

    @property
    def title(self) -> str:
        """Text, path or clip id, for display."""
        if self.text is not None:
            is_apart = self.dates is not None and self.dates.phrase != self.text
            return f"{self.text}, {self.dates.phrase}" if self.dates and is_apart else self.text
        if self.clip_id is not None:
            return self.clip_id
        source = self.video if self.video is not None else self.image
        return str(source) if isinstance(source, str | Path) else "image"

    @cached_property
    def transcript(self) -> TranscriptQuery | None:
        """Terms and phrases to search for in transcripts; None without a text."""
        return None if self.text is None else TranscriptQuery.parse(self.text)


def _read_image(image: Any) -> Any:
    """Convert the ``image`` of a :class:`Query` to a path or a Pillow image."""
    if isinstance(image, str | Path):
        if Path(image).suffix.lower() in VIDEO_SUFFIXES:
            raise UsageError(f"{image} is a video; pass it as video={str(image)!r}")
        return image
    if isinstance(image, bytes | bytearray | memoryview):
        from PIL import Image, UnidentifiedImageError

        from eaglenet.video.images import image_formats

        try:
            pillow_image = Image.open(io.BytesIO(image), formats=image_formats())
            pillow_image.load()
        # Pillow raises exceptions of any type for damaged images.
        except Exception as error:
            cause = "unknown format" if isinstance(error, UnidentifiedImageError) else error
            raise UsageError(f"these {len(image)} bytes are not an image: {cause}") from error
        return pillow_image
    if isinstance(image, np.ndarray):
        from PIL import Image

        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise UsageError(
                "an array must be [height, width, 3] of uint8, not "
                f"{list(image.shape)} of {image.dtype}"
            )
        return Image.fromarray(image)
    if type(image).__module__.partition(".")[0] == "PIL":
        return image
    raise UsageError(
        f"an image must be a path, bytes, an array or a Pillow image, not {type(image).__name__}"
    )


_STARS = re.compile(r"(?<=\w)\*")
_SOURCES = ("text", "image", "video", "clip_id", "clips")


@dataclass(frozen=True)
class TranscriptQuery:
    """Terms and phrases of a text, for search in transcripts.

    plain: the text without quotation marks. terms: the terms outside quotation marks, each with
    its equivalent spellings; a spelling that ends in ``*`` matches by prefix. phrases: terms that
    must follow each other, or be near each other (``"keys table"~5``).
    """

    plain: str
    terms: tuple[tuple[str, ...], ...]
    phrases: tuple[Phrase, ...]

    @classmethod
    def parse(cls, text: str) -> TranscriptQuery:
        """Split a text at quotation marks of any kind; ignore an unclosed one.

        >>> TranscriptQuery.parse('signs that say "no entry"').phrases
        (Phrase(terms=('no', 'entry'), gap=None),)
        """
        text = normalise_quotes(text)
        outside = dict.fromkeys(_terms(QUOTED.sub(' " ', text)))
        terms = [tuple(dict.fromkeys((term, singular(term)))) for term in outside]
        plain = QUOTED.sub(r" \1 ", text).replace('"', " ")
        return cls(
            plain=" ".join(_STARS.sub(" ", plain).split()),
            terms=tuple(terms[:MAX_TERMS]),
            phrases=tuple(dict.fromkeys(_phrases(text)))[:MAX_PHRASES],
        )

    @property
    def has_only_phrases(self) -> bool:
        """True if the whole text is in quotation marks, so that only transcripts can match."""
        return bool(self.phrases) and not self.terms


def _phrases(text: str) -> Iterator[Phrase]:
    for match in QUOTED.finditer(text):
        terms = tuple(term.text for term in analyse(match[1]).terms)[:MAX_TERMS]
        if terms:
            yield Phrase(terms, min(int(match[2]), MAX_GAP) if match[2] else None)


def normalise_quotes(text: str) -> str:
    """Replace quotation marks of any kind by straight ones."""
    return _QUOTES.sub('"', text)


def _terms(text: str) -> list[str]:
    """Return the terms of a text; a star after a term of two letters or more stays."""
    return [
        term.text + PREFIX * (len(term.text) > 1 and text[term.end : term.end + 1] == PREFIX)
        for term in analyse(text).terms
    ]


def clean_text(text: str) -> str:
    """Return a text as one line; control characters and lone surrogates become spaces.

    >>> clean_text(" a red\\x00 car\\n")
    'a red car'
    """
    if not isinstance(text, str):
        raise UsageError(
            f"a query must be one text or a Query, not {_describe(text)}{_advice(text)}"
        )
    characters = (
        character if character.isprintable() or character in "\u200d\ufe0f" else " "
        for character in text[:MAX_CHARACTERS]
    )
    line = " ".join("".join(characters).split())
    if not line:
        raise UsageError("the query is empty; describe what to find, e.g. 'a man drives a car'")
    return line


def clean_texts(texts: Iterable[str], name: str) -> list[str]:
    """Apply :func:`clean_text` to each text; refuse a single text, which is also iterable.

    ``name``: name of the argument, for errors.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(f"{name}: expected a list of texts, not {_describe(texts)}")
    text_list = list(texts)
    for text in text_list:
        if not isinstance(text, str):
            raise UsageError(f"{name}: expected a list of texts; one of them is {_describe(text)}")
        if not text.strip():
            raise UsageError(f"{name}: one of the texts is empty")
    return [clean_text(text) for text in text_list]


def _advice(value: object) -> str:
    """Return what to do with a value that is not a text."""
    if isinstance(value, Mapping):
        return "; convert it with eaglenet.search.grammar.from_json"
    return "; pass a list to search_many" if isinstance(value, list | tuple) else ""


def _describe(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
