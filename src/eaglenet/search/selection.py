"""Which candidates are shown: the best that show something new."""

from __future__ import annotations

import io
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from eaglenet.core.types import Moment
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query
from eaglenet.search.shortlist import Shortlist
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.transcripts import ClipWords

# What would show a person the same thing twice: a moment in two clips, a film in two files.

NEAR_SECONDS = 1.0
"""Best frames of one file that are closer than this show one moment."""
SAME_LENGTH = 0.5
"""Seconds by which near copies of a file, and their clips, may differ in time."""
SAME_FRAMES = 0.65
"""Mean cosine of the features of near copies, frame by frame. Clips of MSR-VTT had 0.71 to 0.94
with ``small`` when made a fifth of their size at x264's quality 34."""
WORST_FRAME = 0.5
"""Least cosine of any frame: what moves elsewhere is another film, however alike the rest."""
SAME_CHANGES = 0.65
"""Largest share of what changes in a clip that may change otherwise in a near copy; one fixed
camera on other days had 0.74 and more, compressed clips of MSR-VTT 0.33 and 0.39."""
STILL = 0.003
"""Squared distance of unit features from their mean below which nothing happens in a clip."""
SAME_PICTURE = 24.0
"""Largest difference of the thumbnails of near copies, in levels of 255, at 16 x 16 pixels: a thing
that is elsewhere shows in some of them, other compression in none (those clips had 4 to 14)."""
COMPARED_PICTURES = 8
"""Thumbnails of a file that have to agree, or all where it has fewer clips."""
SAME_SHAPE = 0.05
"""Difference of the logarithms of width over height."""
SIDE = 16
COMPARED = 512
"""Candidates that are compared with each other, the first of the shortlist."""


def apart(moment: Moment, shown: Sequence[Moment]) -> Moment | None:
    """The part of a moment that those ``shown`` of its file leave; None where it is one of them.

    It is one of them where its best frame lies in one of them or within ``NEAR_SECONDS`` of its
    best, or where less than half of it would be left.

    >>> apart(Moment(8.0, 12.0, 11.5), [Moment(6.0, 9.0, 7.0)])
    Moment(start=9.0, end=12.0, best=11.5)
    """
    for other in shown:
        if other.start <= moment.best <= other.end or is_near(moment, other):
            return None
    start = max([moment.start, *(other.end for other in shown if other.end < moment.best)])
    end = min([moment.end, *(other.start for other in shown if other.start > moment.best)])
    if end - start < (moment.end - moment.start) / 2:
        return None
    return Moment(start, end, moment.best)


def is_near(one: Moment, other: Moment) -> bool:
    """Whether two moments are at their best at about the same time."""
    return abs(one.best - other.best) < NEAR_SECONDS


def change_alike(first: Float[Tensor, "frames dim"], second: Float[Tensor, "frames dim"]) -> bool:
    """Whether what happens in two clips happens at the same frames, by their unit features.

    Compression moves the features of all frames alike, which counts for nothing here:

        mean_f |(a_f - mean a) - (b_f - mean b)|^2  <=  SAME_CHANGES max(var a, var b)

    One fixed camera on two days shows the same place, but not the same changes.
    """
    apart = [frames - frames.mean(dim=0) for frames in (first, second)]
    changes = max(float(each.square().sum(dim=-1).mean()) for each in apart)
    if changes < STILL:
        return True
    other = float((apart[0] - apart[1]).square().sum(dim=-1).mean())
    return other <= SAME_CHANGES * changes


