"""T-MASS as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, cosine, part, unit
from reference.xpool import pool


def radius(text: Vector, frames: Sequence[Vector], weights: Weights) -> Vector:
    """r = exp(W cos(t, F) + b), one number at a time."""
    matrix, bias = weights["stochastic.log_radius.weight"], weights["stochastic.log_radius.bias"]
    cosines = [cosine(text, frame) for frame in frames]
    return np.array(
        [
            math.exp(sum(matrix[row][place] * value for place, value in enumerate(cosines)) + b)
            for row, b in enumerate(bias)
        ]
    )


def similarity(
    text: Vector, frames: Sequence[Vector], weights: Weights, noise: Sequence[Vector]
) -> float:
    """Best draw of the pair's own region against the video as this text pools it."""
    size = radius(text, frames, weights)
    pooled = pool(text, frames, part(weights, "pooling"))
    return max(cosine(text + size * draw, pooled) for draw in noise)


def training_scores(
    texts: Sequence[Vector],
    videos: Sequence[Sequence[Vector]],
    weights: Weights,
    noise: Sequence[Vector],
) -> tuple[Vector, Vector]:
    """Scores of the drawn and of the support texts; text i belongs to video i."""
    pooling = part(weights, "pooling")
    pooled = [[pool(text, frames, pooling) for frames in videos] for text in texts]
    drawn_scores, support_scores = [], []
    for row, text in enumerate(texts):
        size = radius(text, videos[row], weights)
        drawn = text + size * noise[row]
        average = sum(pooled[other][row] for other in range(len(texts))) / len(texts)
        support = text + unit(average - text) * size
        drawn_scores.append([cosine(drawn, video) for video in pooled[row]])
        support_scores.append([cosine(support, video) for video in pooled[row]])
    return np.array(drawn_scores), np.array(support_scores)
