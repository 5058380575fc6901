"""A tower over space and time as one dense sequence under masks."""

from __future__ import annotations

from collections.abc import Sequence

from reference.arithmetic import Vector, Weights, layer_norm, part
from reference.masked_tower import attention, feed_forward, project

__all__ = ["project", "tower"]


def tower(
    frames: Sequence[Sequence[Vector]],
    vision: Weights,
    added: Weights,
    *,
    num_heads: int,
    num_layers: int,
) -> list[Vector]:
    """Last hidden states, the class token first, from patch embeddings of the real frames."""
    place, count = vision["positional_embedding"], len(frames[0])
    tokens = [vision["class_embedding"] + place[0]]
    for index, frame in enumerate(frames):
        for row, patch in enumerate(frame):
            token = patch + place[1 + row]
            if "frame_positions" in added:
                token = token + added["frame_positions"][index]
            tokens.append(token)
    states = [layer_norm(token, part(vision, "ln_pre")) for token in tokens]

    def in_space(query: int, key: int) -> bool:
        return query == 0 or key == 0 or (query - 1) // count == (key - 1) // count

    def in_time(query: int, key: int) -> bool:
        return query == 0 or key == 0 or (query - 1) % count == (key - 1) % count

    for layer in range(num_layers):
        block = part(vision, f"blocks.{layer}")
        time = part(added, f"time.{layer}")
        seen = states
        if time:
            normed = [layer_norm(state, part(time, "norm")) for state in states]
            told = attention(normed, part(time, "attention"), num_heads, in_time)
            seen = [state + row for state, row in zip(states, told, strict=True)]
        normed = [layer_norm(state, part(block, "ln_1")) for state in seen]
        mixed = attention(normed, part(block, "attention"), num_heads, in_space)
        states = [state + row for state, row in zip(states, mixed, strict=True)]
        states = feed_forward(states, block)
    return states
