"""RAP's and TFVL's towers as loops over frames and tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    attend,
    cosine,
    dot,
    layer_norm,
    linear,
    part,
    quick_gelu,
    softmax,
)


def projected(tokens: Sequence[Vector], weights: Weights) -> tuple[list[Vector], ...]:
    """Queries, keys and values of normalised tokens."""
    fused = [linear(token, part(weights, "attention.qkv")) for token in tokens]
    width = len(tokens[0])
    return tuple([row[i * width : (i + 1) * width] for row in fused] for i in range(3))


def feed(state: Vector, weights: Weights) -> Vector:
    hidden = linear(layer_norm(state, part(weights, "ln_2")), part(weights, "mlp.up"))
    return state + linear(quick_gelu(hidden), part(weights, "mlp.down"))


def block(tokens: Sequence[Vector], weights: Weights, heads: int) -> list[Vector]:
    """A plain block over one set of tokens."""
    normed = [layer_norm(token, part(weights, "ln_1")) for token in tokens]
    mixed = attend(*projected(normed, weights), heads)
    return [
        feed(token + linear(row, part(weights, "attention.out")), weights)
        for token, row in zip(tokens, mixed, strict=True)
    ]


def askew(
    video: Sequence[Sequence[Vector]], weights: Weights, own: Weights, heads: int, kept: int
) -> list[list[Vector]]:
    """What asynchronous attention adds, from normalised tokens of the real frames."""
    added = [[np.zeros_like(token) for token in frame] for frame in video]
    num_patches = len(video[0]) - 1
    for m, frame in enumerate(video):
        likeness = [cosine(token, frame[0]) for token in frame[1:]]
        best = sorted(sorted(range(num_patches), key=lambda p: -likeness[p])[:kept])
        warped = []
        for slot, place in enumerate(best):
            moment = min(max(m + float(own["time_offset"][slot]), 0.0), len(video) - 1.0)
            spot = min(max(place + float(own["patch_offset"][slot]), 0.0), num_patches - 1.0)
            total = np.zeros_like(frame[0])
            for frame_at in (math.floor(moment), math.floor(moment) + 1):
                for patch_at in (math.floor(spot), math.floor(spot) + 1):
                    share = (1 - abs(moment - frame_at)) * (1 - abs(spot - patch_at))
                    token = video[min(frame_at, len(video) - 1)][1 + min(patch_at, num_patches - 1)]
                    total = total + share * token
            warped.append(total)
        queries, _, _ = projected([frame[1 + place] for place in best], weights)
        _, keys, values = projected(warped, weights)
        mixed = attend(queries, keys, values, heads)
        for place, row in zip(best, mixed, strict=True):
            added[m][1 + place] = float(own["gate"]) * linear(row, part(weights, "attention.out"))
    return added


def rap_tower(
    video: Sequence[Sequence[Vector]], tower: Weights, own: Weights, *, heads: int, kept: int
) -> list[Vector]:
    """Class tokens of the real frames after the last block."""
    layers = 1 + max(int(n.split(".")[1]) for n in tower if n.startswith("blocks."))
    num_askew = len({n.split(".")[1] for n in own if n.startswith("askew.")})
    states = [list(frame) for frame in video]
    for index in range(layers):
        weights = part(tower, f"blocks.{index}")
        normed = [[layer_norm(token, part(weights, "ln_1")) for token in frame] for frame in states]
        extra = [[np.zeros_like(token) for token in frame] for frame in states]
        place = index - (layers - 1 - num_askew)
        if 0 <= place < num_askew:
            extra = askew(normed, weights, part(own, f"askew.{place}"), heads, kept)
        change = part(own, f"modulations.{index}")
        for m, frame in enumerate(states):
            mixed = attend(*projected(normed[m], weights), heads)
            frame = [
                feed(token + linear(row, part(weights, "attention.out")) + more, weights)
                for token, row, more in zip(frame, mixed, extra[m], strict=True)
            ]
            scale = 1 + change["scale_time"][m] @ change["scale_width"]
            shift = change["shift_time"][m] @ change["shift_width"]
            states[m] = [scale * token + shift for token in frame]
    return [frame[0] for frame in states]


def joint_tower(
    video: Sequence[Sequence[Vector]], tower: Weights, prompts: Vector, *, heads: int
) -> list[Vector]:
    """TFVL: the last blocks over all tokens of the real frames and that block's prompts."""
    layers = 1 + max(int(n.split(".")[1]) for n in tower if n.startswith("blocks."))
    first = layers - len(prompts)
    states = [list(frame) for frame in video]
    for index in range(first):
        states = [block(frame, part(tower, f"blocks.{index}"), heads) for frame in states]
    length = len(states[0])
    joined = [token for frame in states for token in frame]
    for index in range(first, layers):
        own = list(prompts[index - first])
        joined = block([*own, *joined], part(tower, f"blocks.{index}"), heads)[len(own) :]
    return joined[::length]


def sentence_of_frames(
    frames: Sequence[Vector], tower: Weights, own: Weights, *, heads: int
) -> Vector:
    """TFVL: the text tower's causal reading of [start, prompts, frames, end], at the end."""
    embedding = tower["token_embedding.weight"]
    tokens = [embedding[-2], *own["prompts"]]
    tokens += [linear(frame, part(own, "words")) for frame in frames]
    tokens.append(embedding[-1])
    states = [token + tower["positional_embedding"][i] for i, token in enumerate(tokens)]
    layers = 1 + max(int(n.split(".")[1]) for n in tower if n.startswith("blocks."))
    for index in range(layers):
        weights = part(tower, f"blocks.{index}")
        normed = [layer_norm(state, part(weights, "ln_1")) for state in states]
        queries, keys, values = projected(normed, weights)
        mixed = [
            attend([queries[i]], keys[: i + 1], values[: i + 1], heads)[0]
            for i in range(len(states))
        ]
        states = [
            feed(state + linear(row, part(weights, "attention.out")), weights)
            for state, row in zip(states, mixed, strict=True)
        ]
    return linear(layer_norm(states[-1], part(tower, "ln_final")), part(tower, "projection"))


def syntax_score(
    sentence: Vector,
    words: Sequence[Vector],
    video: Sequence[Sequence[Vector]],
    weights: Weights,
    *,
    selected: int,
    regions: int,
) -> float:
    """SHE-Net: the plain cosine and the levels' best cosines under their shares."""
    nodes = [sentence]
    for level in range(3):
        shares = softmax([dot(weights["roles.weight"][level], word) for word in words])
        own = sum(share * word for share, word in zip(shares, words, strict=True))
        nodes.append(own + linear(nodes[-1], part(weights, f"parents.{level}")))
    gates = softmax([float(value) for value in weights["levels"]])
    frames = [frame[0] for frame in video]

    def best(values: Sequence[float], count: int) -> float:
        top = sorted(values, reverse=True)[:count]
        return sum(top) / len(top)

    total = sum(
        gates[level] * best([cosine(nodes[level], frame) for frame in frames], selected)
        for level in (0, 1)
    )
    order = sorted(range(len(frames)), key=lambda m: -cosine(nodes[1], frames[m]))[:selected]
    for level in (2, 3):
        cosines = [cosine(nodes[level], patch) for m in order for patch in video[m][1:]]
        total += gates[level] * best(cosines, regions)
    mean = sum(frame / math.sqrt(dot(frame, frame)) for frame in frames)
    return total + cosine(sentence, mean)