class NearCopies:
    """Finds candidates that show what another candidate of another file shows."""

    def __init__(self, snapshot: Snapshot, rows: NDArray[np.int64], clips: StoredClips) -> None:
        """``rows`` and ``clips``: the candidates, in one order."""
        self.snapshot = snapshot
        self.clips = clips
        first = rows[:COMPARED]
        self.files = files = snapshot.columns["file_number"][first]
        times = np.stack(
            [
                snapshot.files.durations[files],
                snapshot.columns["start"][first],
                snapshot.columns["end"][first],
            ]
        )
        close = np.abs(times[:, :, None] - times[:, None, :]) <= SAME_LENGTH
        possible = close.all(axis=0) & (files[:, None] != files[None, :])
        self._possible = {
            int(number): np.flatnonzero(possible[number]).tolist()
            for number in np.flatnonzero(possible.any(axis=1))
        }
        self._same: dict[tuple[int, int], bool] = {}
        self._pictures: dict[int, tuple[float, NDArray[np.float32]] | None] = {}

    def among(self, number: int, others: Container[int]) -> int | None:
        """Which of the candidates ``others`` shows in another file what ``number`` does."""
        for other in self._possible.get(number, ()):
            if (
                other in others
                and self._has_same_frames(number, other)
                and self._shows_the_same(number, other)
            ):
                return int(other)
        return None

    def is_copy(self, number: int, other: int) -> bool:
        """Whether the files of two candidates are known to show the same."""
        if not self._same or max(number, other) >= len(self.files):
            return False
        return self._same.get(self._pair(number, other), False)

    def _pair(self, one: int, other: int) -> tuple[int, int]:
        first, second = int(self.files[one]), int(self.files[other])
        return min(first, second), max(first, second)

    def _has_same_frames(self, one: int, other: int) -> bool:
        frames, mask = self.clips.features.frames, self.clips.features.mask
        both = mask[one] & mask[other]
        if not bool(both.any()):
            return False
        first, second = (
            F.normalize(frames[number][both].float(), dim=-1) for number in (one, other)
        )
        cosines = (first * second).sum(dim=-1)
        return (
            float(cosines.mean()) >= SAME_FRAMES
            and float(cosines.min()) >= WORST_FRAME
            and change_alike(first, second)
        )

    def _shows_the_same(self, one: int, other: int) -> bool:
        """Whether the thumbnails of two files agree, clip by clip."""
        pair = self._pair(one, other)
        if pair not in self._same:
            first, second = (self._rows_of(file) for file in pair)
            self._same[pair] = len(first) == len(second) and all(
                self._is_same_picture(*rows) for rows in zip(first, second, strict=True)
            )
        return self._same[pair]

    def _rows_of(self, file: int) -> list[int]:
        """Some clips of a file, spread over it."""
        rows = np.flatnonzero(self.snapshot.columns["file_number"] == file)
        rows = rows[np.argsort(self.snapshot.columns["number"][rows])]
        places = np.linspace(0, len(rows) - 1, min(len(rows), COMPARED_PICTURES)).round()
        return [int(row) for row in rows[places.astype(np.int64)]]

    def _is_same_picture(self, row: int, other: int) -> bool:
        first, second = self._picture(row), self._picture(other)
        if first is None or second is None:
            return False
        is_same_shape = abs(np.log(first[0] / second[0])) < SAME_SHAPE
        return bool(is_same_shape and np.abs(first[1] - second[1]).max() <= SAME_PICTURE)

    def _picture(self, row: int) -> tuple[float, NDArray[np.float32]] | None:
        """Width over height and a few pixels of a thumbnail; None where it is no picture."""
        if row not in self._pictures:
            from PIL import Image

            content = self.snapshot.thumbnail(row)
            try:
                with Image.open(io.BytesIO(content), formats=("JPEG",)) as opened:
                    small = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
                    shape = opened.width / opened.height
            except (OSError, SyntaxError):
                self._pictures[row] = None
            else:
                self._pictures[row] = shape, np.asarray(small, np.float32)
        return self._pictures[row]


# From the scores of a clip's frames to a span of time.

FLAT = 1e-6
"""Frames whose scores differ by less than this are equally good: the moment is the whole clip."""


def find_moment(
    scores: Float[Tensor, "frames"],
    seconds: Float[Tensor, "frames"],
    start: float,
    end: float,
) -> Moment:
    """The run of good frames around the best one.

    A frame is good if its score is at least half-way between the clip's mean and its best:
    s_f >= (mean + max) / 2. The run reaches half-way to the next frame that is not good, and
    never out of the clip. Frames with score -inf are padding.
    """
    start, end = float(start), float(end)
    # Plain numbers: a dozen operations on a dozen tensors' numbers cost more than all the rest.
    pairs = zip(seconds.tolist(), scores.tolist(), strict=True)
    known = sorted((pair for pair in pairs if math.isfinite(pair[1])), key=itemgetter(0))
    if not known:
        return Moment(start, end, (start + end) / 2)
    times, values = zip(*known, strict=True)
    highest = max(values)
    best = values.index(highest)
    moment = min(max(times[best], start), end)
    if highest - min(values) < FLAT:
        return Moment(start, end, moment)
    bound = (sum(values) / len(values) + highest) / 2
    first = last = best
    while first > 0 and values[first - 1] >= bound:
        first -= 1
    while last + 1 < len(values) and values[last + 1] >= bound:
        last += 1
    begin = start if first == 0 else (times[first - 1] + times[first]) / 2
    finish = end if last + 1 == len(values) else (times[last] + times[last + 1]) / 2
    return Moment(max(start, min(begin, moment)), min(end, max(finish, moment)), moment)


