"""From scores to what a person sees: hits, captions and explanations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import StoreError, quoted
from eaglenet.core.types import Hit, Moment, Part, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.scoring import score_all
from eaglenet.search.filters import path_matcher
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query, clean_queries, encode_sentences
from eaglenet.search.selection import Candidates, choose, choose_words, find_moment
from eaglenet.search.shortlist import levels_taken
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.transcripts import ClipWords, fused_scores

CAPTIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Answer:
    """A query, as a person wrote it, and what was found for it."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True)
class CaptionHit:
    """One caption of :meth:`Engine.best_captions`; ``rank`` starts at 1."""

    rank: int
    caption: str
    score: float
    moment: Moment


@dataclass(frozen=True)
class Explanation:
    """Why a clip is where it is in a ranking."""

    clip_id: str
    score: float
    coarse_score: float
    moment: Moment
    frames: tuple[tuple[float, float], ...]
    """Seconds in the file and score of each real frame, in order of time."""


@torch.no_grad()
def make_hits(candidates: Candidates, query: Query, k: int, options: SearchOptions) -> list[Hit]:
    """The k best candidates. Of a file's places one that matches the filter is shown.

    With words, :func:`fused_scores` ranks. A clip counts as found by its pictures if these alone
    would have brought it among the k.
    """
    snapshot, found, clips = candidates.snapshot, candidates.found, candidates.clips
    if not len(found.rows):
        return []
    scores = torch.from_numpy(found.cosines)
    if options.rerank:
        scores = exact_scores(snapshot, query, found.rows, clips)
    if not scores.isfinite().all():
        raise StoreError(
            f"clips of {snapshot.location} have scores that are no numbers: its features are "
            f"damaged; rebuild them with: eaglenet store repair --store {quoted(snapshot.location)}"
        )
    # Stable, and the shortlist is sorted: equal scores keep the order of their cosines.
    order = scores.sort(descending=True, stable=True).indices.tolist()
    by_pictures, ranked = {int(found.rows[number]) for number in order[:k]}, scores.tolist()
    if candidates.words:
        strengths = {row: clip.strength for row, clip in candidates.words.items()}
        fused = fused_scores([int(found.rows[number]) for number in order], strengths)
        ranked = [fused[int(row)] for row in found.rows]
        order.sort(key=lambda number: -ranked[number])
    hits = []
    for rank, chosen in enumerate(choose(candidates, query, order, k, options), 1):
        number = chosen.number
        row = int(found.rows[number])
        more, copies = (found.rows[others].tolist() for others in (chosen.more, chosen.copies))
        hit = _hit(snapshot, row, options, rank, ranked[number], chosen.moment, more, copies)
        hit = replace(hit, coarse_score=float(found.cosines[number]))
        if candidates.words:
            exact = {"picture_score": float(scores[number])}
            hit = replace(hit, metadata={**hit.metadata, **exact})
        if row in candidates.words:
            hit = _with_words(hit, candidates.words[row], is_seen=row in by_pictures)
        hits.append(hit)
    return hits


def exact_scores(
    snapshot: Snapshot, query: Query, rows: NDArray[np.int64], clips: StoredClips
) -> Tensor:
    """Of the clips in these rows, less their levels where the model does not level them itself."""
    scores = query.score(clips).float().cpu()
    taken = levels_taken(snapshot, rows, query.exact_share)
    return scores if taken is None else (scores.double() - torch.from_numpy(taken)).float()


def word_hits(
    snapshot: Snapshot, clips: Sequence[ClipWords], k: int, options: SearchOptions
) -> list[Hit]:
    """The k best clips by their words alone; ``coarse_score`` is 0, for nothing was looked at."""
    hits = []
    for rank, (best, moment, more) in enumerate(choose_words(snapshot, clips, k, options), 1):
        hit = _hit(snapshot, best.row, options, rank, best.strength, moment, more)
        hits.append(_with_words(hit, best, is_seen=False))
    return hits


