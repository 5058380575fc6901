"""Vectors and layers one number at a time, in float64: what the method references are built of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.float64]
Weights = Mapping[str, Vector]


def weights_of(module: nn.Module) -> dict[str, Vector]:
    return {
        name: value.detach().double().numpy().copy() for name, value in module.state_dict().items()
    }


def part(weights: Weights, prefix: str) -> dict[str, Vector]:
    start = prefix + "."
    return {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}


def dot(left: Vector, right: Vector) -> float:
    return sum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def unit(vector: Vector) -> Vector:
    return vector / math.sqrt(dot(vector, vector))


def cosine(left: Vector, right: Vector) -> float:
    return dot(left, right) / math.sqrt(dot(left, left) * dot(right, right))


def softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def linear(vector: Vector, weights: Weights) -> Vector:
    out = np.array([dot(row, vector) for row in weights["weight"]])
    return out + weights["bias"] if "bias" in weights else out


def layer_norm(vector: Vector, weights: Weights, eps: float = 1e-5) -> Vector:
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return (vector - mean) / math.sqrt(variance + eps) * weights["weight"] + weights["bias"]


def quick_gelu(vector: Vector) -> Vector:
    return np.array([value / (1 + math.exp(-1.702 * value)) for value in vector])


def gelu(vector: Vector) -> Vector:
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in vector])


def attend(
    queries: Sequence[Vector], keys: Sequence[Vector], values: Sequence[Vector], num_heads: int
) -> list[Vector]:
    """Multi-head attention of every query over all keys."""
    size = len(queries[0]) // num_heads
    outputs = []
    for query in queries:
        parts = []
        for head in range(num_heads):
            cut = slice(head * size, (head + 1) * size)
            shares = softmax([dot(query[cut], key[cut]) / math.sqrt(size) for key in keys])
            parts.append(
                sum(share * value[cut] for share, value in zip(shares, values, strict=True))
            )
        outputs.append(np.concatenate(parts))
    return outputs


def transformer(
    tokens: Sequence[Vector], weights: Weights, *, num_heads: int, num_layers: int
) -> list[Vector]:
    """The temporal stack over tokens that are all real, positions already added."""
    states = list(tokens)
    for layer in range(num_layers):
        block = part(weights, f"blocks.{layer}")
        normed = [layer_norm(state, part(block, "ln_1"), 1e-12) for state in states]
        fused = [linear(state, part(block, "in_projection")) for state in normed]
        dim = len(states[0])
        mixed = attend(
            [row[:dim] for row in fused],
            [row[dim : 2 * dim] for row in fused],
            [row[2 * dim :] for row in fused],
            num_heads,
        )
        states = [
            state + linear(row, part(block, "out_projection"))
            for state, row in zip(states, mixed, strict=True)
        ]
        states = [
            state
            + linear(
                quick_gelu(
                    linear(layer_norm(state, part(block, "ln_2"), 1e-12), part(block, "expand"))
                ),
                part(block, "contract"),
            )
            for state in states
        ]
    return states


def temporal(
    frames: Sequence[Vector], weights: Weights, *, num_heads: int, num_layers: int
) -> list[Vector]:
    """g = T(f + PE) + f."""
    placed = [frame + weights["positions"][place] for place, frame in enumerate(frames)]
    states = transformer(placed, weights, num_heads=num_heads, num_layers=num_layers)
    return [state + frame for state, frame in zip(states, frames, strict=True)]


def contrastive(scores: Vector, scale: float = 100.0) -> float:
    """Half the cross-entropy of rows plus half of columns; the diagonal is right."""
    total = 0.0
    for matrix in (scores, scores.T):
        rows = [-math.log(softmax(list(scale * row))[place]) for place, row in enumerate(matrix)]
        total += sum(rows) / len(rows) / 2
    return total
