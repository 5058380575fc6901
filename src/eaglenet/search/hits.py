"""From scores to results: hits, ranked captions and explanations."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.core.hits import Hit, Moment
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.model import ClipFeatures, SearchModel
from eaglenet.search.moments import find_moment
from eaglenet.search.options import SearchOptions, path_matcher
from eaglenet.search.query import clean_texts
from eaglenet.search.reranking import EncodedQuery
from eaglenet.search.selection import (
    Candidates,
    ClipDetails,
    select,
    select_transcripts,
)
from eaglenet.search.shortlist import hubness_offsets
from eaglenet.search.transcripts import ClipTranscript, fuse_scores
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot

CAPTION_BATCH = 256


@dataclass(frozen=True)
class SearchResult:
    """A query and its hits."""

    query: AnyQuery
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
    """The scores of one clip for a query."""

    clip_id: str
    score: float
    coarse_score: float
    moment: Moment
    frames: tuple[tuple[float, float], ...]
    """Time in the file, in seconds, and score of each frame."""


def make_hits(
    candidates: Candidates, query: EncodedQuery, k: int, options: SearchOptions
) -> list[Hit]:
    """Rank candidates and return the k best as hits.

    With transcripts, :func:`fuse_scores` ranks. ``matched_in`` of a hit then has ``visual`` if its
    frames alone would have ranked it among the k best.
    """
    snapshot, shortlist = candidates.snapshot, candidates.shortlist
    if not len(shortlist.rows):
        return []
    scores = shortlist.cosines
    if options.rerank:
        scores = exact_scores(snapshot, query, shortlist.rows, candidates.features)
    if not np.isfinite(scores).all():
        raise StoreError(
            f"features of {snapshot.location} are damaged: scores are not numbers; rebuild them "
            f"with: eaglenet store repair --store {shell_quote(snapshot.location)}"
        )
    # Stable, and the shortlist is sorted: equal scores keep the order of their cosines.
    order = np.argsort(-scores, kind="stable").tolist()
    visual_rows = {int(shortlist.rows[number]) for number in order[:k]}
    ranked = scores.tolist()
    if candidates.transcripts:
        strengths = {row: clip.strength for row, clip in candidates.transcripts.items()}
        fused = fuse_scores([int(shortlist.rows[number]) for number in order], strengths)
        ranked = [fused[int(row)] for row in shortlist.rows]
        order.sort(key=lambda number: -ranked[number])
    hits = []
    for rank, selected in enumerate(select(candidates, query, order, k, options), 1):
        number = selected.number
        row = int(shortlist.rows[number])
        more, copies = (
            shortlist.rows[others].tolist() for others in (selected.more, selected.copies)
        )
        hit = make_hit(
            candidates.details, row, options, rank, ranked[number], selected.moment, more, copies
        )
        hit = replace(hit, coarse_score=float(shortlist.cosines[number]))
        if row not in candidates.transcripts:
            hit = replace(hit, confidence=candidates.confidences.get(row))
        if candidates.transcripts:
            visual_score = {"visual_score": float(scores[number])}
            hit = replace(hit, metadata={**hit.metadata, **visual_score})
        if row in candidates.transcripts:
            hit = _add_transcript(hit, candidates.transcripts[row], is_visual=row in visual_rows)
        hits.append(hit)
    return hits


def exact_scores(
    snapshot: Snapshot, query: EncodedQuery, rows: NDArray[np.int64], clips: ClipFeatures
) -> NDArray[np.float32]:
    """Exact scores of the clips in these rows, minus their hubness offsets."""
    scores = query.score(clips)
    offsets = hubness_offsets(snapshot, rows, query.exact_hubness_weight)
    return scores if offsets is None else (scores - offsets).astype(np.float32)


def make_transcript_hits(
    snapshot: Snapshot, clips: Sequence[ClipTranscript], k: int, options: SearchOptions
) -> list[Hit]:
    """Return the k best clips by their transcripts alone; ``coarse_score`` is 0."""
    hits = []
    details = ClipDetails(snapshot, [each.clip for each in clips])
    for rank, selected in enumerate(select_transcripts(details, clips, k, options), 1):
        clip = selected.clip
        hit = make_hit(
            details, clip.row, options, rank, clip.strength, selected.moment, selected.more
        )
        hits.append(_add_transcript(hit, clip, is_visual=False))
    return hits


def make_hit(
    details: ClipDetails,
    row: int,
    options: SearchOptions,
    rank: int,
    score: float,
    moment: Moment,
    more: Sequence[int],
    copies: Sequence[int] = (),
) -> Hit:
    """``more`` and ``copies`` are rows of clips that the hit represents."""
    paths = details.files.paths[details.file(row)]
    matches = path_matcher(options.filters.path)
    path = first_existing([path for path in paths if matches(path)] or paths)
    return Hit(
        rank=rank,
        clip_id=details.clip(row).id,
        path=path,
        score=float(score),
        coarse_score=0.0,
        moment=moment,
        duration=details.duration(row),
        metadata=_metadata(details, row, more, copies, path),
    )


def _add_transcript(hit: Hit, clip: ClipTranscript, *, is_visual: bool) -> Hit:
    return replace(
        hit,
        matched_in=(*clip.modalities, "visual") if is_visual else clip.modalities,
        transcript=clip.lines,
        metadata={**hit.metadata, "transcript_score": clip.strength},
    )


def first_existing(paths: Sequence[str]) -> str:
    """Return the first path that exists, or else the first one."""
    if len(paths) == 1:
        return paths[0]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _metadata(
    details: ClipDetails, row: int, more: Sequence[int], copies: Sequence[int], hit_path: str
) -> dict[str, Any]:
    clip, files, file = details.clip(row), details.files, details.file(row)
    metadata: dict[str, Any] = {
        "clip_start": clip.start,
        "clip_end": clip.end,
        "width": files.widths[file],
        "height": files.heights[file],
        "modified": float(files.modified[file]),
        "tags": files.tags[file],
        **recording_of(files, file),
    }
    from_keyframes = details.snapshot.from_keyframes
    if from_keyframes is not None and from_keyframes[row]:
        metadata["from_keyframes"] = True
    if len(files.paths[file]) > 1:
        metadata["also_at"] = [path for path in files.paths[file] if path != hit_path]
    if more:
        metadata["more"] = [details.clip(other).id for other in more]
    if copies:
        copy_paths = (first_existing(files.paths[details.file(other)]) for other in copies)
        metadata["copies"] = list(dict.fromkeys(copy_paths))
    return metadata


def recording_of(files: FileTable, number: int) -> dict[str, Any]:
    """When, where and with what a file was recorded, and its damage; None and empty: unknown."""
    values = (files.recorded[number], files.latitudes[number], files.longitudes[number])
    recorded, latitude, longitude = (
        None if math.isnan(value) else float(value) for value in values
    )
    return {
        "recorded": recorded,
        "latitude": latitude,
        "longitude": longitude,
        "camera": files.cameras[number] or "",
        "damage": files.damage.get(number, ""),
    }


def rank_captions(
    model: SearchModel,
    video: ClipFeatures,
    span: tuple[float, float],
    captions: Sequence[str],
    k: int,
) -> list[CaptionHit]:
    """Return the k captions with the highest exact score for one video."""
    texts = clean_texts(captions)
    scores, frame_scores = [], []
    for start in range(0, len(texts), CAPTION_BATCH):
        encoded = model.encode_texts(texts[start : start + CAPTION_BATCH])
        scores.append(model.score(encoded, video)[:, 0])
        frame_scores.append(model.frame_scores(encoded, video)[:, 0])
    values, frames = np.concatenate(scores), np.concatenate(frame_scores)
    order = np.argsort(-values, kind="stable")[:k].tolist()
    return [
        CaptionHit(
            rank=rank,
            caption=captions[number],
            score=float(values[number]),
            moment=find_moment(frames[number].tolist(), video.seconds[0].tolist(), span),
        )
        for rank, number in enumerate(order, 1)
    ]


def explain_clip(
    snapshot: Snapshot, query: EncodedQuery, row: int, features: ClipFeatures
) -> Explanation:
    """Explain the score of the clip in ``row``, whose features are given."""
    (clip,), rows = snapshot.clips([row]), np.array([row])
    frames, seconds = query.frame_scores(features)[0], features.seconds[0]
    offsets = hubness_offsets(snapshot, rows, query.hubness_weight)
    cosine = float(snapshot.vectors_at(rows)[0] @ query.vector)
    pairs = sorted(zip(seconds.tolist(), frames.tolist(), strict=True))
    return Explanation(
        clip_id=clip.id,
        score=float(exact_scores(snapshot, query, rows, features)[0]),
        coarse_score=cosine - (0.0 if offsets is None else float(offsets[0])),
        moment=find_moment(frames.tolist(), seconds.tolist(), (clip.start, clip.end)),
        frames=tuple(pair for pair in pairs if pair[1] != float("-inf")),
    )
