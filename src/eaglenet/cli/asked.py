"""What `eaglenet search` searches with: words, lines of a file, a picture, a video or a clip."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eaglenet.command_lines import quoted
from eaglenet.errors import UsageError, cause_of
from eaglenet.video.suffixes import VIDEO_SUFFIXES

if TYPE_CHECKING:
    from eaglenet.search.engine import Engine
    from eaglenet.search.hits import Answer, CaptionHit
    from eaglenet.search.options import SearchOptions

_IN = Path("-")


def sentence_of(words: list[str] | None) -> str | None:
    """The words of a command line as one sentence, which many type without quotes.

    >>> sentence_of(["a", "red", "car"]), sentence_of([])
    ('a red car', None)
    """
    if not words:
        return None
    if len(words) > 1 and any(" " in word for word in words):
        raise UsageError(
            f"{len(words)} sentences were given; search for one, or for those of a file, one a "
            "line, with --queries FILE"
        )
    return " ".join(words)


@dataclass(frozen=True)
class Asked:
    """What to search with; exactly one is given."""

    query: str | None
    queries: Path | None
    image: Path | None
    video: Path | None
    similar: str | None

    @property
    def is_nothing(self) -> bool:
        return all(value is None for value in vars(self).values())

    def check(self, captions: Path | None, negatives: list[str]) -> None:
        """Refuse what does not go together."""
        given = [name for name, value in vars(self).items() if value is not None]
        ways = "words, --queries, --image, --video or --similar"
        if not given:
            raise UsageError(f"nothing to search for; give {ways}")
        if len(given) > 1:
            named = " and ".join("words" if name == "query" else f"--{name}" for name in given)
            raise UsageError(f"{named} cannot be searched together; give one of {ways}")
        if captions is not None and given[0] not in ("video", "similar"):
            raise UsageError(
                "--captions ranks captions for a video: give --video FILE or --similar ID"
            )
        if negatives and given[0] not in ("query", "queries"):
            raise UsageError("--not works with words only, not with a picture or a video")
        if self.image is not None and self.image.suffix.lower() in VIDEO_SUFFIXES:
            raise UsageError(
                f"--image takes a picture; to search with a video: --video {quoted(self.image)}"
            )
        if self.similar is not None and Path(self.similar).exists():
            raise UsageError(
                f"--similar takes a clip id; to search with a file: --video {quoted(self.similar)}"
            )

    def ask(self, engine: Engine, k: int, options: SearchOptions) -> list[Answer]:
        """Search, for each query if there are several."""
        from eaglenet.search.hits import Answer

        if self.query is not None or self.queries is not None:
            sentences = [self.query] if self.query is not None else read_lines(self.queries or _IN)
            found = engine.search_many(sentences, k, options=options)
            return [Answer(*pair) for pair in zip(sentences, found, strict=True)]
        if self.image is not None:
            return [Answer(str(self.image), engine.search_image(self.image, k, options=options))]
        if self.video is not None:
            return [Answer(str(self.video), engine.search_video(self.video, k, options=options))]
        clip_id = engine.full_id(self.similar or "")
        return [Answer(clip_id, engine.similar(clip_id, k, options=options))]

    def ask_captions(self, engine: Engine, captions: Path, k: int) -> list[CaptionHit]:
        """Rank the lines of a file for the video or the clip."""
        clip = engine.full_id(self.similar) if self.similar else self.video
        return engine.best_captions(clip or "", read_lines(captions), k)


def read_lines(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a text file: {cause_of(error)}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path}: has no line of text; write one sentence a line")
    return lines
