"""CLIP4Clip as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    dot,
    layer_norm,
    linear,
    part,
    quick_gelu,
    temporal,
    transformer,
    unit,
)


def loose_similarity(text: Vector, frames: Sequence[Vector]) -> float:
    """cos of the text and the mean of unit frames."""
    mean = sum(unit(frame) for frame in frames) / len(frames)
    return dot(unit(text), unit(mean))


def sequence_lstm(frames: Sequence[Vector], weights: Weights) -> list[Vector]:
    """One LSTM layer step by step, plus the frames."""
    dim = len(frames[0])
    hidden, cell = np.zeros(dim), np.zeros(dim)
    outputs = []
    for frame in frames:
        gates = np.array(
            [
                dot(weights["lstm.weight_ih_l0"][row], frame)
                + weights["lstm.bias_ih_l0"][row]
                + dot(weights["lstm.weight_hh_l0"][row], hidden)
                + weights["lstm.bias_hh_l0"][row]
                for row in range(4 * dim)
            ]
        )
        take, forget, new, give = np.split(gates, 4)
        sigmoid = np.vectorize(lambda value: 1 / (1 + math.exp(-value)))
        cell = sigmoid(forget) * cell + sigmoid(take) * np.tanh(new)
        hidden = sigmoid(give) * np.tanh(cell)
        outputs.append(hidden + frame)
    return outputs


def sequence_transformer(
    frames: Sequence[Vector], weights: Weights, *, num_heads: int, num_layers: int
) -> list[Vector]:
    return temporal(frames, part(weights, "stack"), num_heads=num_heads, num_layers=num_layers)


def tight_similarity(
    text: Vector, frames: Sequence[Vector], weights: Weights, *, num_heads: int, num_layers: int
) -> float:
    """The logit of one pair's cross encoder."""
    stack = part(weights, "stack")
    placed = [token + stack["positions"][place] for place, token in enumerate([text, *frames])]
    first = transformer(placed, stack, num_heads=num_heads, num_layers=num_layers)[0]
    hidden = linear(layer_norm(first, part(weights, "norm"), 1e-12), part(weights, "hidden"))
    return float(linear(quick_gelu(hidden), part(weights, "output"))[0])
