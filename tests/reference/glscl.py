"""GLSCL's global score and losses as loops; its decoder is PyTorch's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, cosine, dot, softmax


def global_score(sentence: Vector, frames: Sequence[Vector], temperature: float) -> float:
    shares = softmax([dot(sentence, frame) / temperature for frame in frames])
    pooled = sum(share * frame for share, frame in zip(shares, frames, strict=True))
    return cosine(sentence, pooled)


def local_score(text: Sequence[Vector], video: Sequence[Vector]) -> float:
    return sum(dot(a, b) for a, b in zip(text, video, strict=True)) / len(text)


def consistency(
    text: Sequence[Sequence[Vector]],
    video: Sequence[Sequence[Vector]],
    *,
    weight: float,
    target: float,
) -> float:
    """Means over the batch, and the agreement of matched concepts."""
    count = len(text[0])
    of_text = np.array([list(row) for row in text]).mean(axis=0)
    of_video = np.array([list(row) for row in video]).mean(axis=0)
    total = float(((of_text - of_video) ** 2).mean())
    for n in range(count):
        agreement = sum(dot(a[n], b[n]) for a, b in zip(text, video, strict=True)) / count
        total += weight * (agreement - target) ** 2
    return total


def diversity(video: Sequence[Sequence[Vector]], *, margin: float) -> float:
    """Margin ranking of the mean similarity of concepts, by rows and by columns."""
    count = len(video[0])
    mean = [
        [sum(dot(row[i], row[j]) for row in video) / len(video) for j in range(count)]
        for i in range(count)
    ]
    total = 0.0
    for i in range(count):
        for j in range(count):
            if i != j:
                total += max(0.0, margin + mean[i][j] - mean[i][i])
                total += max(0.0, margin + mean[i][j] - mean[j][j])
    return total / (count * (count - 1))
