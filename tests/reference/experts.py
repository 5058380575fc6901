"""What the methods over experts are built of, as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, dot, linear, part, softmax, unit


def batch_norm(vector: Vector, weights: Weights) -> Vector:
    """With running statistics, as in evaluation."""
    return np.array(
        [
            (value - mean) / math.sqrt(variance + 1e-5) * scale + shift
            for value, mean, variance, scale, shift in zip(
                vector,
                weights["running_mean"],
                weights["running_var"],
                weights["weight"],
                weights["bias"],
                strict=True,
            )
        ]
    )


def sigmoid(vector: Vector) -> Vector:
    return np.array([1 / (1 + math.exp(-value)) for value in vector])


def mish(vector: Vector) -> Vector:
    return np.array([value * math.tanh(math.log1p(math.exp(value))) for value in vector])


def gated_embedding(vector: Vector, weights: Weights) -> Vector:
    """unit(u o sigmoid(BN(W' u))), u = W x + c."""
    embedded = linear(vector, part(weights, "embed"))
    gate = sigmoid(batch_norm(linear(embedded, part(weights, "gate")), part(weights, "norm")))
    return unit(embedded * gate)


def vlad(tokens: Sequence[Vector], weights: Weights, *, side: int = 0) -> Vector:
    """Residuals of the real tokens from the centres, each centre and the whole of unit length."""
    centres = weights["centres"]
    sums = [np.zeros(len(centres[0])) for _ in centres]
    for token in tokens:
        logits = np.array([dot(token, column) for column in weights["assign"].T])
        shares = softmax(list(batch_norm(logits, part(weights, f"norms.{side}"))))
        for number, centre in enumerate(centres):
            sums[number] = sums[number] + shares[number] * (token - centre)
    return unit(np.concatenate([unit(total) for total in sums]))


def mixture(
    texts: Sequence[Vector], weights: Sequence[float], videos: Sequence[Vector | None]
) -> float:
    """sum w a <t, v> / sum w a; None is an expert that the video misses."""
    total = above = 0.0
    for text, weight, video in zip(texts, weights, videos, strict=True):
        if video is not None:
            above += weight * dot(text, video)
            total += weight
    return above / total if total else 0.0


def margin(scores: Vector, size: float, *, hardest: bool = False) -> float:
    """Hinge terms with the diagonal right: their mean, or the largest of each row and column."""
    count = len(scores)
    terms, rows, columns = [], [], []
    for i in range(count):
        by_row = [max(size + scores[i][j] - scores[i][i], 0) for j in range(count) if j != i]
        by_column = [max(size + scores[j][i] - scores[i][i], 0) for j in range(count) if j != i]
        terms += by_row + by_column
        rows.append(max(by_row))
        columns.append(max(by_column))
    if hardest:
        return sum(rows) / count + sum(columns) / count
    return sum(terms) / len(terms)
