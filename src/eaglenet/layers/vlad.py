"""NetVLAD: a set of tokens as residuals from a few centres."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.layers.masking import MaskedBatchNorm


class Vlad(nn.Module):
    r"""Soft assignment to centres and the sum of residuals.

    .. math:: \alpha_i = \mathrm{softmax}(\mathrm{BN}(C^\top x_i)), \qquad
        V_k = \mathrm{unit}\Big(\sum_i \alpha_{ik} (x_i - c_k)\Big)

    The result is the unit vector of all V_k, so that the product of two of them is the mean cosine
    of their centres. Ghost centres take part in the assignment and are dropped.

    Args:
        num_sides: batch normalisations; 2 where texts and videos share the centres (T2VLAD).

    Paper: padded tokens are left out; the released codes of CE and T2VLAD aggregate them.
    """

    def __init__(
        self, dim: int, num_centres: int, *, num_ghosts: int = 0, num_sides: int = 1
    ) -> None:
        super().__init__()
        self.num_centres = num_centres
        self.assign = nn.Parameter(torch.randn(dim, num_centres + num_ghosts) / dim**0.5)
        self.centres = nn.Parameter(torch.randn(num_centres, dim) / dim**0.5)
        self.norms = nn.ModuleList(
            MaskedBatchNorm(num_centres + num_ghosts) for _ in range(num_sides)
        )

    @property
    def width(self) -> int:
        return self.centres.numel()

    def forward(
        self,
        tokens: Float[Tensor, "sets tokens dim"],
        mask: Bool[Tensor, "sets tokens"],
        *,
        side: int = 0,
        learn_assignment: bool = True,
    ) -> Float[Tensor, "sets width"]:
        """``learn_assignment=False`` keeps gradients from the assignment (T2VLAD's videos)."""
        assign = self.assign if learn_assignment else self.assign.detach()
        shares = self.norms[side](tokens @ assign, mask).softmax(dim=-1)[..., : self.num_centres]
        shares = shares.masked_fill(~mask[..., None], 0.0)
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
        sums = torch.einsum("ntk,ntd->nkd", shares, tokens)
        residuals = sums - shares.sum(dim=1)[..., None] * self.centres
        return F.normalize(F.normalize(residuals, dim=-1).flatten(1), dim=-1)
