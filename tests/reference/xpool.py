"""X-Pool as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference.arithmetic import (
    Vector,
    Weights,
    cosine,
    dot,
    layer_norm,
    linear,
    part,
    softmax,
)


def pool(text: Vector, frames: Sequence[Vector], weights: Weights) -> Vector:
    """pool(v | t) over the real frames, without dropout."""
    norm = part(weights, "input_norm")
    query = linear(layer_norm(text, norm), part(weights, "query"))
    keys = [linear(layer_norm(frame, norm), part(weights, "key")) for frame in frames]
    values = [linear(layer_norm(frame, norm), part(weights, "value")) for frame in frames]
    shares = softmax([dot(query, key) / math.sqrt(len(query)) for key in keys])
    mixed = sum(share * value for share, value in zip(shares, values, strict=True))
    state = layer_norm(linear(mixed, part(weights, "output")), part(weights, "attention_norm"))
    state = state + linear(state, part(weights, "feed_forward"))
    return layer_norm(state, part(weights, "output_norm"))


def similarity(text: Vector, frames: Sequence[Vector], weights: Weights) -> float:
    return cosine(text, pool(text, frames, weights))
