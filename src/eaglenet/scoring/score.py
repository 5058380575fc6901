"""``score_all``: every text against every video, tile by tile."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from eaglenet.methods.base import Method
from eaglenet.scoring.tiles import RunningTopK, TopK, spans
from eaglenet.types import TextFeatures, VideoFeatures

Precision = Literal["fp32", "bf16"]


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: Precision = ...,
    tile_texts: int = ...,
    tile_videos: int = ...,
    top_k: None = ...,
) -> Tensor: ...


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: Precision = ...,
    tile_texts: int = ...,
    tile_videos: int = ...,
    top_k: int,
) -> TopK: ...


@torch.no_grad()
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = "auto",
    precision: Precision = "fp32",
    tile_texts: int = 32,
    tile_videos: int = 64,
    top_k: int | None = None,
) -> Tensor | TopK:
    """Score all texts against all videos; a tile is all that is in memory beside the result."""
    rows = []
    best = []
    for text_span in spans(len(text), tile_texts):
        tiles = []
        running = RunningTopK(top_k) if top_k is not None else None
        for video_span in spans(len(video), tile_videos):
            tile = method.score(text[text_span], video[video_span]).float()
            if running is not None:
                running.add(tile, video_span.start)
            else:
                tiles.append(tile)
        if running is not None:
            best.append(running.result())
        else:
            rows.append(torch.cat(tiles, dim=1))
    if top_k is not None:
        return TopK(
            torch.cat([part.scores for part in best]), torch.cat([part.videos for part in best])
        )
    return torch.cat(rows)
