"""HGR as loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import Vector, Weights, cosine, dot, layer_norm, linear, part, softmax


def gru(words: Sequence[Vector], weights: Weights) -> list[Vector]:
    """torch's GRU: reset, update and new gates, in that order."""
    size = weights["weight_hh_l0"].shape[1]
    state, found = np.zeros(size), []
    for word in words:
        given = weights["weight_ih_l0"] @ word + weights["bias_ih_l0"]
        kept = weights["weight_hh_l0"] @ state + weights["bias_hh_l0"]
        reset = 1 / (1 + np.exp(-(given[:size] + kept[:size])))
        update = 1 / (1 + np.exp(-(given[size : 2 * size] + kept[size : 2 * size])))
        new = np.tanh(given[2 * size :] + reset * kept[2 * size :])
        state = (1 - update) * new + update * state
        found.append(state)
    return found


def contextual(words: Sequence[Vector], weights: Weights) -> list[Vector]:
    """The mean of a GRU forwards and one backwards."""
    ahead = gru(words, part(weights, "forward_network"))
    back = gru(words[::-1], part(weights, "backward_network"))[::-1]
    return [(one + other) / 2 for one, other in zip(ahead, back, strict=True)]


def pooled(values: Sequence[Vector], weights: Weights) -> Vector:
    """Attention pooling."""
    shares = softmax([float(linear(value, part(weights, "query"))[0]) for value in values])
    return np.sum([share * value for share, value in zip(shares, values, strict=True)], axis=0)


def nodes_of(
    words: Sequence[Vector],
    spans: Sequence[Sequence[int]],
    roles: Sequence[int],
    heard: Sequence[Sequence[int]],
    weights: Weights,
) -> list[Vector | None]:
    """The graph's nodes after one layer; None where a node has no word."""
    states = contextual(words, part(weights, "words"))
    graph = part(weights, "graph")
    layer = part(graph, "layers.0")
    nodes: list[Vector | None] = [pooled(states, part(graph, "pooling"))]
    for span, role in zip(spans[1:], roles[1:], strict=True):
        largest = np.max([states[place] for place in span], axis=0) if span else None
        nodes.append(None if largest is None else largest * graph["roles"][role])
    outputs: list[Vector | None] = []
    for place, node in enumerate(nodes):
        if node is None:
            outputs.append(None)
            continue
        others = [nodes[other] for other in heard[place] if nodes[other] is not None]
        told = np.zeros(len(node))
        if others:
            query = linear(node, part(layer, "query"))
            shares = softmax(
                [
                    dot(query, linear(other, part(layer, "key"))) / math.sqrt(len(query))  # type: ignore[arg-type]
                    for other in others
                ]
            )
            mixed = np.sum([s * other for s, other in zip(shares, others, strict=True)], axis=0)  # type: ignore[operator]
            told = linear(mixed, part(layer, "mix"))
        outputs.append(layer_norm(node + told, part(layer, "norm")))
    return outputs


def node_level(nodes: Sequence[Vector | None], frames: Sequence[Vector]) -> float:
    """The mean over nodes of their cosine with the frames that they attend to."""
    found = []
    for node in nodes:
        if node is None:
            continue
        positive = [max(cosine(node, frame), 0.0) for frame in frames]
        length = max(math.sqrt(sum(value**2 for value in positive)), 1e-10)
        shares = softmax([4 * value / length for value in positive])
        seen = np.sum([share * frame for share, frame in zip(shares, frames, strict=True)], axis=0)
        found.append(cosine(node, seen))
    return sum(found) / len(found) if found else 0.0


def similarity(
    nodes: Sequence[Vector | None], experts: Mapping[str, Sequence[Vector]], weights: Weights
) -> float:
    """The mean of sentence, verb and noun level; four verbs stand before the nouns."""
    streams = [
        [
            linear(token, part(weights, f"maps.{level}.{name}"))
            for name, tokens in experts.items()
            for token in tokens
        ]
        for level in ("video", "verb", "noun")
    ]
    video = pooled(streams[0], part(weights, "pooling"))
    sentence = nodes[0]
    assert sentence is not None
    levels = (
        cosine(sentence, video),
        node_level(nodes[1:5], streams[1]),
        node_level(nodes[5:], streams[2]),
    )
    return sum(levels) / 3