@dataclass(frozen=True)
class Candidates:
    """A shortlist and the stored features of its clips, in the same order."""

    snapshot: Snapshot
    found: Shortlist
    clips: StoredClips
    words: Mapping[int, ClipWords] = field(default_factory=dict)
    """By row, best first: words that were found in clips, which all are on the shortlist."""


@dataclass(frozen=True)
class Chosen:
    """A candidate that is shown, and those that it stands for, by their place in the shortlist."""

    number: int
    moment: Moment
    more: list[int] = field(default_factory=list)
    """Grouped: other clips of the file."""
    copies: list[int] = field(default_factory=list)
    """Folded: clips of near copies of the file."""


def choose(
    candidates: Candidates, query: Query, order: Sequence[int], k: int, options: SearchOptions
) -> list[Chosen]:
    """The first k of ``order`` that show something new; see :mod:`eaglenet.search.selection`."""
    snapshot, rows = candidates.snapshot, candidates.found.rows
    files = snapshot.columns["file_number"][rows].tolist()
    near = NearCopies(snapshot, rows, candidates.clips) if options.fold else None
    moments = _Moments(candidates, query, order, k)
    chosen: dict[int, Chosen] = {}
    of_file: dict[int, list[Chosen]] = {}
    for place, number in enumerate(order):
        same_file = of_file.setdefault(files[number], [])
        if options.group_files and same_file:
            same_file[0].more.append(number)
            continue
        twin = near.among(number, chosen) if near is not None else None
        if twin is not None:
            chosen[twin].copies.append(number)
            continue
        if len(chosen) == k:
            if near is None and not options.group_files:
                break
            continue
        moment: Moment | None = moments.at(place)
        if near is not None and moment is not None:
            films = [each for each in chosen.values() if near.is_copy(number, each.number)]
            moment = apart(moment, [each.moment for each in (*same_file, *films)])
        if moment is not None:
            chosen[number] = Chosen(number, moment)
            same_file.append(chosen[number])
    return list(chosen.values())


class _Moments:
    """Moments of candidates, computed for as many at once as are likely to be shown."""

    def __init__(
        self, candidates: Candidates, query: Query, order: Sequence[int], at_once: int
    ) -> None:
        self.candidates = candidates
        self.query = query
        self.order = order
        self.at_once = at_once
        self._scores: dict[int, Tensor] = {}

    def at(self, place: int) -> Moment:
        """Of the candidate at a place of the order: that of its words, where it has any."""
        snapshot, number = self.candidates.snapshot, self.order[place]
        row = int(self.candidates.found.rows[number])
        if row in self.candidates.words:
            return self.candidates.words[row].moment(_duration(snapshot, row))
        # What the scorer prepared is large, and of no use for frames.
        clips = replace(self.candidates.clips, prepared={})
        if number not in self._scores:
            part = list(self.order[place : place + self.at_once])
            scores = self.query.frame_scores(clips[part]).cpu()
            self._scores.update(zip(part, scores, strict=True))
        return find_moment(self._scores[number], clips.seconds[number].cpu(), *snapshot.span(row))


def choose_words(
    snapshot: Snapshot, clips: Sequence[ClipWords], k: int, options: SearchOptions
) -> list[tuple[ClipWords, Moment, list[int]]]:
    """The same for clips that were found by their words alone: clip, moment, rows of its file."""
    chosen: list[tuple[ClipWords, Moment, list[int]]] = []
    of_file: dict[int, list[tuple[ClipWords, Moment, list[int]]]] = {}
    for clip in clips:
        same_file = of_file.setdefault(int(snapshot.columns["file_number"][clip.row]), [])
        if options.group_files and same_file:
            same_file[0][2].append(clip.row)
            continue
        moment: Moment | None = clip.moment(_duration(snapshot, clip.row))
        if options.fold and moment is not None:
            moment = apart(moment, [shown for _, shown, _ in same_file])
        if moment is not None and len(chosen) < k:
            chosen.append((clip, moment, []))
            same_file.append(chosen[-1])
    return chosen


def _duration(snapshot: Snapshot, row: int) -> float:
    return float(snapshot.files.durations[int(snapshot.columns["file_number"][row])])
