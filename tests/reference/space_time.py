"""A tower over space and time as one dense sequence under masks."""

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


def tower(
    frames: Sequence[Sequence[Vector]],
    vision: Weights,
    added: Weights,
    *,
    num_heads: int,
    num_layers: int,
) -> list[Vector]:
    """Last hidden states, the class token first, from patch embeddings of the real frames."""
    place, count = vision["positional_embedding"], len(frames[0])
    tokens = [vision["class_embedding"] + place[0]]
    for index, frame in enumerate(frames):
        for row, patch in enumerate(frame):
            token = patch + place[1 + row]
            if "frame_positions" in added:
                token = token + added["frame_positions"][index]
            tokens.append(token)
    states = [layer_norm(token, part(vision, "ln_pre")) for token in tokens]

    def in_space(query: int, key: int) -> bool:
        return query == 0 or key == 0 or (query - 1) // count == (key - 1) // count

    def in_time(query: int, key: int) -> bool:
        return query == 0 or key == 0 or (query - 1) % count == (key - 1) % count

    for layer in range(num_layers):
        block = part(vision, f"blocks.{layer}")
        time = part(added, f"time.{layer}")
        seen = states
        if time:
            normed = [layer_norm(state, part(time, "norm")) for state in states]
            told = attention(normed, part(time, "attention"), num_heads, in_time)
            seen = [state + row for state, row in zip(states, told, strict=True)]
        normed = [layer_norm(state, part(block, "ln_1")) for state in seen]
        mixed = attention(normed, part(block, "attention"), num_heads, in_space)
        states = [state + row for state, row in zip(states, mixed, strict=True)]
        states = [
            state
            + linear(
                quick_gelu(linear(layer_norm(state, part(block, "ln_2")), part(block, "mlp.up"))),
                part(block, "mlp.down"),
            )
            for state in states
        ]
    return states


def project(state: Vector, vision: Weights) -> Vector:
    return linear(layer_norm(state, part(vision, "ln_post")), part(vision, "projection"))
