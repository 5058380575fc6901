"""MMT as loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    attend,
    gelu,
    layer_norm,
    linear,
    part,
    softmax,
    unit,
)
from reference.experts import gated_embedding

Tokens = Sequence[tuple[Vector, float]]
"""Tokens with their seconds."""


def post_norm(
    tokens: Sequence[Vector], seen: Sequence[bool], weights: Weights, *, heads: int, layers: int
) -> list[list[Vector]]:
    """BERT's blocks, the states after each; tokens that are not seen are no keys."""
    states, found = list(tokens), []
    dim = len(states[0])
    for layer in range(layers):
        block = part(weights, f"blocks.{layer}")
        fused = [linear(state, part(block, "in_projection")) for state in states]
        keys = [row[dim : 2 * dim] for row, visible in zip(fused, seen, strict=True) if visible]
        values = [row[2 * dim :] for row, visible in zip(fused, seen, strict=True) if visible]
        mixed = attend([row[:dim] for row in fused], keys, values, heads)
        states = [
            layer_norm(
                state + linear(row, part(block, "out_projection")),
                part(block, "attention_norm"),
                1e-12,
            )
            for state, row in zip(states, mixed, strict=True)
        ]
        states = [
            layer_norm(
                state + linear(gelu(linear(state, part(block, "up"))), part(block, "down")),
                part(block, "output_norm"),
                1e-12,
            )
            for state in states
        ]
        found.append(states)
    return found


def sequence(
    experts: Mapping[str, Tokens], weights: Weights
) -> tuple[list[Vector], list[bool], list[int]]:
    """CLS, then each expert's summary and real tokens; which are keys; where the summaries are."""
    positions, types = weights["positions"], weights["types"]
    raw, seen, places = [types[0] + positions[0]], [True], []
    for number, name in enumerate(sorted(experts), start=1):
        tokens = experts[name]
        places.append(len(raw))
        summary = np.zeros(len(raw[0]))
        if tokens:
            largest = np.max([token for token, _ in tokens], axis=0)
            summary = unit(linear(largest, part(weights, f"maps.{name}")))
        raw.append(summary + positions[0] + types[number])
        seen.append(bool(tokens))
        for token, seconds in tokens:
            place = min(max(math.floor(seconds + 2), 0), len(positions) - 1)
            projected = unit(linear(token, part(weights, f"maps.{name}")))
            raw.append(projected + positions[place] + types[number])
            seen.append(True)
    return [layer_norm(token, part(weights, "norm"), 1e-12) for token in raw], seen, places


def video_side(
    experts: Mapping[str, Tokens], weights: Weights, *, heads: int, layers: int
) -> list[Vector]:
    """v_e of every expert, of missing ones too."""
    tokens, seen, places = sequence(experts, part(weights, "tokens"))
    last = post_norm(tokens, seen, part(weights, "stack"), heads=heads, layers=layers)[-1]
    return [unit(last[place]) for place in places]


def text_side(sentence: Vector, weights: Weights, count: int) -> tuple[list[Vector], list[float]]:
    """t_e and w_e."""
    heads = [gated_embedding(sentence, part(weights, f"text_heads.{e}")) for e in range(count)]
    return heads, softmax(list(linear(sentence, part(weights, "weigh"))))
