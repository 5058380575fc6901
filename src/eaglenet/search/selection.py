"""Selection of hits: the best candidates without duplicates, and their moments.

A moment may be in two overlapping clips, and a video in several files; both are returned once.

An event does not end where a clip ends. So the moment of a hit may extend into neighbouring clips:
it is the run of frames around the best frame of the clip with the largest sum of scores above a
threshold. ``benchmarks/moments.py`` measures it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.hit import Moment
from eaglenet.search.model import ClipFeatures
from eaglenet.search.options import SearchOptions
from eaglenet.search.reranking import EncodedQuery, spaced_indices, unit_vectors
from eaglenet.search.shortlist import Shortlist
from eaglenet.search.transcripts import ClipTranscript
from eaglenet.store.records import Clip, FileTable
from eaglenet.store.snapshot import Snapshot

NEIGHBOURS = 2
"""Clips before and after into which a moment may extend."""
THRESHOLD = 0.5
"""Score of frames in a moment, between the mean over the store (0) and the best frame (1)."""
MAX_GAP = 1
"""Consecutive frames below the threshold that do not end a moment."""
MIN_SCORE_RANGE = 1e-6
"""If the scores of all frames differ by less than this, the moment is the whole clip."""
SAME_MOMENT_SECONDS = 1.0
"""Best frames of one file that are closer than this show the same moment."""
MAX_TIME_DIFFERENCE = 0.5
"""Seconds by which durations and clip times of near copies may differ."""
MIN_MEAN_COSINE = 0.65
"""Minimum mean cosine of the frames of near copies. With ``small``, clips of MSR-VTT reduced to a
fifth of their size at x264 quality 34 had 0.71 to 0.94."""
MIN_FRAME_COSINE = 0.5
"""Minimum cosine of every frame of near copies."""
MAX_MOTION_DIFFERENCE = 0.65
"""Maximum relative difference in motion of near copies; see :func:`has_same_motion`. One fixed
camera on different days had 0.74 and more, compressed clips of MSR-VTT 0.33 and 0.39."""
STILL_VARIANCE = 0.003
"""Variance of unit features below which a clip has no motion."""
MAX_PIXEL_DIFFERENCE = 24.0
"""Maximum difference between thumbnails of near copies, 0 to 255, at 16 x 16 pixels. The
compressed clips had 4 to 14; an object at another position makes more difference."""
NUM_THUMBNAILS = 8
"""Thumbnails per file that are compared."""
MAX_SHAPE_DIFFERENCE = 0.05
"""Maximum difference of the logarithms of the aspect ratios of near copies."""
THUMBNAIL_SIDE = 16
MAX_COMPARED = 512
"""Number of candidates to compare with each other: the first of the shortlist."""


def trim_moment(moment: Moment, others: Sequence[Moment]) -> Moment | None:
    """Trim a moment so that it overlaps no other of its file; None if it is a duplicate.

    It is a duplicate if its best frame is inside another moment or within ``SAME_MOMENT_SECONDS``
    of the best frame of one, or if less than half of it would remain.

    >>> trim_moment(Moment(8.0, 12.0, 11.5), [Moment(6.0, 9.0, 7.0)])
    Moment(start=9.0, end=12.0, best=11.5)
    """
    for other in others:
        is_near = abs(moment.best - other.best) < SAME_MOMENT_SECONDS
        if other.start <= moment.best <= other.end or is_near:
            return None
    start = max([moment.start, *(other.end for other in others if other.end < moment.best)])
    end = min([moment.end, *(other.start for other in others if other.start > moment.best)])
    if end - start < (moment.end - moment.start) / 2:
        return None
    return Moment(start, end, moment.best)


def has_same_motion(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Return whether the same changes happen at the same frames of two clips.

    Both are unit features ``[frames, dim]``, and the condition is

        mean_f |(a_f - mean a) - (b_f - mean b)|^2  <=  MAX_MOTION_DIFFERENCE max(var a, var b)

    Compression shifts the features of all frames alike, which cancels out. A fixed camera shows the
    same scene on two days, but not the same changes.
    """
    changes = [frames - frames.mean(axis=0) for frames in (first, second)]
    variance = max(float(np.square(change).sum(axis=-1).mean()) for change in changes)
    if variance < STILL_VARIANCE:
        return True
    difference = float(np.square(changes[0] - changes[1]).sum(axis=-1).mean())
    return difference <= MAX_MOTION_DIFFERENCE * variance


