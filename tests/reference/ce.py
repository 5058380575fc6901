"""CE as loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, linear, part, softmax, unit
from reference.experts import batch_norm, gated_embedding, mish, sigmoid, vlad


def text_side(
    words: Sequence[Vector], weights: Weights, count: int
) -> tuple[list[Vector], list[float]]:
    """t_e and w_e."""
    sentence = vlad(words, part(weights, "text_vlad"))
    heads = [gated_embedding(sentence, part(weights, f"text_heads.{e}")) for e in range(count)]
    return heads, softmax(list(linear(sentence, part(weights, "weigh"))))


def pair(left: Vector, right: Vector, weights: Weights) -> Vector:
    """g(x, y)."""
    hidden = linear(np.concatenate([left, right]), part(weights, "first"))
    hidden = mish(batch_norm(hidden, part(weights, "first_norm")))
    hidden = linear(hidden, part(weights, "second"))
    hidden = mish(batch_norm(hidden, part(weights, "second_norm")))
    return linear(hidden, part(weights, "last"))


def video_side(
    experts: Mapping[str, Sequence[Vector]],
    weights: Weights,
    centres: Mapping[str, int],
    *,
    sequential: bool,
) -> list[Vector | None]:
    """v_e of each expert in alphabetical order; None where it has no token."""
    states: list[Vector | None] = []
    for name in sorted(experts):
        tokens = experts[name]
        if not tokens:
            states.append(None)
            continue
        if name in centres:
            reduced = vlad(tokens, part(weights, f"vlads.{name}"))
        else:
            reduced = sum(tokens) / len(tokens)
        states.append(unit(linear(reduced, part(weights, f"maps.{name}"))))
    gate = part(weights, "gate")
    gated: list[Vector | None] = []
    for place, state in enumerate(states):
        if state is None:
            gated.append(None)
            continue
        told = [pair(state, other, part(gate, "pair")) for other in states if other is not None]
        mean = sum(told) / len(told)
        own = linear(state, part(gate, f"maps.{place}"))
        opened = sigmoid(
            batch_norm(mean, part(gate, f"pair_norms.{place}"))
            + batch_norm(own, part(gate, f"own_norms.{place}"))
        )
        gated.append(unit(state * opened))
        if sequential:
            states[place] = gated[-1]
    return gated
