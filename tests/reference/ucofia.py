"""UCoFiA's three similarities as loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, dot, linear, part, softmax, temporal, unit
from reference.ts2net import select


def aggregate(values: Sequence[float], mixing: Vector, temperature: float) -> float:
    """ISA of one vector of similarities."""
    shares = softmax([value / temperature for value in values])
    mixed = [
        sum(shares[i] * float(mixing[i, j]) for i in range(len(values))) for j in range(len(values))
    ]
    weights = softmax([value / temperature for value in mixed])
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def similarity(
    sentence: Vector,
    words: Sequence[Vector],
    video: Sequence[Sequence[Vector]],
    weights: Weights,
    *,
    count: int,
    num_heads: int,
    num_layers: int,
    temperature: float,
    scale: float,
) -> float:
    """One pair; ``video`` are the tokens of each real frame, class token first."""
    frames = [frame[0] for frame in video]
    states = temporal(
        frames, part(weights, "temporal.stack"), num_heads=num_heads, num_layers=num_layers
    )
    vector = unit(np.mean([unit(state) for state in states], axis=0))
    text = unit(sentence)
    by_video = dot(
        linear(text, part(weights, "sentence_map")), linear(vector, part(weights, "video_map"))
    )
    by_frames = aggregate(
        [dot(text, unit(frame)) for frame in frames], weights["over_frames.mixing"], temperature
    )
    patches = [
        linear(token, part(weights, "patch_map"))
        for frame in video
        for token in select(frame, part(weights, "selection"), count)
    ]
    mapped = [linear(unit(word), part(weights, "word_map")) for word in words]
    matrix = [[dot(word, patch) for patch in patches] for word in mapped]
    of_patches = [
        aggregate([row[k] for row in matrix], weights["over_words.mixing"], temperature)
        for k in range(len(patches))
    ]
    of_words = [aggregate(row, weights["over_patches.mixing"], temperature) for row in matrix]
    first = aggregate(of_patches, weights["last_patches.mixing"], temperature)
    second = aggregate(of_words, weights["last_words.mixing"], temperature)
    return (by_video + by_frames + (first + second) / 2 / scale) / 3