class ClipDetails:
    """Times, paths and durations of clips; their files are read at once."""

    def __init__(self, snapshot: Snapshot, clips: Sequence[Clip]) -> None:
        self.snapshot = snapshot
        self._clips = {clip.row: clip for clip in clips}

    @cached_property
    def files(self) -> FileTable:
        return self.snapshot.files({clip.content_id for clip in self._clips.values()})

    def clip(self, row: int) -> Clip:
        return self._clips[row]

    def file(self, row: int) -> int:
        """Return the index of the file of a clip in :attr:`files`."""
        return self.files.numbers[self._clips[row].content_id]

    def duration(self, row: int) -> float:
        """Return the duration of the file of a clip."""
        return float(self.files.durations[self.file(row)])


class NearCopies:
    """Detector of near copies: candidates of different files that show the same."""

    def __init__(
        self, details: ClipDetails, rows: NDArray[np.int64], features: ClipFeatures
    ) -> None:
        """``rows`` and ``features`` are the candidates, in the same order."""
        self.details = details
        self.features = features
        clips = [details.clip(row) for row in rows[:MAX_COMPARED].tolist()]
        self.contents = np.array([clip.content_id for clip in clips], np.int64)
        durations = [details.duration(clip.row) for clip in clips]
        starts, ends = [clip.start for clip in clips], [clip.end for clip in clips]
        times = np.array([durations, starts, ends])
        is_close = np.abs(times[:, :, None] - times[:, None, :]) <= MAX_TIME_DIFFERENCE
        may_match = is_close.all(axis=0) & (self.contents[:, None] != self.contents[None, :])
        self._may_match = {
            int(number): np.flatnonzero(may_match[number]).tolist()
            for number in np.flatnonzero(may_match.any(axis=1))
        }
        self._same: dict[tuple[int, int], bool] = {}
        self._thumbnails: dict[int, tuple[float, NDArray[np.float32]] | None] = {}

    def find_copy(self, number: int, others: Container[int]) -> int | None:
        """Return the candidate of ``others`` that is a near copy of candidate ``number``."""
        for other in self._may_match.get(number, ()):
            if (
                other in others
                and self._has_same_frames(number, other)
                and self._has_same_thumbnails(number, other)
            ):
                return int(other)
        return None

    def is_copy(self, number: int, other: int) -> bool:
        """Return whether the files of two candidates were found to be near copies."""
        if not self._same or max(number, other) >= len(self.contents):
            return False
        return self._same.get(self._pair(number, other), False)

    def _pair(self, one: int, other: int) -> tuple[int, int]:
        first, second = int(self.contents[one]), int(self.contents[other])
        return min(first, second), max(first, second)

    def _has_same_frames(self, one: int, other: int) -> bool:
        frames, mask = self.features.frames, self.features.mask
        both = mask[one] & mask[other]
        if not both.any():
            return False
        first, second = (unit_vectors(frames[number][both]) for number in (one, other))
        cosines = (first * second).sum(axis=-1)
        return (
            float(cosines.mean()) >= MIN_MEAN_COSINE
            and float(cosines.min()) >= MIN_FRAME_COSINE
            and has_same_motion(first, second)
        )

    def _has_same_thumbnails(self, one: int, other: int) -> bool:
        """Return whether the files of two candidates have similar thumbnails, clip by clip."""
        pair = self._pair(one, other)
        if pair not in self._same:
            first, second = (self._sample_rows(content) for content in pair)
            self._same[pair] = len(first) == len(second) and all(
                self._is_same_thumbnail(*rows) for rows in zip(first, second, strict=True)
            )
        return self._same[pair]

    def _sample_rows(self, content_id: int) -> list[int]:
        """Return the rows of some evenly spaced clips of a file."""
        clips = self.details.snapshot.clips_of_contents([content_id])[content_id]
        clips.sort(key=lambda clip: clip.number)
        return [clips[index].row for index in spaced_indices(len(clips), NUM_THUMBNAILS)]

    def _is_same_thumbnail(self, row: int, other: int) -> bool:
        first, second = self._thumbnail(row), self._thumbnail(other)
        if first is None or second is None:
            return False
        is_same_shape = abs(np.log(first[0] / second[0])) < MAX_SHAPE_DIFFERENCE
        return bool(is_same_shape and np.abs(first[1] - second[1]).max() <= MAX_PIXEL_DIFFERENCE)

    def _thumbnail(self, row: int) -> tuple[float, NDArray[np.float32]] | None:
        """Return the aspect ratio and reduced pixels of a thumbnail; None if it is not a JPEG."""
        if row not in self._thumbnails:
            from PIL import Image

            content = self.details.snapshot.thumbnail(row)
            try:
                with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
                    size = THUMBNAIL_SIDE, THUMBNAIL_SIDE
                    pixels = image.convert("RGB").resize(size, Image.Resampling.BOX)
                    shape = image.width / image.height
            except (OSError, SyntaxError):
                self._thumbnails[row] = None
            else:
                self._thumbnails[row] = shape, np.asarray(pixels, np.float32)
        return self._thumbnails[row]


