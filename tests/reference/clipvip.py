"""CLIP-ViP's tower as one dense sequence under a mask, as the paper draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import Vector, Weights, dot, layer_norm, linear, part, quick_gelu, softmax


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
    dim, size = len(states[0]), len(states[0]) // num_heads
    for layer in range(num_layers):
        block = part(vision, f"blocks.{layer}")
        fused = [
            linear(layer_norm(state, part(block, "ln_1")), part(block, "attention.qkv"))
            for state in states
        ]
        mixed = []
        for query, row in enumerate(fused):
            seen = [key for key in range(len(fused)) if mask[query, key]]
            parts = []
            for head in range(num_heads):
                start = head * size
                one = row[start : start + size]
                logits = [
                    dot(one, fused[key][dim + start : dim + start + size]) / math.sqrt(size)
                    for key in seen
                ]
                parts.append(
                    sum(
                        share * fused[key][2 * dim + start : 2 * dim + start + size]
                        for share, key in zip(softmax(logits), seen, strict=True)
                    )
                )
            mixed.append(linear(np.concatenate(parts), part(block, "attention.out")))
        states = [state + row for state, row in zip(states, mixed, strict=True)]
        states = [
            state
            + linear(
                quick_gelu(linear(layer_norm(state, part(block, "ln_2")), part(block, "mlp.up"))),
                part(block, "mlp.down"),
            )
            for state in states
        ]
    return states


def project(state: Vector, vision: Weights) -> Vector:
    return linear(layer_norm(state, part(vision, "ln_post")), part(vision, "projection"))
