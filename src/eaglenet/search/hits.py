"""From scores to what a person sees: hits, captions and explanations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eaglenet.errors import StoreError
from eaglenet.methods.base import Method
from eaglenet.scoring import score_all
from eaglenet.search.filters import path_matcher
from eaglenet.search.moments import find_moment
from eaglenet.search.options import SearchOptions
from eaglenet.search.queries import Query, clean_queries, encode_sentences
from eaglenet.search.shortlist import Shortlist
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.types import Hit, Moment, VideoFeatures

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


@dataclass(frozen=True)
class Candidates:
    """A shortlist and the stored features of its clips, in the same order."""

    snapshot: Snapshot
    found: Shortlist
    clips: StoredClips


@torch.no_grad()
def make_hits(candidates: Candidates, query: Query, k: int, options: SearchOptions) -> list[Hit]:
    """The k best candidates. Of a file's places one that matches the filter is shown."""
    snapshot, found, clips = candidates.snapshot, candidates.found, candidates.clips
    if not len(found.rows):
        return []
    scores = query.score(clips).float().cpu() if options.rerank else torch.from_numpy(found.cosines)
    if not scores.isfinite().all():
        raise StoreError(
            f"clips of {snapshot.location} have scores that are no numbers: its features are "
            f"damaged; rebuild them with: eaglenet store repair --store {snapshot.location}"
        )
    # Stable, and the shortlist is sorted: equal scores keep the order of their cosines.
    order = scores.sort(descending=True, stable=True).indices.tolist()
    chosen, more = _group(candidates, order, k, options.group_files)
    frames = query.frame_scores(replace(clips, prepared={})[chosen]).cpu()
    seconds = clips.seconds.cpu()
    matches = path_matcher(options.filters.path)
    hits = []
    for rank, (number, frame_scores) in enumerate(zip(chosen, frames, strict=True), 1):
        row = int(found.rows[number])
        file = int(snapshot.columns["file_number"][row])
        shown = first_existing([path for path in snapshot.files.paths[file] if matches(path)])
        others = [int(found.rows[other]) for other in more.get(number, [])]
        hits.append(
            Hit(
                rank=rank,
                clip_id=snapshot.clip_id(row),
                path=shown,
                score=float(scores[number]),
                coarse_score=float(found.cosines[number]),
                moment=find_moment(frame_scores, seconds[number], *snapshot.span(row)),
                duration=float(snapshot.files.durations[file]),
                metadata=_metadata(snapshot, row, file, others, shown),
            )
        )
    return hits


def first_existing(paths: Sequence[str]) -> str:
    """Of the paths of one content the first that is still there, or else the first."""
    if len(paths) == 1:
        return paths[0]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _metadata(
    snapshot: Snapshot, row: int, file: int, others: list[int], shown: str
) -> dict[str, Any]:
    files = snapshot.files
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
    if others:
        metadata["more"] = [snapshot.clip_id(other) for other in others]
    return metadata


def _group(
    candidates: Candidates, order: list[int], k: int, group_files: bool
) -> tuple[list[int], dict[int, list[int]]]:
    """The first k of ``order``; grouped: the best of each file, and what it stands for."""
    if not group_files:
        return order[:k], {}
    files = candidates.snapshot.columns["file_number"][candidates.found.rows].tolist()
    leader: dict[int, int] = {}
    more: dict[int, list[int]] = {}
    for number in order:
        file = files[number]
        if file in leader:
            more.setdefault(leader[file], []).append(number)
        else:
            leader[file] = number
    return list(leader.values())[:k], more


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
    vector = snapshot.vectors[int(snapshot.columns["slot"][row])]
    pairs = sorted(zip(seconds.tolist(), frames.tolist(), strict=True))
    return Explanation(
        clip_id=snapshot.clip_id(row),
        score=float(query.score(clips)[0]),
        coarse_score=float(vector @ query.coarse.float().cpu()),
        moment=find_moment(frames, seconds, *snapshot.span(row)),
        frames=tuple(pair for pair in pairs if pair[1] != float("-inf")),
    )
