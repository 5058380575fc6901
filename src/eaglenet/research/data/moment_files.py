"""Texts with the spans of a video that show them, read from the files that datasets publish.

Known are DiDeMo, QVHighlights, Charades-STA and ActivityNet Captions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, UsageError, cause_of

Span = tuple[float, float]
"""First and last second."""
DIDEMO_SECONDS = 5.0
"""Length of a segment of DiDeMo; its times are numbers of segments, the last one included."""
DIDEMO_ANNOTATORS = 3
"""Annotators whose best IoUs are averaged, as DiDeMo's own evaluation does."""


@dataclass(frozen=True)
class MomentText:
    """A text and the spans of one video that show it.

    num_annotators: how many of the best-matching spans are averaged to one IoU. 1: any span will
        do, as where several moments show the text. More: each span is one person's opinion.
    """

    video_id: str
    text: str
    spans: tuple[Span, ...]
    num_annotators: int = 1

    def __post_init__(self) -> None:
        if not self.spans:
            raise ValueError(f"no span for {self.text!r:.60}")
        for start, end in self.spans:
            if not 0 <= start <= end < float("inf"):
                raise ValueError(f"the span {start:g} to {end:g} s of {self.text!r:.60}")


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Name ``place`` in what goes wrong with one entry of a file."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{place} has no {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: {error}") from error


def read_didemo(content: str) -> list[MomentText]:
    """``[{"video", "description", "times": [[first, last], ...]}, ...]``, in segments of 5 s.

    The last segment of a video shorter than 30 s is taken to be whole, as DiDeMo's evaluation does.
    """
    texts = []
    for number, row in enumerate(untrusted.parse_json(content)):
        with _naming(f"entry {number}"):
            times = [
                (DIDEMO_SECONDS * int(first), DIDEMO_SECONDS * (int(last) + 1))
                for first, last in row["times"]
            ]
            video, text = Path(row["video"]).stem, row["description"]
            texts.append(MomentText(video, text, tuple(times), DIDEMO_ANNOTATORS))
    return texts


def read_qvhighlights(content: str) -> list[MomentText]:
    """One JSON object per line with ``vid``, ``query`` and ``relevant_windows``, in seconds.

    The file of the test split has no windows: its moments are scored by the authors' server.
    """
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            with _naming(f"line {number}"):
                row = untrusted.parse_json(line)
                spans = tuple((float(start), float(end)) for start, end in row["relevant_windows"])
                texts.append(MomentText(row["vid"], row["query"], spans))
    return texts


def read_charades_sta(content: str) -> list[MomentText]:
    """One ``VIDEO START END##text`` per line, in seconds."""
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)", line)
        if match is None:
            raise ValueError(f"line {number} is not 'VIDEO START END##text'")
        video, start, end, text = match.groups()
        with _naming(f"line {number}"):
            # A few published lines end before they start.
            low, high = sorted((float(start), float(end)))
            texts.append(MomentText(video, text.strip(), ((low, high),)))
    return texts


def read_activitynet(content: str) -> list[MomentText]:
    """``{"v_ID": {"timestamps": [[start, end], ...], "sentences": [...]}}``, in seconds."""
    texts = []
    for video, entry in untrusted.parse_json(content).items():
        with _naming(f"video {video!r}"):
            for span, text in zip(entry["timestamps"], entry["sentences"], strict=True):
                low, high = sorted(map(float, span))  # Some published spans are reversed.
                texts.append(MomentText(video, str(text).strip(), ((low, high),)))
    return texts


READERS: Mapping[str, Callable[[str], list[MomentText]]] = {
    "didemo": read_didemo,
    "qvhighlights": read_qvhighlights,
    "charades-sta": read_charades_sta,
    "activitynet": read_activitynet,
}


def detect_format(content: str) -> str:
    """Name of the format of an annotation file.

    >>> detect_format("AO8RW 0.0 6.9##a person puts a book on a shelf.")
    'charades-sta'
    """
    start = content.lstrip()[:1]
    if start == "[":
        return "didemo"
    if start == "{":
        first_line = content.lstrip().split("\n", 1)[0]
        return "qvhighlights" if '"vid"' in first_line else "activitynet"
    if "##" in content.split("\n", 1)[0]:
        return "charades-sta"
    raise ValueError("it is none of " + ", ".join(READERS))


def read_moments(path: Path, name: str | None = None) -> list[MomentText]:
    """Read an annotation file; the format is recognised if ``name`` is None."""
    if name is not None and name not in READERS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(READERS)}")
    try:
        content = untrusted.read_text(path.expanduser(), untrusted.MAX_ANNOTATIONS)
        texts = READERS[name or detect_format(content)](content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError(
            f"{path}: cannot be read as annotated moments ({cause_of(error)}); expected the "
            f"published file of one of: {', '.join(READERS)}"
        ) from error
    if not texts:
        raise DatasetError(f"{path}: has no annotated moment")
    return texts
