"""Queries and the videos that methods find for them, for figures like 3 to 5 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eaglenet.errors import UsageError
from eaglenet.evaluation.figures import QualitativeExample, Retrieved
from eaglenet.methods.base import Method, evaluating
from eaglenet.scoring import score_all
from eaglenet.types import Clips


@dataclass(frozen=True)
class Gallery:
    """The sentences and videos that all methods of a figure are asked about."""

    sentences: Sequence[str]
    video_ids: Sequence[str]
    video_of_text: Int[Tensor, "texts"]
    clips: Callable[[Tensor], Clips]
    """Frames of the videos with these indices."""


def best_videos(
    method: Method, texts: Iterable[Any], videos: Iterable[Any], *, top_k: int
) -> Int[Tensor, "texts best"]:
    """The ``top_k`` videos of each text, best first, from batches of both."""
    with evaluating(method), torch.no_grad():
        text = [method.encode_text(batch.to(method.device)) for batch in texts]
        video = [method.encode_video(batch.to(method.device)) for batch in videos]
        if not text or not video:
            raise UsageError("no text or no video to choose examples from; check the split")
        joined_text = type(text[0]).concatenate(text)
        joined_video = type(video[0]).concatenate(video)
        count = min(top_k, len(joined_video))
        return score_all(method, joined_text, joined_video, top_k=count).videos.cpu()


def choose_queries(
    best: Mapping[str, Int[Tensor, "texts best"]], video_of_text: Int[Tensor, "texts"], count: int
) -> list[int]:
    """Queries on which the methods disagree, whoever is right; then evenly spaced ones.

    Picked by position alone, one a video, so that no method is favoured.
    """
    right = torch.stack([found[:, 0] == video_of_text for found in best.values()])
    disagree = (right.any(dim=0) & ~right.all(dim=0)).nonzero()[:, 0].tolist()
    step = max(1, len(video_of_text) // max(1, count))
    chosen: list[int] = []
    used: set[int] = set()
    # Spread over the split: neighbours are often of one kind.
    for query in [*_spread(disagree, count), *disagree, *range(0, len(video_of_text), step)]:
        video = int(video_of_text[query])
        if len(chosen) < count and video not in used:
            chosen.append(query)
            used.add(video)
    return chosen


def _spread(queries: Sequence[int], count: int) -> Sequence[int]:
    return queries[:: max(1, len(queries) // max(1, count))]


def make_examples(
    best: Mapping[str, Int[Tensor, "texts best"]], gallery: Gallery, count: int
) -> list[QualitativeExample]:
    """Examples with the frames of every video that is shown."""
    examples = []
    for query in choose_queries(best, gallery.video_of_text, count):
        right = int(gallery.video_of_text[query])
        answers = {}
        for method, found in best.items():
            frames = gallery.clips(found[query]).frames.cpu()
            answers[method] = [
                Retrieved(gallery.video_ids[video], frames[place], video == right)
                for place, video in enumerate(found[query].tolist())
            ]
        examples.append(QualitativeExample(gallery.sentences[query], answers))
    return examples
