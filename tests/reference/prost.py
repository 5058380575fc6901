"""ProST's prototypes and scores as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, cosine, dot, layer_norm, linear, part, softmax


def sparse(tokens: Sequence[Vector], weights: Weights) -> list[Vector]:
    """Sums of tokens under rectified weights."""
    shares = []
    for token in tokens:
        hidden = np.maximum(linear(token, part(weights, "network.0")), 0)
        shares.append(np.maximum(linear(hidden, part(weights, "network.2")), 0))
    return [
        sum(share[j] * token for share, token in zip(shares, tokens, strict=True))
        for j in range(len(shares[0]))
    ]


def attention(
    queries: Sequence[Vector],
    memories: Sequence[Sequence[Vector]],
    weights: Weights,
) -> list[Vector]:
    """One head; each query has its own memory."""
    out = []
    for query, memory in zip(queries, memories, strict=True):
        asked = linear(query, part(weights, "query"))
        keys = [linear(token, part(weights, "key")) for token in memory]
        shares = softmax([dot(asked, key) / math.sqrt(len(asked)) for key in keys])
        values = [linear(token, part(weights, "value")) for token in memory]
        mixed = sum(share * value for share, value in zip(shares, values, strict=True))
        out.append(linear(mixed, part(weights, "output")))
    return out


def decode(
    memories: Sequence[Sequence[Vector]], weights: Weights, *, num_layers: int
) -> list[Vector]:
    """Learned queries, each with the part of the memory it may see."""
    states = [weights["queries"][index] for index in range(len(memories))]
    for index in range(num_layers):
        own = part(weights, f"layers.{index}")
        states = [layer_norm(state, part(own, "query_norm")) for state in states]
        if "around.query.weight" in own:
            around = attention(states, [states] * len(states), part(own, "around"))
            states = [layer_norm(state, part(own, "around_norm")) for state in around]
        normed = [
            [layer_norm(token, part(own, "memory_norm")) for token in memory] for memory in memories
        ]
        read = attention(states, normed, part(own, "across"))
        states = [
            layer_norm(state + row, part(own, "attention_norm"))
            for state, row in zip(states, read, strict=True)
        ]
        inner = [
            linear(np.maximum(linear(state, part(own, "network.0")), 0), part(own, "network.3"))
            for state in states
        ]
        states = [
            layer_norm(state + row, part(own, "output_norm"))
            for state, row in zip(states, inner, strict=True)
        ]
    return [layer_norm(state, part(weights, "norm")) for state in states]


def prototypes(
    video: Sequence[Sequence[Vector]], weights: Weights, *, num_layers: int, reach: float
) -> tuple[list[Vector], list[Vector]]:
    """Events and objects of one video, given as the tokens of its real frames."""
    frames = [frame[0] for frame in video]
    objects = []
    for frame in video:
        objects += [frame[0], *sparse(frame, part(weights, "objects"))]
    each = len(objects) // len(frames)
    seen = []
    for index in range(len(frames)):
        start = index * each
        end = start + each + math.floor(reach * len(objects))
        if end > len(objects) - 1:  # one longer than a plain shift, as in the official code
            start, end = max(start - (end - (len(objects) - 1)), 0), len(objects)
        seen.append(objects[start:end])
    read = decode(seen, part(weights, "frame_decoder"), num_layers=num_layers)
    halves = [(row + frame) / 2 for row, frame in zip(read, frames, strict=True)]
    queries = len(weights["event_decoder.queries"])
    events = decode([halves] * queries, part(weights, "event_decoder"), num_layers=num_layers)
    mean = sum(frames) / len(frames)
    return [(event + mean) / 2 for event in events], objects


def similarities(
    sentence: Vector,
    words: Sequence[Vector],
    events: Sequence[Vector],
    objects: Sequence[Vector],
    weights: Weights,
    *,
    num_objects: int,
) -> tuple[float, float]:
    by_event = max(cosine(sentence, event) for event in events)
    phrases = sparse(words, part(weights, "phrases"))
    by_object = 0.0
    for slot in range(num_objects):  # the best phrase and frame of each object slot
        by_object += max(
            cosine(phrase, other) if np.any(phrase) and np.any(other) else 0.0
            for other in objects[slot::num_objects]
            for phrase in phrases
        )
    return by_event, by_object / num_objects
