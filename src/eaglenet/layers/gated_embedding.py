"""Gated embedding units, and their collaborative form in which experts gate each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.layers.masking import MaskedBatchNorm, Padding, visible


class GatedEmbedding(nn.Module):
    r"""A linear map whose output gates itself (MEE; used by CE, MMT and T2VLAD).

    .. math:: u = W x + c, \qquad \mathrm{out} = \mathrm{unit}(u \circ \sigma(\mathrm{BN}(W' u)))

    Paper: the second map has no bias; the batch normalisation after it would take it away.
    """

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = MaskedBatchNorm(dim)

    def forward(
        self, values: Float[Tensor, "rows in_dim"], mask: Bool[Tensor, "rows"] | None = None
    ) -> Float[Tensor, "rows dim"]:
        """``mask`` marks the real rows; the others do not enter the statistics."""
        embedded = self.embed(values)
        return F.normalize(embedded * torch.sigmoid(self.norm(self.gate(embedded), mask)), dim=-1)


class PairNetwork(nn.Module):
    """g(x, y): influence of expert y on expert x; three maps with Mish between them (CE).

    Args:
        bias: of the last map. Without missing experts the batch normalisation after it takes a
            bias away; the official code has one, and missing experts that do not get it.
    """

    def __init__(self, dim: int, *, bias: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(2 * dim, dim, bias=False)
        self.first_norm = MaskedBatchNorm(dim)
        self.second = nn.Linear(dim, dim, bias=False)
        self.second_norm = MaskedBatchNorm(dim)
        self.last = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        left: Float[Tensor, "*rows dim"],
        right: Float[Tensor, "*rows dim"],
        mask: Bool[Tensor, "*rows"],
    ) -> Float[Tensor, "*rows dim"]:
        hidden = self.first(torch.cat([left, right], dim=-1))
        hidden = F.mish(self.first_norm(hidden, mask))
        hidden = F.mish(self.second_norm(self.second(hidden), mask))
        result: Tensor = self.last(hidden)
        return result


class CollaborativeGate(nn.Module):
    r"""Every expert is gated by all experts of its video (CE, eq. 4 and 5).

    .. math:: m_e = \frac{\sum_j a_e a_j g(x_e, x_j)}{\sum_j a_e a_j}, \qquad
        v_e = \mathrm{unit}(x_e \circ \sigma(\mathrm{BN}_1(m_e) + \mathrm{BN}_2(W_e x_e)))

    Args:
        sequential: as in the official code, which overwrites expert after expert: an expert sees
            the gated vectors of those before it, and every call of g has statistics of its own.
        padding: with ``official`` missing experts run through the network and enter its
            statistics, as in the authors' code; with ``masked`` they do not.

    No biases before a batch normalisation, which would take them away.
    """

    def __init__(
        self,
        dim: int,
        num_experts: int,
        *,
        sequential: bool = False,
        padding: Padding = "masked",
    ) -> None:
        super().__init__()
        self.sequential = sequential
        self.padding: Padding = padding
        # A single expert is never missing, so that its bias would have no effect.
        self.pair = PairNetwork(dim, bias=padding == "official" and num_experts > 1)
        self.maps = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(num_experts))
        self.pair_norms = nn.ModuleList(MaskedBatchNorm(dim) for _ in range(num_experts))
        self.own_norms = nn.ModuleList(MaskedBatchNorm(dim) for _ in range(num_experts))

    def forward(
        self,
        experts: Float[Tensor, "videos experts dim"],
        present: Bool[Tensor, "videos experts"],
    ) -> Float[Tensor, "videos experts dim"]:
        """Gated unit vectors; with ``padding="masked"`` zeros where an expert is missing."""
        states = list(experts.unbind(dim=1))
        gated: list[Tensor] = []
        for index in range(len(states)):
            messages = self._messages(index, states, present)
            mask = visible(present[:, index], self.padding)
            gate = self.pair_norms[index](messages, mask) + self.own_norms[index](
                self.maps[index](states[index]), mask
            )
            vector = F.normalize(states[index] * torch.sigmoid(gate), dim=-1)
            gated.append(vector * mask[:, None].to(vector.dtype))
            if self.sequential:
                states[index] = gated[-1]
        return torch.stack(gated, dim=1)

    def _messages(
        self, index: int, states: list[Tensor], present: Bool[Tensor, "videos experts"]
    ) -> Float[Tensor, "videos dim"]:
        """m_e: mean influence of all experts of a video on expert ``index``."""
        pairs = present & present[:, index : index + 1]
        mask = visible(pairs, self.padding)
        if self.sequential:
            parts = [
                self.pair(states[index], other, mask[:, number])
                for number, other in enumerate(states)
            ]
            messages = torch.stack(parts, dim=1)
        else:
            others = torch.stack(states, dim=1)
            messages = self.pair(states[index][:, None].expand_as(others), others, mask)
        weights = pairs.to(messages.dtype)
        total = (messages * weights[..., None]).sum(dim=1)
        return total / weights.sum(dim=1, keepdim=True).clamp_min(1.0)
