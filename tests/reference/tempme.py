"""TempMe's merging tower as loops over tokens, each a vector and the patches it stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reference.arithmetic import (
    Vector,
    Weights,
    cosine,
    dot,
    layer_norm,
    linear,
    part,
    quick_gelu,
    softmax,
)

Token = tuple[Vector, float]


def project(token: Vector, weights: Weights) -> Vector:
    """The fused projection with its low-rank change."""
    low = np.array([dot(row, token) for row in weights["down"]])
    return linear(token, weights) + np.array([dot(row, low) for row in weights["up"]])


def merge(
    tokens: Sequence[Token], metric: Sequence[Vector], count: int, num_class: int
) -> list[Token]:
    """Every other token may join the most similar patch of the rest; the best links do.

    Sources stand at the even indices of the whole sequence, class tokens counted.
    """
    patches = list(range(num_class, len(tokens)))
    sources = [index for index in patches if index % 2 == 0]
    targets = [index for index in patches if index % 2 == 1]
    links = []
    for source in sources:
        best = max(targets, key=lambda target: cosine(metric[source], metric[target]))
        links.append((cosine(metric[source], metric[best]), source, best))
    links.sort(key=lambda link: -link[0])
    joining = links[: min(count, len(sources), len(targets))]
    gone = {source for _, source, _ in joining}
    result = list(tokens[:num_class]) + [tokens[source] for source in sources if source not in gone]
    for target in targets:
        members = [tokens[target]] + [tokens[s] for _, s, into in joining if into == target]
        size = sum(member[1] for member in members)
        result.append((sum(member[0] * member[1] for member in members) / size, size))
    return result


def block(
    tokens: Sequence[Token], weights: Weights, *, heads: int, count: int, num_class: int
) -> list[Token]:
    normed = [layer_norm(vector, part(weights, "ln_1")) for vector, _ in tokens]
    fused = [project(vector, part(weights, "attention.qkv")) for vector in normed]
    width = len(tokens[0][0])
    size = width // heads
    mixed = []
    for row in fused:
        parts = []
        for head in range(heads):
            cut = slice(head * size, (head + 1) * size)
            logits = [
                dot(row[:width][cut], other[width : 2 * width][cut]) / math.sqrt(size)
                + math.log(token[1])
                for other, token in zip(fused, tokens, strict=True)
            ]
            shares = softmax(logits)
            parts.append(
                sum(share * other[2 * width :][cut]
                    for share, other in zip(shares, fused, strict=True))
            )  # fmt: skip
        mixed.append(linear(np.concatenate(parts), part(weights, "attention.out")))
    keys = [row[width : 2 * width].reshape(heads, size).mean(axis=0) for row in fused]
    states = [(token[0] + row, token[1]) for token, row in zip(tokens, mixed, strict=True)]
    states = merge(states, keys, count, num_class)
    return [
        (
            vector
            + linear(
                quick_gelu(
                    linear(layer_norm(vector, part(weights, "ln_2")), part(weights, "mlp.up"))
                ),
                part(weights, "mlp.down"),
            ),
            size,
        )
        for vector, size in states
    ]


def tower(
    frames: Sequence[Sequence[Vector]],
    weights: Weights,
    tables: Sequence[Vector],
    *,
    groups: Sequence[int],
    heads: int,
    num_merged: int,
    across: float,
    within: float,
) -> tuple[list[Vector], list[int]]:
    """Class tokens of one video's frames after the last block, and its tokens after each block."""
    num_blocks = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    clips: list[list[Token]] = [[(token, 1.0) for token in frame] for frame in frames]
    num_class, counts = 1, []
    for index in range(num_blocks):
        own = part(weights, f"blocks.{index}")
        place = index - (num_blocks - 1 - len(groups))
        count = num_merged
        if place >= 0:
            if place < len(groups):
                group, joined = groups[place], []
                for start in range(0, len(clips), group):
                    members = clips[start : start + group]
                    order = [(m, i) for m in range(group) for i in range(num_class)]
                    order += [
                        (m, i) for m in range(group) for i in range(num_class, len(members[m]))
                    ]
                    metric = [members[m][i][0] for m, i in order]
                    tokens = [
                        (members[m][i][0] + tables[place][start + m], members[m][i][1])
                        for m, i in order
                    ]
                    joined.append(
                        merge(tokens, metric, int(across * len(tokens)), num_class * group)
                    )
                clips, num_class = joined, num_class * group
            count = int(within * len(clips[0]))
        clips = [block(clip, own, heads=heads, count=count, num_class=num_class) for clip in clips]
        counts.append(sum(len(clip) for clip in clips))
    return [token for token, _ in clips[0][:num_class]], counts
