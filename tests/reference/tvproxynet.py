"""TV-ProxyNet's text proxies as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    attend,
    cosine,
    layer_norm,
    linear,
    part,
    unit,
)


def leader(text: Vector, tokens: Sequence[Vector], weights: Weights, num_layers: int) -> Vector:
    """The decoder's reading of one video's proxies by one unit text."""
    state = text
    for layer in range(num_layers):
        own = part(weights, f"layers.{layer}")
        state = layer_norm(state, part(own, "query_norm"))
        memory = [layer_norm(token, part(own, "memory_norm")) for token in tokens]
        mixed = attend(
            [linear(state, part(own, "query"))],
            [linear(token, part(own, "key")) for token in memory],
            [linear(token, part(own, "value")) for token in memory],
            num_heads=1,
        )[0]
        state = layer_norm(state + linear(mixed, part(own, "output")), part(own, "attention_norm"))
        hidden = np.maximum(linear(state, part(own, "network.0")), 0)
        state = layer_norm(state + linear(hidden, part(own, "network.3")), part(own, "output_norm"))
    return layer_norm(state, part(weights, "norm"))


def text_proxy(
    text: Vector,
    tokens: Sequence[Vector],
    weights: Weights,
    *,
    num_layers: int,
    num_read: int,
    text_sign: float,
    leader_sign: float,
) -> Vector:
    """pi = t + rho * unit(delta t - eta c), with the dash of whichever form the weights have.

    The decoder and the linear dash read the first ``num_read`` proxies, theta all of them.
    """
    text = unit(text)
    read = leader(text, tokens[:num_read], part(weights, "leader"), num_layers)
    direction = unit(text_sign * text - leader_sign * read)
    cosines = np.array([cosine(text, token) for token in tokens])
    if "theta" in weights:
        return text + math.exp(float(weights["theta"]) * cosines.mean()) * direction
    return text + np.exp(linear(cosines[:num_read], part(weights, "dash"))) * direction
