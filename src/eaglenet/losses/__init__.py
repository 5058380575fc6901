"""Losses of scores and positives."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

MAX_LOGIT_SCALE = math.log(100.0)
PROXY_BOUNDS = (0.0, math.log(200.0))
"""Bounds of the logit scale in CLIP-ViP and TV-ProxyNet."""
ROUNDING = 1e-4
"""Tolerance of the bounds: published checkpoints store ln 100 as 4.6052."""


class SoftmaxLoss(nn.Module):
    """``1/2 (L_t2v + L_v2t)`` (paper eq. 3) of ``exp(logit_scale) * scores``.

    Each direction is the cross-entropy with a target spread evenly over the positives of a row;
    with one positive per row it is the plain cross-entropy. Rows without a positive do not count.

    In training, a parameter outside the bounds is set to the nearest bound before use: a clamp in
    the graph alone would leave it without a gradient.

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
        """Return ``exp(logit_scale)`` within ``bounds``; at most 100 by default."""
        lowest, highest = self.bounds
        if self.training:
            value = self.logit_scale.detach()
            nearest = value.clamp(lowest, highest)
            is_outside = (value - nearest).abs() > ROUNDING
            self.logit_scale.data.copy_(torch.where(is_outside, nearest, value))
        return self.logit_scale.clamp(lowest - ROUNDING, highest + ROUNDING).exp()

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
    """Return the negative log-likelihood of positives, averaged per query, then over queries."""
    counts = positives.sum(dim=1)
    likelihood = logits.log_softmax(dim=1).masked_fill(~positives, 0.0).sum(dim=1)
    likelihood = likelihood / counts.clamp_min(1)
    return -likelihood.sum() / (counts > 0).sum().clamp_min(1)


def fixed_softmax_loss(
    scores: Float[Tensor, "texts videos"],
    positives: Bool[Tensor, "texts videos"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Return the cross-entropy of rows plus that of columns of ``scores / temperature``."""
    logits = scores / temperature
    return cross_entropy(logits, positives) + cross_entropy(logits.T, positives.T)


class SigmoidLoss(nn.Module):
    """``-1/B sum_ij log sigmoid(I_ij (exp(tau_p) s_ij + b))`` with learnable ``tau_p`` and ``b``.

    ``I`` is +1 for positives and -1 otherwise. A row or column may have several positives.

    Paper: eq. 18 prints the opposite sign inside the exponential.
    """

    def __init__(self, *, temperature: float = 4.77, bias: float = -12.93) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(temperature))
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(
        self, scores: Float[Tensor, "texts videos"], positives: Bool[Tensor, "texts videos"]
    ) -> Float[Tensor, ""]:
        logits = self.temperature.exp() * scores + self.bias
        signed_logits = torch.where(positives, logits, -logits)
        # logsigmoid and not log(sigmoid): at cosine 1 a negative pair has logit 105, where the
        # sigmoid is 0 in float32. Sum over videos, mean over texts: the paper's 1/B, not 1/B^2.
        return -F.logsigmoid(signed_logits).sum(dim=1).mean()


def margin_loss(
    scores: Float[Tensor, "pairs pairs"],
    positives: Bool[Tensor, "pairs pairs"],
    margin: float,
    *,
    hardest: bool = False,
) -> Float[Tensor, ""]:
    r"""Return the hinge loss of each wrong pair against the right pairs of its row and column.

    .. math:: [m + S_{ij} - S_{ii}]_+ \quad\text{and}\quad [m + S_{ji} - S_{ii}]_+, \quad j \neq i

    Text ``i`` belongs to video ``i``; other right pairs (captions of one video) are not negatives.
    Returns the mean of all terms; with ``hardest``, the largest term of each row, averaged over
    rows, plus the largest of each column, averaged over columns.
    """
    right = scores.diagonal()
    negatives = ~positives
    by_row = (margin + scores - right[:, None]).clamp_min(0.0).masked_fill(~negatives, 0.0)
    by_column = (margin + scores - right[None, :]).clamp_min(0.0).masked_fill(~negatives, 0.0)
    if hardest:
        return by_row.amax(dim=1).mean() + by_column.amax(dim=0).mean()
    count = (2 * negatives.sum()).clamp_min(1)
    return (by_row.sum() + by_column.sum()) / count
