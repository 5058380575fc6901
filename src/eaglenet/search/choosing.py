"""Which candidates are shown: the best that show something new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from eaglenet.search.folding import NearCopies, apart
from eaglenet.search.moments import find_moment
from eaglenet.search.options import SearchOptions
from eaglenet.search.queries import Query
from eaglenet.search.shortlist import Shortlist
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.words.ranking import ClipWords
from eaglenet.types import Moment


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
    """The first k of ``order`` that show something new; see :mod:`eaglenet.search.folding`."""
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