def _hit(
    snapshot: Snapshot,
    row: int,
    options: SearchOptions,
    rank: int,
    score: float,
    moment: Moment,
    more: Sequence[int],
    copies: Sequence[int] = (),
) -> Hit:
    """``more`` and ``copies``: rows of clips that it stands for."""
    file = int(snapshot.columns["file_number"][row])
    matches = path_matcher(options.filters.path)
    shown = first_existing([path for path in snapshot.files.paths[file] if matches(path)])
    return Hit(
        rank=rank,
        clip_id=snapshot.clip_id(row),
        path=shown,
        score=float(score),
        coarse_score=0.0,
        moment=moment,
        duration=float(snapshot.files.durations[file]),
        metadata=_metadata(snapshot, row, more, copies, shown),
    )


def _with_words(hit: Hit, found: ClipWords, *, is_seen: bool) -> Hit:
    """With its lines."""
    seen: tuple[Part, ...] = ("pictures",) if is_seen else ()
    return replace(
        hit,
        found_by=(*found.parts, *seen),
        words=found.lines,
        metadata={**hit.metadata, "word_score": found.strength},
    )


def first_existing(paths: Sequence[str]) -> str:
    """Of the paths of one content the first that is still there, or else the first."""
    if len(paths) == 1:
        return paths[0]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _metadata(
    snapshot: Snapshot, row: int, more: Sequence[int], copies: Sequence[int], shown: str
) -> dict[str, Any]:
    numbers, files = snapshot.columns["file_number"], snapshot.files
    file = int(numbers[row])
    start, end = snapshot.span(row)
    metadata: dict[str, Any] = {
        "clip_start": start,
        "clip_end": end,
        "width": files.widths[file],
        "height": files.heights[file],
        "modified": float(files.modified[file]),
        "tags": files.tags[file],
    }
    if len(files.paths[file]) > 1:
        metadata["also_at"] = [path for path in files.paths[file] if path != shown]
    if more:
        metadata["more"] = [snapshot.clip_id(other) for other in more]
    if copies:
        shown_copies = (first_existing(files.paths[int(numbers[other])]) for other in copies)
        metadata["copies"] = list(dict.fromkeys(shown_copies))
    return metadata


@torch.no_grad()
def rank_captions(
    method: Method,
    video: VideoFeatures,
    seconds: Tensor,
    span: tuple[float, float],
    captions: Sequence[str],
    k: int,
) -> list[CaptionHit]:
    """The k captions with the highest exact score for one video."""
    sentences = clean_queries(captions)
    scores, frame_scores = [], []
    for start in range(0, len(sentences), CAPTIONS_AT_ONCE):
        text = encode_sentences(method, sentences[start : start + CAPTIONS_AT_ONCE])
        scores.append(score_all(method, text, video)[:, 0])
        frame_scores.append(method.frame_scores(text, video)[:, 0])
    frames = torch.cat(frame_scores).cpu()
    values, order = torch.cat(scores).cpu().sort(descending=True, stable=True)
    return [
        CaptionHit(
            rank=rank,
            caption=captions[number],
            score=score,
            moment=find_moment(frames[number], seconds.cpu(), *span),
        )
        for rank, (score, number) in enumerate(
            zip(values[:k].tolist(), order[:k].tolist(), strict=True), 1
        )
    ]


@torch.no_grad()
def explain_clip(snapshot: Snapshot, query: Query, row: int, clips: StoredClips) -> Explanation:
    """The scores of the one clip in ``clips``."""
    frames, seconds = query.frame_scores(clips)[0].cpu(), clips.seconds[0].cpu()
    vector, rows = snapshot.vectors[int(snapshot.columns["slot"][row])], np.array([row])
    taken = levels_taken(snapshot, rows, query.coarse_share)
    pairs = sorted(zip(seconds.tolist(), frames.tolist(), strict=True))
    return Explanation(
        clip_id=snapshot.clip_id(row),
        score=float(exact_scores(snapshot, query, rows, clips)[0]),
        coarse_score=float(vector @ query.coarse.float().cpu())
        - (0.0 if taken is None else float(taken[0])),
        moment=find_moment(frames, seconds, *snapshot.span(row)),
        frames=tuple(pair for pair in pairs if pair[1] != float("-inf")),
    )
