"""Fixed-size pieces of a score matrix, and a running top-k over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TopK:
    """The best videos of each text, best first."""

    scores: Tensor
    """``[texts, k]`` float32."""
    videos: Tensor
    """``[texts, k]`` int64 column numbers."""


def spans(total: int, size: int) -> Iterator[slice]:
    """Cut ``range(total)`` into slices of at most ``size``."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


class RunningTopK:
    """Keeps the k best columns of a row block while its tiles stream by."""

    def __init__(self, k: int, start: TopK | None = None) -> None:
        self.k = k
        self._scores = None if start is None else start.scores
        self._videos = None if start is None else start.videos

    def add(self, scores: Tensor, first_video: int) -> None:
        """Take a tile ``[texts, videos]`` whose first column is video ``first_video``."""
        columns = torch.arange(
            first_video, first_video + scores.shape[1], device=scores.device
        ).expand(scores.shape[0], -1)
        if self._scores is not None and self._videos is not None:
            scores = torch.cat([self._scores, scores], dim=1)
            columns = torch.cat([self._videos, columns], dim=1)
        best = scores.topk(min(self.k, scores.shape[1]), dim=1)
        self._scores = best.values
        self._videos = columns.gather(1, best.indices)

    def result(self) -> TopK:
        if self._scores is None or self._videos is None:
            raise ValueError("no tile was added")
        return TopK(self._scores, self._videos)
