"""TS2-Net's selection, temporal tokens and similarity as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    cosine,
    gelu,
    layer_norm,
    linear,
    part,
    softmax,
    temporal,
)


def token_scores(tokens: Sequence[Vector], weights: Weights) -> list[float]:
    """tanh scores of the patches (positions 1 and up) of one frame."""
    local = [
        gelu(linear(layer_norm(token, part(weights, "norm")), part(weights, "local.0")))
        for token in tokens
    ]
    scores = []
    for state in local[1:]:
        joined = np.concatenate([state, local[0]])
        hidden = gelu(linear(joined, part(weights, "scorer.0")))
        scores.append(math.tanh(linear(hidden, part(weights, "scorer.2"))[0]))
    return scores


def select(tokens: Sequence[Vector], weights: Weights, count: int) -> list[Vector]:
    """The class token, then the best patches in the order of their positions."""
    scores = token_scores(tokens, weights)
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[:count]
    return [tokens[0], *[tokens[1 + place] for place in sorted(best)]]


def frame_tokens(
    video: Sequence[Sequence[Vector]],
    weights: Weights,
    *,
    count: int,
    num_heads: int,
    num_layers: int,
) -> list[Vector]:
    """g_m: what stands at the class token of each real frame after the temporal transformer."""
    sequence = [
        token for frame in video for token in select(frame, part(weights, "selection"), count)
    ]
    states = temporal(
        sequence, part(weights, "temporal.stack"), num_heads=num_heads, num_layers=num_layers
    )
    return states[:: count + 1]


def similarity(text: Vector, frames: Sequence[Vector]) -> float:
    """Frame cosines under a softmax of 4 times themselves over their length."""
    cosines = [cosine(text, frame) for frame in frames]
    length = math.sqrt(sum(value**2 for value in cosines))
    shares = softmax([4 * value / length for value in cosines])
    return sum(share * value for share, value in zip(shares, cosines, strict=True))
