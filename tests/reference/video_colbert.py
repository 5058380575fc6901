"""Video-ColBERT as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference.arithmetic import Vector, Weights, cosine, part, transformer


def mean_max(words: Sequence[Vector], tokens: Sequence[Vector]) -> float:
    return sum(max(cosine(word, token) for token in tokens) for word in words) / len(words)


def video_tokens(
    frames: Sequence[Vector], weights: Weights, *, num_heads: int, num_layers: int
) -> list[Vector]:
    """Real frames and expansion tokens after the temporal transformer, plus themselves."""
    stack = part(weights, "stack")
    plain = [*frames, *weights["expansion"]]
    placed = [frame + stack["positions"][place] for place, frame in enumerate(frames)]
    states = transformer(
        [*placed, *weights["expansion"]], stack, num_heads=num_heads, num_layers=num_layers
    )
    return [state + token for state, token in zip(states, plain, strict=True)]


def sigmoid_loss(scores: Sequence[Sequence[float]], temperature: float, bias: float) -> float:
    """Mean over texts of the summed -log sigmoid of signed logits; the diagonal is right."""
    total = 0.0
    for row, line in enumerate(scores):
        for column, score in enumerate(line):
            sign = 1 if row == column else -1
            total += math.log1p(math.exp(-sign * (math.exp(temperature) * score + bias)))
    return total / len(scores)
