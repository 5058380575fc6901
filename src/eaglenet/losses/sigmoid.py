"""Sigmoid loss: every text-video pair is classified independently."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class SigmoidLoss(nn.Module):
    """``-1/B sum_ij log sigmoid(I_ij (exp(tau_p) s_ij + b))`` with learnable ``tau_p`` and ``b``.

    ``I`` is +1 for positives and -1 otherwise; several positives in a row or column are fine.

    Paper: eq. 18, which prints the sign inside the exponential the wrong way round.
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
