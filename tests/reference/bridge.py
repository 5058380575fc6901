"""BridgeFormer's bridge as loops."""

from __future__ import annotations

from collections.abc import Sequence

from reference.arithmetic import Vector, Weights, attend, layer_norm, linear, part, quick_gelu
from reference.masked_tower import attention


def answer(
    levels: Sequence[Sequence[Vector]],
    end: int,
    blocks: Sequence[Sequence[Sequence[Vector]]],
    weights: Weights,
    *,
    num_heads: int,
) -> Vector:
    """The answer of one question (levels, words) about one video (blocks, frames, patches)."""
    states: list[Vector] = []
    for place, frames in enumerate(blocks):
        block = part(weights, f"blocks.{place}")
        words = [
            linear(word, part(weights, "map"))
            for word in levels[place * len(levels) // len(blocks)]
        ]
        normed = [layer_norm(word, part(block, "question_norm")) for word in words]
        asked = [linear(word, part(block, "query")) for word in normed]
        dim = len(words[0])
        read_frames = []
        for frame in frames:
            fused = [
                linear(layer_norm(patch, part(block, "patch_norm")), part(block, "key_value"))
                for patch in frame
            ]
            read_frames.append([(row[:dim], row[dim:]) for row in fused])
        everything = [pair for frame in read_frames for pair in frame]
        found = attend(
            [asked[end]],
            [key for key, _ in everything],
            [value for _, value in everything],
            num_heads,
        )
        for frame in read_frames:
            found += attend(
                asked, [key for key, _ in frame], [value for _, value in frame], num_heads
            )
        found = [linear(row, part(block, "out")) for row in found]
        states = [a + b for a, b in zip(states, found, strict=True)] if states else found
        count = len(words)

        def sees(query: int, key: int, count: int = count) -> bool:
            return query == 0 or key == 0 or (query - 1) // count == (key - 1) // count

        seen = attention(
            [layer_norm(state, part(block, "space_norm")) for state in states],
            part(block, "space"),
            num_heads,
            sees,
        )
        states = [state + row for state, row in zip(states, seen, strict=True)]
        states = [
            state
            + linear(
                quick_gelu(
                    linear(layer_norm(state, part(block, "mlp_norm")), part(block, "mlp.up"))
                ),
                part(block, "mlp.down"),
            )
            for state in states
        ]
    return linear(layer_norm(states[0], part(weights, "norm")), part(weights, "project"))