@dataclass(frozen=True)
class Candidates:
    """Shortlist, and the stored features and details of its clips."""

    snapshot: Snapshot
    shortlist: Shortlist
    features: ClipFeatures
    """In the order of the shortlist."""
    transcripts: Mapping[int, ClipTranscript] = field(default_factory=dict)
    """Matching transcripts by row, best first; all of these rows are on the shortlist."""
    confidences: Mapping[int, float] = field(default_factory=dict)
    """Confidences by row, where they were measured."""
    background: float | None = None
    """Mean cosine of the query with a sample of all clips."""
    load: Callable[[NDArray[np.int64]], ClipFeatures] | None = None
    """Reads the features of other clips; None: moments end where their clip ends."""

    @cached_property
    def details(self) -> ClipDetails:
        return ClipDetails(self.snapshot, self.snapshot.clips(self.shortlist.rows))


@dataclass(frozen=True)
class Selection:
    """Candidate that becomes a hit, and those it stands for, as indices into the candidates."""

    number: int
    moment: Moment
    more: list[int] = field(default_factory=list)
    """Other clips of the file, if hits are grouped by file."""
    copies: list[int] = field(default_factory=list)
    """Clips of near copies of the file."""


def select(
    candidates: Candidates,
    query: EncodedQuery,
    order: Sequence[int],
    k: int,
    options: SearchOptions,
) -> list[Selection]:
    """Select the first k candidates of ``order``, without duplicates."""
    details, rows = candidates.details, candidates.shortlist.rows
    files = [details.clip(row).content_id for row in rows.tolist()]
    near_copies = (
        None if options.keep_duplicates else NearCopies(details, rows, candidates.features)
    )
    moments = _Moments(candidates, query, order, k)
    selections: dict[int, Selection] = {}
    by_file: dict[int, list[Selection]] = {}
    for rank, number in enumerate(order):
        same_file = by_file.setdefault(files[number], [])
        if options.group_files and same_file:
            same_file[0].more.append(number)
            continue
        original = near_copies.find_copy(number, selections) if near_copies is not None else None
        if original is not None:
            selections[original].copies.append(number)
            continue
        if len(selections) == k:
            if near_copies is None and not options.group_files:
                break
            continue
        moment: Moment | None = moments.at(rank)
        if near_copies is not None and moment is not None:
            copies = [
                other for other in selections.values() if near_copies.is_copy(number, other.number)
            ]
            moment = trim_moment(moment, [other.moment for other in (*same_file, *copies)])
        if moment is not None:
            selections[number] = Selection(number, moment)
            same_file.append(selections[number])
    return list(selections.values())


class _Moments:
    """Moments of candidates, computed in batches."""

    def __init__(
        self, candidates: Candidates, query: EncodedQuery, order: Sequence[int], batch_size: int
    ) -> None:
        self.candidates = candidates
        self.query = query
        self.order = order
        self.batch_size = batch_size
        # Prepared arrays are large, and scores of frames do not need them.
        self.features = candidates.features.without_prepared()
        self._moments: dict[int, Moment] = {}

    def at(self, rank: int) -> Moment:
        """Return the moment of the candidate at a rank: that of its transcript, if it has one."""
        details, number = self.candidates.details, self.order[rank]
        row = int(self.candidates.shortlist.rows[number])
        if row in self.candidates.transcripts:
            return self.candidates.transcripts[row].moment(details.duration(row))
        if number not in self._moments:
            self._find(list(self.order[rank : rank + self.batch_size]))
        return self._moments[number]

    def _find(self, batch: Sequence[int]) -> None:
        """Find the moments of candidates in their clips and the neighbouring clips."""
        candidates, rows = self.candidates, self.candidates.shortlist.rows
        clips = [candidates.details.clip(int(rows[number])) for number in batch]
        groups = [[clip] for clip in clips]
        if candidates.load is not None:
            groups = [candidates.snapshot.clips_beside(clip, NEIGHBOURS) for clip in clips]
        frames = dict(
            zip((clip.row for clip in clips), self._frames(self.features[batch]), strict=True)
        )
        others = sorted({clip.row for group in groups for clip in group} - frames.keys())
        if others and candidates.load is not None:
            features = candidates.load(np.array(others, np.int64)).without_prepared()
            frames.update(zip(others, self._frames(features), strict=True))
        for number, clip, group in zip(batch, clips, groups, strict=True):
            scores, seconds = zip(*(frames[each.row] for each in group), strict=True)
            span = min(each.start for each in group), max(each.end for each in group)
            self._moments[number] = find_moment(
                [score for clip_scores in scores for score in clip_scores],
                [second for clip_seconds in seconds for second in clip_seconds],
                (clip.start, clip.end),
                span,
                candidates.background,
            )

    def _frames(self, features: ClipFeatures) -> list[tuple[list[float], list[float]]]:
        """Return the scores and times of the frames of each clip."""
        scores = self.query.frame_scores(features)
        return list(zip(scores.tolist(), features.seconds.tolist(), strict=True))


