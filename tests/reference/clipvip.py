"""CLIP-ViP's tower as one dense sequence under a mask, as the paper draws it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import Vector, Weights, layer_norm, part
from reference.masked_tower import attention, feed_forward, project

__all__ = ["attention_mask", "project", "tower"]


def attention_mask(num_proxies: int, num_frames: int, num_patches: int) -> NDArray[np.bool_]:
    """Which token may see which: proxies all, patches the proxies and their own frame."""
    total = num_proxies + num_frames * num_patches
    mask = np.zeros((total, total), dtype=bool)
    for query in range(total):
        for key in range(total):
            own_frame = (query - num_proxies) // num_patches == (key - num_proxies) // num_patches
            mask[query, key] = query < num_proxies or key < num_proxies or own_frame
    return mask


def tower(
    frames: Sequence[Sequence[Vector]],
    vision: Weights,
    proxies: Weights,
    *,
    num_heads: int,
    num_layers: int,
) -> list[Vector]:
    """Last hidden states of all tokens from patch embeddings of the real frames.

    There are as many frames as rows in the table of frame positions.
    """
    place = vision["positional_embedding"]
    tokens = [vision["class_embedding"] + place[0]]
    tokens += [added + place[0] for added in proxies["added"]]
    num_proxies = len(tokens)
    for index, frame in enumerate(frames):
        for row, patch in enumerate(frame):
            tokens.append(patch + place[1 + row] + proxies["frame_positions"][index])
    mask = attention_mask(num_proxies, len(frames), len(frames[0]))
    states = [layer_norm(token, part(vision, "ln_pre")) for token in tokens]

    def sees(query: int, key: int) -> bool:
        return bool(mask[query, key])

    for layer in range(num_layers):
        block = part(vision, f"blocks.{layer}")
        normed = [layer_norm(state, part(block, "ln_1")) for state in states]
        mixed = attention(normed, part(block, "attention"), num_heads, sees)
        states = [state + row for state, row in zip(states, mixed, strict=True)]
        states = feed_forward(states, block)
    return states
