"""DRL's interaction and decorrelation as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, cosine, linear, part, softmax, unit


def token_weights(tokens: Sequence[Vector], weights: Weights) -> list[float]:
    logits = []
    for token in tokens:
        hidden = np.maximum(linear(token, part(weights, "network.0")), 0)
        logits.append(float(linear(hidden, part(weights, "network.2"))[0]))
    return softmax(logits)


def similarity(words: Sequence[Vector], frames: Sequence[Vector], weights: Weights) -> float:
    """Weighted token-wise interaction of one pair."""
    word_weights = token_weights(words, part(weights, "word_weights"))
    frame_weights = token_weights(frames, part(weights, "frame_weights"))
    by_words = sum(
        weight * max(cosine(word, frame) for frame in frames)
        for weight, word in zip(word_weights, words, strict=True)
    )
    by_frames = sum(
        weight * max(cosine(word, frame) for word in words)
        for weight, frame in zip(frame_weights, frames, strict=True)
    )
    return (by_words + by_frames) / 2


def _correlation(pairs: Sequence[tuple[Vector, Vector, float]], num_pairs: int) -> Vector:
    """Weighted correlation of the channels of matched tokens, standardised over all of them."""
    sides = []
    for side in (0, 1):
        rows = np.array([pair[side] for pair in pairs])
        columns = []
        for column in rows.T:
            mean = sum(column) / len(column)
            variance = sum((value - mean) ** 2 for value in column) / (len(column) - 1)
            columns.append((column - mean) / math.sqrt(variance))
        sides.append(np.array(columns).T)
    dim = sides[0].shape[1]
    result = np.zeros((dim, dim))
    for row, (_, _, weight) in enumerate(pairs):
        for left in range(dim):
            for right in range(dim):
                result[left, right] += weight * sides[0][row][left] * sides[1][row][right]
    return result / num_pairs


def decorrelation(
    words: Sequence[Sequence[Vector]],
    word_weights: Sequence[Sequence[float]],
    frames: Sequence[Sequence[Vector]],
    frame_weights: Sequence[Sequence[float]],
    off_diagonal: float,
) -> float:
    by_words, by_frames = [], []
    for texts, text_shares, video, video_shares in zip(
        words, word_weights, frames, frame_weights, strict=True
    ):
        for word, share in zip(texts, text_shares, strict=True):
            best = max(video, key=lambda frame: cosine(word, frame))
            by_words.append((unit(word), unit(best), share))
        for frame, share in zip(video, video_shares, strict=True):
            best = max(texts, key=lambda word: cosine(word, frame))
            by_frames.append((unit(frame), unit(best), share))
    matrix = (_correlation(by_words, len(words)) + _correlation(by_frames, len(words))) / 2
    total = 0.0
    for left in range(len(matrix)):
        for right in range(len(matrix)):
            if left == right:
                total += 0.11 * (matrix[left, right] - 1) ** 2
            else:
                total += off_diagonal * matrix[left, right] ** 2
    return total