def select_transcripts(
    details: ClipDetails, clips: Sequence[ClipTranscript], k: int, options: SearchOptions
) -> list[Selection]:
    """Select the first k clips by transcripts alone, without duplicates."""
    selections: list[Selection] = []
    by_file: dict[int, list[Selection]] = {}
    for number, clip in enumerate(clips):
        same_file = by_file.setdefault(clip.clip.content_id, [])
        if options.group_files and same_file:
            same_file[0].more.append(number)
            continue
        moment: Moment | None = clip.moment(details.duration(clip.row))
        if not options.keep_duplicates and moment is not None:
            moment = trim_moment(moment, [other.moment for other in same_file])
        if moment is not None and len(selections) < k:
            selections.append(Selection(number, moment))
            same_file.append(selections[-1])
    return selections


def find_moment(
    scores: Sequence[float],
    seconds: Sequence[float],
    clip: tuple[float, float],
    span: tuple[float, float] | None = None,
    background: float | None = None,
) -> Moment:
    """Return the best-scoring run of frames around the best frame of a clip.

    scores, seconds: of the frames of the clip and its neighbours, in any order; a frame that is in
        two clips may be there twice. -inf marks padding.
    clip: first and last second of the clip, which holds the best frame.
    span: first and last second of the clip and its neighbours; None: the clip alone.
    background: mean score of the query over clips of the store, so that a moment can be a whole
        video. None, or no frame scores higher: the mean of the frames is used instead.

    With t = background + THRESHOLD (best - background), the run maximises sum_f (s_f - t). Unlike
    a run of frames that all reach t, it tolerates one bad frame between good ones. It extends
    halfway to the frames beside it, and to the end of the span if there are none.
    """
    start, end = span or clip
    pairs = {
        second: score for second, score in zip(seconds, scores, strict=True) if math.isfinite(score)
    }
    frames = sorted(pairs.items(), key=itemgetter(0))
    inside = [frame for frame in frames if clip[0] <= frame[0] <= clip[1]] or frames
    if not frames:
        return Moment(clip[0], clip[1], (clip[0] + clip[1]) / 2)
    peak = max(inside, key=itemgetter(1))
    best_time = min(max(peak[0], clip[0]), clip[1])
    values = [score for _, score in frames]
    if max(values) - min(values) < MIN_SCORE_RANGE:
        return Moment(clip[0], clip[1], best_time)
    best = frames.index(peak)
    if background is None or background >= peak[1]:
        background = sum(values) / len(values)
    threshold = background + THRESHOLD * (peak[1] - background)
    above = [value - threshold for value in values]
    first = best - _longest_gain(above[best::-1])
    last = best + _longest_gain(above[best:])
    begin = start if first == 0 else (frames[first - 1][0] + frames[first][0]) / 2
    finish = end if last + 1 == len(frames) else (frames[last][0] + frames[last + 1][0]) / 2
    return Moment(max(start, min(begin, best_time)), min(end, max(finish, best_time)), best_time)


def _longest_gain(values: Sequence[float]) -> int:
    """Return the index up to which the sum of values is largest; of equal sums, the first.

    The search ends after more than ``MAX_GAP`` consecutive negative values.
    """
    total, highest, index, gap = 0.0, -math.inf, 0, 0
    for number, value in enumerate(values):
        gap = gap + 1 if value < 0 else 0
        if gap > MAX_GAP:
            break
        total += value
        if total > highest:
            highest, index = total, number
    return index
