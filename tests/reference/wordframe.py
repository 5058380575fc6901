"""WordFrame as loops; its interaction is DRL's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference import drl
from reference.arithmetic import Vector, Weights, cosine, part, unit


def similarity(
    sentence: Vector,
    words: Sequence[Vector],
    frames: Sequence[Vector],
    tokens: Sequence[Vector],
    weights: Weights,
    *,
    both_ways: bool = False,
) -> float:
    """cos(t, mean of unit frames) + 10 gate (what words find in frames) - level."""
    mean = np.mean([unit(frame) for frame in frames], axis=0)
    meet = interaction_both_ways if both_ways else interaction
    found = 10 * float(weights["gate"]) * meet(words, tokens, weights)
    return cosine(sentence, mean) + found - level(mean, weights)


def changed(frames: Sequence[Vector], tokens: Sequence[Vector], weights: Weights) -> list[Vector]:
    """Every token plus a map of the next frame minus the one before; ends repeat themselves."""
    last = len(frames) - 1
    return [
        token + weights["changes.map.weight"] @ (frames[min(m + 1, last)] - frames[max(m - 1, 0)])
        for m, token in enumerate(tokens)
    ]


def level(mean: Vector, weights: Weights) -> float:
    """0.75 / a log mean over the bank of exp(a cos(b, v)); 0 for an empty bank."""
    held = min(int(weights["bank.count"]), len(weights["bank.vectors"]))
    if not held:
        return 0.0
    scale = float(np.exp(weights["loss.logit_scale"]))
    near = [np.exp(scale * cosine(one, mean)) for one in weights["bank.vectors"][:held]]
    return 0.75 / scale * float(np.log(np.mean(near)))


def interaction(words: Sequence[Vector], tokens: Sequence[Vector], weights: Weights) -> float:
    """What words find in their best frames, by the weights of words where there is a network."""
    best = [max(cosine(word, token) for token in tokens) for word in words]
    if "word_weights.network.0.weight" not in weights:
        return float(np.mean(best))
    return float(np.dot(drl.token_weights(words, part(weights, "word_weights")), best))


def interaction_both_ways(
    words: Sequence[Vector], tokens: Sequence[Vector], weights: Weights
) -> float:
    """Frames look for their words too, as in DRL."""
    if "word_weights.network.0.weight" in weights:
        return drl.similarity(words, tokens, weights)
    by_words = np.mean([max(cosine(word, token) for token in tokens) for word in words])
    by_tokens = np.mean([max(cosine(word, token) for word in words) for token in tokens])
    return float(by_words + by_tokens) / 2
