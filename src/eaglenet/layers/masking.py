"""Softmax and mean over entries of which some are padding; the first right video of a text."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.core.errors import ConfigError

Padding = Literal["masked", "official"]
"""Treatment of padded words, padded frames and missing experts in a score.

``masked``: they are left out, so that a score depends on its pair alone.
``official``: as the method's authors have it, for numbers equal to theirs.
"""


def check_padding(padding: str) -> None:
    """Raise ConfigError for an unknown way to treat padding."""
    if padding not in get_args(Padding):
        names = ", ".join(get_args(Padding))
        raise ConfigError(f"padding {padding!r} is unknown; choose one of {names}")


def visible(mask: Bool[Tensor, "*any"], padding: Padding) -> Bool[Tensor, "*any"]:
    """The mask itself, or all True for authors' code that has no masks."""
    return torch.ones_like(mask) if padding == "official" else mask


def masked_softmax(
    logits: Float[Tensor, "*any entries"], mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*any entries"]:
    """Softmax over the last axis where ``mask`` (broadcast) is true, and 0 elsewhere.

    A row without any true entry is all 0, not NaN. The fill is the least finite number of the
    type: a constant such as -1e18 overflows in half precision.
    """
    if mask is None:
        return logits.softmax(dim=-1)
    weights = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def frame_weights(
    mask: Bool[Tensor, "videos frames"], dtype: torch.dtype
) -> Float[Tensor, "videos frames"]:
    """Weights that average the real frames: ``mask / number of real frames``."""
    weights = mask.to(dtype)
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1.0)


def first_right_video(positives: Bool[Tensor, "texts videos"]) -> Int[Tensor, "texts"]:
    """The first of the videos that belong to each text."""
    return positives.to(torch.uint8).argmax(dim=1)
