"""T2VLAD as loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    attend,
    dot,
    layer_norm,
    linear,
    part,
    softmax,
    unit,
)
from reference.experts import gated_embedding, mixture, vlad


def mixed(tokens: Sequence[Vector], weights: Weights, heads: int) -> list[Vector]:
    """One pre-normalised layer and a last normalisation."""
    dim = len(tokens[0])
    fused = [
        linear(layer_norm(token, part(weights, "ln_1")), part(weights, "in_projection"))
        for token in tokens
    ]
    told = attend(
        [row[:dim] for row in fused],
        [row[dim : 2 * dim] for row in fused],
        [row[2 * dim :] for row in fused],
        heads,
    )
    states = [
        token + linear(row, part(weights, "out_projection"))
        for token, row in zip(tokens, told, strict=True)
    ]
    states = [
        state
        + linear(
            np.maximum(linear(layer_norm(state, part(weights, "ln_2")), part(weights, "up")), 0),
            part(weights, "down"),
        )
        for state in states
    ]
    return [layer_norm(state, part(weights, "ln_last")) for state in states]


def similarity(
    words: Sequence[Vector],
    experts: Mapping[str, Sequence[Vector]],
    weights: Weights,
    *,
    heads: int,
    present: Sequence[bool] | None = None,
) -> float:
    """(s_global + s_local) / 2 of one pair; ``present`` where it is not "has a token"."""
    names = sorted(experts)
    mapped = [linear(word, part(weights, "word_map")) for word in words]
    text = vlad(mapped, part(weights, "vlad"), side=0)
    tokens = [
        unit(linear(token, part(weights, f"token_maps.{name}")))
        for name in names
        for token in experts[name]
    ]
    video = vlad(mixed(tokens, part(weights, "mixer"), heads), part(weights, "vlad"), side=1)
    here = present or [bool(experts[name]) for name in names]
    vectors = [
        gated_embedding(np.max(experts[name], axis=0), part(weights, f"video_heads.{name}"))
        if there
        else None
        for name, there in zip(names, here, strict=True)
    ]
    shares = softmax(list(linear(text, part(weights, "weigh"))))
    heads_of_text = [
        gated_embedding(text, part(weights, f"text_heads.{place}")) for place in range(len(names))
    ]
    return (mixture(heads_of_text, shares, vectors) + dot(text, video)) / 2
