"""Evaluation during and after training: every rank encodes its share and scores its share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from eaglenet.data.sources import Source, few_videos
from eaglenet.errors import UsageError
from eaglenet.evaluation.evaluate import EvaluationResult, evaluate
from eaglenet.evaluation.options import EvaluationOptions
from eaglenet.evaluation.ranking import Share
from eaglenet.methods.base import Method
from eaglenet.progress import Progress, tell
from eaglenet.training.distributed import World, gather_uneven, sum_over_ranks
from eaglenet.training.epochs import index_chunks


def evaluate_source(
    method: Method,
    source: Source,
    world: World,
    options: EvaluationOptions | None = None,
    *,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Metrics of ``method`` on a split; the same on one process and on several.

    With ``options.scores_file``, ``FILE.videos.npy`` beside it takes the video of each text.
    """
    options = options or EvaluationOptions()
    if world.size > 1 and options.scores_file is not None:
        raise UsageError("scores are written by one process: evaluate without torchrun for that")
    share = None
    if world.size > 1:
        share = Share(
            world.rank,
            world.size,
            total=lambda value: sum_over_ranks(value, world),
            gather=lambda features, count: gather_uneven(features, count, world),
        )
    text_chunks = index_chunks(source.num_texts, options.text_batch, world)
    video_chunks = index_chunks(source.num_videos, options.video_batch, world)
    result = evaluate(
        method,
        fetched(source.texts, text_chunks, "encoding texts", progress),
        fetched(source.videos, video_chunks, "encoding videos", progress),
        source.video_of_text.cpu(),
        source.protocol,
        options,
        device=world.device,
        missing_videos=source.missing,
        share=share,
        progress=progress,
    )
    if options.scores_file is not None:
        np.save(video_file(options.scores_file), source.video_of_text.cpu().numpy())
    return dataclasses.replace(result, notes=(*result.notes, *few_videos(source.num_videos)))


def fetched(
    fetch: Callable[[Tensor], Any],
    chunks: Sequence[Tensor],
    title: str,
    progress: Progress | None,
) -> Iterator[Any]:
    """Batches one after another, each counted when the next is asked for."""
    total = sum(len(rows) for rows in chunks)
    done = 0
    for rows in chunks:
        yield fetch(rows)
        done += len(rows)
        tell(progress, title, done, total)


def video_file(scores_file: Path) -> Path:
    """Where the video of each text stands, for `eaglenet metrics --video-of-text`."""
    return scores_file.with_suffix(".videos.npy")
