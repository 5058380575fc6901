"""Queries: one value from the command line or HTTP to the hits."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.settings import option
from eaglenet.search.dates import DateRange
from eaglenet.transcripts.lines import analyse, singular

if TYPE_CHECKING:
    from PIL.Image import Image

    from eaglenet.video.inputs import FrameBatch

MAX_CHARACTERS = 4000
"""Characters of a text that are read; tokenizers keep some tens of words."""
MAX_TERMS = 64
"""Terms of a text that are looked for in transcripts."""
PREFIX = "*"
"""At the end of a word: every word that begins with it, in transcripts."""
_QUOTES = re.compile("[\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f\uff02]")


@dataclass(frozen=True)
class Query:
    """A text, an image, a video or an indexed clip: exactly one of them.

    text: the text to find. Words in quotation marks must occur as a phrase in speech or on-screen
        text.
    negatives: texts that rank a clip lower; with ``text`` only.
    image: an image file, the bytes of one, an image of Pillow, or a uint8 array
        ``[height, width, 3]``.
    video: a video file; ``window`` is the span of it to use, in seconds.
    clip_id: an indexed clip, by its id or the beginning of it. The clip itself is not a hit.
    clips: one decoded video or image.
    dates: recording times that were taken off the text; see :mod:`eaglenet.search.dates`.
    """

    text: str | None = None
    negatives: tuple[str, ...] = option(
        (), "Rank clips that match this text lower; repeatable.", name="--not"
    )
    image: str | Path | bytes | NDArray[Any] | Image | None = option(
        None, "Search with an image file.", metavar="FILE", type=Path
    )
    video: str | Path | None = option(None, "Search with a video file.", metavar="FILE", type=Path)
    clip_id: str | None = option(
        None, "Search with a clip, by the id of a result.", name="--similar", metavar="CLIP"
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
        object.__setattr__(self, "negatives", tuple(clean_texts(self.negatives)))
        if self.negatives and self.text is None:
            raise UsageError(f"negatives work with a text only, not with {names[0]}")

    @property
    def image_source(self) -> str | Path | Image | None:
        """The image as a path or an image of Pillow."""
        return cast("str | Path | Image | None", self.image)

    @property
    def title(self) -> str:
        """Text, path or clip id, to show to people."""
        if self.text is not None:
            is_apart = self.dates is not None and self.dates.phrase != self.text
            return f"{self.text}, {self.dates.phrase}" if self.dates and is_apart else self.text
        if self.clip_id is not None:
            return self.clip_id
        source = self.video if self.video is not None else self.image
        return str(source) if isinstance(source, str | Path) else "image"

    @cached_property
    def transcript(self) -> TranscriptQuery | None:
        """Terms and phrases to look for in transcripts; None without a text."""
        return None if self.text is None else TranscriptQuery.parse(self.text)


def _read_image(image: Any) -> Any:
    """A path or an image of Pillow, from whatever :class:`Query` takes."""
    if isinstance(image, str | Path):
        return image
    if isinstance(image, bytes | bytearray | memoryview):
        from PIL import Image, UnidentifiedImageError

        try:
            picture = Image.open(io.BytesIO(image))
            picture.load()
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"these {len(image)} bytes are not an image: {error}") from error
        return picture
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
        f"an image is a path, bytes, an array or an image of Pillow, not {type(image).__name__}"
    )


_STARS = re.compile(r"(?<=\w)\*")
_SOURCES = ("text", "image", "video", "clip_id", "clips")


@dataclass(frozen=True)
class TranscriptQuery:
    """The terms and phrases of a text, as transcripts are searched for them.

    plain: the text without quotation marks. terms: those outside quotation marks, each with the
    spellings that count as the same; one that ends in ``*`` is the beginning of words. phrases:
    terms that must follow each other.
    """

    plain: str
    terms: tuple[tuple[str, ...], ...]
    phrases: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> TranscriptQuery:
        """Split a text at quotation marks of any kind; an unclosed one is ignored.

        >>> TranscriptQuery.parse('signs that say "no entry"').phrases
        (('no', 'entry'),)
        """
        spans = normalise_quotes(text).split('"')
        if len(spans) % 2 == 0:
            spans[-2:] = [" ".join(spans[-2:])]
        phrases = [tuple(term.text for term in analyse(span).terms) for span in spans[1::2]]
        outside = dict.fromkeys(term for span in spans[::2] for term in _terms(span))
        terms = [tuple(dict.fromkeys((term, singular(term)))) for term in outside]
        return cls(
            plain=" ".join(_STARS.sub(" ", " ".join(spans)).split()),
            terms=tuple(terms[:MAX_TERMS]),
            phrases=tuple(phrase[:MAX_TERMS] for phrase in phrases if phrase),
        )

    @property
    def has_only_phrases(self) -> bool:
        """True if frames cannot match, because everything is in quotation marks."""
        return bool(self.phrases) and not self.terms


def normalise_quotes(text: str) -> str:
    """Replace quotation marks of any kind by straight ones."""
    return _QUOTES.sub('"', text)


def _terms(text: str) -> list[str]:
    """Terms of a text; a word of two letters or more before a star keeps it."""
    return [
        term.text + PREFIX * (len(term.text) > 1 and text[term.end : term.end + 1] == PREFIX)
        for term in analyse(text).terms
    ]


def clean_text(text: str) -> str:
    """Return one line of valid text; control characters and lone surrogates become spaces.

    >>> clean_text(" a red\\x00 car\\n")
    'a red car'
    """
    if not isinstance(text, str):
        raise UsageError(
            f"a query is one text, not {_describe(text)}; search_many takes a list of queries"
        )
    characters = (
        character if character.isprintable() or character in "\u200d\ufe0f" else " "
        for character in text[:MAX_CHARACTERS]
    )
    line = " ".join("".join(characters).split())
    if not line:
        raise UsageError("the query is empty; describe what to find, e.g. 'a man drives a car'")
    return line


def clean_texts(texts: Iterable[str]) -> list[str]:
    """:func:`clean_text` of each; a single text is refused, it would be read as its letters."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(f"expected a list of texts, not {_describe(texts)}")
    return [clean_text(text) for text in texts]


def _describe(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
