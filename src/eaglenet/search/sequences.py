"""Temporal queries: ranking of files in which steps follow each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.grammar import TemporalQuery
from eaglenet.search.hit import Hit, Moment
from eaglenet.search.hits import make_hit
from eaglenet.search.model import ClipFeatures
from eaglenet.search.options import SearchOptions
from eaglenet.search.reranking import EncodedQuery
from eaglenet.search.selection import ClipDetails, find_moment
from eaglenet.search.shortlist import Shortlist, hubness_offsets
from eaglenet.store.records import Clip
from eaglenet.store.snapshot import Snapshot

STEP_SHORTLIST = 500
"""Clips per step of a temporal query from which files are chosen."""
STEP_FILES = 50
"""Files in which the steps of a temporal query are searched for."""
MAX_STEP_CLIPS = 4000
"""Clips whose frames are compared for a temporal query."""


def find_sequences(
    snapshot: Snapshot,
    query: TemporalQuery,
    encoded_steps: Sequence[EncodedQuery],
    shortlists: Sequence[Shortlist],
    load: Callable[[NDArray[np.int64]], ClipFeatures],
    k: int,
    options: SearchOptions,
    rate: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> list[Hit]:
    """Find the k best sequences of moments for the steps of a query, one per file.

    ``shortlists`` has one shortlist per step. In the files with the best clips for all steps, every
    frame is scored for every step, alone and with its clip. ``rate`` returns the confidences of
    sequences by the sums of their scores over the steps; None: they have none.
    """
    clips = _clips_of_files(snapshot, shortlists, max(STEP_FILES, 2 * k))
    if not clips:
        return []
    rows = np.array([clip.row for clip in clips], np.int64)
    features = load(rows).without_prepared()
    scores = np.stack([_step_scores(snapshot, step, rows, features) for step in encoded_steps])
    num_frames = features.mask.shape[1]
    sequences = rank_sequences(
        scores.reshape(len(encoded_steps), -1),
        features.seconds.reshape(-1),
        np.repeat([clip.content_id for clip in clips], num_frames),
        within=query.within,
        k=len(clips),
    )
    confidences: list[float] | list[None] = [None] * len(sequences)
    # Weights were fitted among more files; a single file would always seem likely.
    if rate is not None and len(sequences) >= options.filters.min_clips:
        means = np.array([sequence.score for sequence in sequences])
        confidences = rate(len(encoded_steps) * means).tolist()
    details = ClipDetails(snapshot, clips)
    hits = []
    for rank, sequence in enumerate(sequences[:k], 1):
        moments = _step_moments(sequence, features, scores, clips)
        step_clips = [clips[frame // num_frames] for frame in sequence.frames]
        steps: list[dict[str, Any]] = [
            {"query": step.title, "clip_id": clip.id, **vars(moment)}
            for step, clip, moment in zip(query.steps, step_clips, moments, strict=True)
        ]
        whole = Moment(moments[0].start, moments[-1].end, moments[0].best)
        hit = make_hit(details, step_clips[0].row, options, rank, sequence.score, whole, ())
        metadata = {**hit.metadata, "steps": steps}
        hits.append(replace(hit, metadata=metadata, confidence=confidences[rank - 1]))
    return hits


def _clips_of_files(snapshot: Snapshot, shortlists: Sequence[Shortlist], count: int) -> list[Clip]:
    """Return all clips of the ``count`` files with the best clips for all steps."""
    content_ids = snapshot.content_ids
    totals: dict[int, float] = {}
    for shortlist in shortlists:
        if not len(shortlist.rows):
            return []
        lowest = float(shortlist.cosines[-1])
        best: dict[int, float] = {}
        for row, cosine in zip(shortlist.rows, shortlist.cosines.tolist(), strict=True):
            best.setdefault(int(content_ids[row]), cosine - lowest)
        for content_id, gain in best.items():
            totals[content_id] = totals.get(content_id, 0.0) + gain
    files = sorted(totals, key=lambda content_id: -totals[content_id])[:count]
    by_content = snapshot.clips_of_contents(files)
    return [clip for content_id in files for clip in by_content[content_id]][:MAX_STEP_CLIPS]


def _step_scores(
    snapshot: Snapshot, step: EncodedQuery, rows: NDArray[np.int64], features: ClipFeatures
) -> NDArray[np.float32]:
    """Return scores ``[clips, frames]``: the mean of the scores of a frame and of its clip."""
    cosines = snapshot.vectors_at(rows) @ step.vector
    offsets = hubness_offsets(snapshot, rows, step.hubness_weight)
    if offsets is not None:
        # Twice: once for the score of the clip, once for that of the frame.
        cosines = (cosines - 2 * offsets).astype(np.float32)
    scores = (step.frame_scores(features) + cosines[:, None]) / np.float32(2)
    return np.asarray(scores, np.float32)


def _step_moments(
    sequence: FrameSequence,
    features: ClipFeatures,
    scores: NDArray[np.float32],
    clips: Sequence[Clip],
) -> list[Moment]:
    """Return the moment of each step; two that would overlap meet between their best frames."""
    moments: list[Moment] = []
    for number, frame in enumerate(sequence.frames):
        index = frame // features.mask.shape[1]
        clip, best = clips[index], float(features.seconds.reshape(-1)[frame])
        moment = find_moment(
            scores[number, index].tolist(), features.seconds[index].tolist(), (clip.start, clip.end)
        )
        start, end = min(moment.start, best), max(moment.end, best)
        if moments:
            previous = moments[-1]
            if previous.end > start:
                start = max(start, min((previous.best + best) / 2, previous.end))
                moments[-1] = Moment(previous.start, min(previous.end, start), previous.best)
        moments.append(Moment(start, end, best))
    return moments


@dataclass(frozen=True)
class FrameSequence:
    """One frame per step, in the order of the steps; ``frames`` are columns of the scores."""

    score: float
    frames: tuple[int, ...]


def rank_sequences(
    scores: NDArray[np.floating],
    seconds: NDArray[np.floating],
    files: NDArray[np.integer],
    *,
    within: float | None = None,
    k: int = 10,
) -> list[FrameSequence]:
    """Find the best sequence of each file, and return the k best of all.

    scores: ``[steps, frames]``; -inf for padding. seconds: time of each frame in its file.
    files: id of the file of each frame. within: longest time from a step to the next, in seconds.

    A sequence is one frame per step, in one file and each later than the one before; its score is
    the mean over the steps. The time is O(steps x frames).
    """
    values = np.asarray(scores, np.float64)
    sequences = []
    order = np.lexsort((seconds, files))
    boundaries = np.flatnonzero(np.diff(files[order])) + 1
    for group in np.split(order, boundaries):
        if len(group):
            sequence = _best_sequence(values[:, group], np.asarray(seconds[group], float), within)
            if sequence is not None:
                frames = tuple(int(group[frame]) for frame in sequence.frames)
                sequences.append(FrameSequence(sequence.score, frames))
    # Stable: of equal sequences, the one in the first file comes first.
    sequences.sort(key=lambda sequence: -sequence.score)
    return sequences[:k]


def _best_sequence(
    scores: NDArray[np.float64], seconds: NDArray[np.float64], within: float | None
) -> FrameSequence | None:
    """Return the best sequence in one file, whose frames are in the order of time."""
    num_steps = len(scores)
    totals = scores[0]
    origins = []
    for step in range(1, num_steps):
        best, origin = _best_before(totals, seconds, within)
        totals = best + scores[step]
        origins.append(origin)
    last = int(np.argmax(totals))
    if not np.isfinite(totals[last]):
        return None
    frames = [last]
    for origin in reversed(origins):
        frames.append(int(origin[frames[-1]]))
    return FrameSequence(float(totals[last]) / num_steps, tuple(reversed(frames)))


def _best_before(
    totals: NDArray[np.float64], seconds: NDArray[np.float64], within: float | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return, per frame, the best total within the last ``within`` seconds, and its frame."""
    best = np.full(len(totals), -np.inf)
    origin = np.zeros(len(totals), np.int64)
    # Frames that may still be the best of a later window, highest total first.
    window: deque[int] = deque()
    following = 0
    for frame, time in enumerate(seconds):
        while following < len(seconds) and seconds[following] < time:
            while window and totals[window[-1]] < totals[following]:
                window.pop()
            window.append(following)
            following += 1
        while within is not None and window and seconds[window[0]] < time - within:
            window.popleft()
        if window:
            best[frame], origin[frame] = totals[window[0]], window[0]
    return best, origin
