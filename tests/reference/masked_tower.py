"""What towers over one dense sequence share: attention under a mask, and the rest of a block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, dot, layer_norm, linear, part, quick_gelu, softmax

Sees = Callable[[int, int], bool]


def attention(
    tokens: Sequence[Vector], weights: Weights, num_heads: int, sees: Sees
) -> list[Vector]:
    """Multi-head attention of every token over those that it sees."""
    fused = [linear(token, part(weights, "qkv")) for token in tokens]
    dim = len(tokens[0])
    size = dim // num_heads
    found = []
    for query, row in enumerate(fused):
        seen = [key for key in range(len(fused)) if sees(query, key)]
        parts = []
        for head in range(num_heads):
            start = head * size
            logits = [
                dot(row[start : start + size], fused[key][dim + start : dim + start + size])
                / math.sqrt(size)
                for key in seen
            ]
            parts.append(
                sum(
                    share * fused[key][2 * dim + start : 2 * dim + start + size]
                    for share, key in zip(softmax(logits), seen, strict=True)
                )
            )
        found.append(linear(np.concatenate(parts), part(weights, "out")))
    return found


def feed_forward(states: Sequence[Vector], block: Weights) -> list[Vector]:
    """The second half of a block: each state and what its two layers add to it."""
    return [
        state
        + linear(
            quick_gelu(linear(layer_norm(state, part(block, "ln_2")), part(block, "mlp.up"))),
            part(block, "mlp.down"),
        )
        for state in states
    ]


def project(state: Vector, vision: Weights) -> Vector:
    """A last state in the joint space."""
    return linear(layer_norm(state, part(vision, "ln_post")), part(vision, "projection"))
