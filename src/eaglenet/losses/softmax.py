"""Symmetric softmax (cross-entropy) loss with CLIP's learnable, bounded logit scale."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

MAX_LOGIT_SCALE = math.log(100.0)
PROXY_BOUNDS = (0.0, math.log(200.0))
"""Bounds of the logit scale in CLIP-ViP and TV-ProxyNet."""
ROUNDING = 1e-4
"""Published checkpoints store ln 100 as 4.6052: this much above the bound is tolerated."""


class SoftmaxLoss(nn.Module):
    """``1/2 (L_t2v + L_v2t)`` (paper eq. 3) of ``exp(logit_scale) * scores``.

    Each direction is the cross-entropy with a target spread evenly over a row's positives; with
    one positive per row it is the plain cross-entropy. Rows without a positive do not count.

    The scale is bounded by clamping the parameter before use, as other code does after each step: a
    clamp in the graph would leave it without a gradient once it is above the bound.

    Args:
        bounds: minimum and maximum of ``logit_scale``.
    """

    def __init__(
        self,
        *,
        logit_scale: float = MAX_LOGIT_SCALE,
        bounds: tuple[float, float] = (-math.inf, MAX_LOGIT_SCALE),
    ) -> None:
        super().__init__()
        self.bounds = bounds
        self.logit_scale = nn.Parameter(torch.tensor(logit_scale))

    def scale(self) -> Float[Tensor, ""]:
        """``exp(logit_scale)``, at most 100 unless ``bounds`` say otherwise."""
        least, largest = self.bounds
        if self.training:
            value = self.logit_scale.detach()
            clamped = value.clamp(least, largest)
            is_outside = (value - clamped).abs() > ROUNDING
            self.logit_scale.data.copy_(torch.where(is_outside, clamped, value))
        return self.logit_scale.clamp(least - ROUNDING, largest + ROUNDING).exp()

    def forward(
        self, scores: Float[Tensor, "texts videos"], positives: Bool[Tensor, "texts videos"]
    ) -> Float[Tensor, ""]:
        logits = self.scale() * scores
        text_to_video = cross_entropy(logits, positives)
        video_to_text = cross_entropy(logits.T, positives.T)
        return (text_to_video + video_to_text) / 2


def cross_entropy(
    logits: Float[Tensor, "queries items"], positives: Bool[Tensor, "queries items"]
) -> Float[Tensor, ""]:
    """Mean over queries of the mean negative log-likelihood of a query's positives."""
    counts = positives.sum(dim=1)
    likelihood = logits.log_softmax(dim=1).masked_fill(~positives, 0.0).sum(dim=1)
    likelihood = likelihood / counts.clamp_min(1)
    return -likelihood.sum() / (counts > 0).sum().clamp_min(1)


def fixed_softmax_loss(
    scores: Float[Tensor, "texts videos"],
    positives: Bool[Tensor, "texts videos"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Cross-entropy of rows plus that of columns of ``scores / temperature``; not halved."""
    logits = scores / temperature
    return cross_entropy(logits, positives) + cross_entropy(logits.T, positives.T)
