"""Layers over experts: token sequences, VLAD, gated and collaborative embedding units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Expert
from eaglenet.layers.masking import MaskedBatchNorm, Padding, effective_mask

UNKNOWN_TIME = 1
"""Position index of tokens whose time is unknown."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence of tokens per video; ``aggregates``: index of the summary of each expert."""

    tokens: Float[Tensor, "videos length dim"]
    mask: Bool[Tensor, "videos length"]
    aggregates: Int[Tensor, "experts"]
    present: Bool[Tensor, "videos experts"]


def require_positions(count: int) -> None:
    """Raise ``ConfigError`` for too few positions: summaries and unknown times have one each."""
    if count <= UNKNOWN_TIME:
        raise ConfigError(f"num_positions is {count}; it must be {UNKNOWN_TIME + 1} or more")


def limit_tokens(expert: Expert, limit: int, *, is_random: bool) -> Expert:
    """Select at most ``limit`` tokens per video, at random or evenly spaced, in order."""
    count = expert.mask.shape[1]
    if not limit or count <= limit:
        return expert
    if is_random:
        keys = torch.rand(expert.mask.shape, device=expert.mask.device)
    else:
        # The first token in each of `limit` equal steps.
        order = expert.mask.cumsum(dim=1) - 1
        total = expert.mask.sum(dim=1, keepdim=True).clamp_min(1)
        step = torch.div(order * limit, total, rounding_mode="floor")
        before = torch.div((order - 1) * limit, total, rounding_mode="floor")
        is_first = (step != before) | (order == 0) | (total <= limit)
        keys = torch.where(is_first, 0.0, 1.0) + torch.arange(count, device=order.device) * 1e-6
    keys = keys.masked_fill(~expert.mask, float("inf"))
    indices = keys.argsort(dim=1)[:, :limit].sort(dim=1).values
    seconds = None if expert.seconds is None else expert.seconds.gather(1, indices)
    values = expert.values.take_along_dim(indices[..., None], dim=1)
    return Expert(values, expert.mask.gather(1, indices), seconds)


class ExpertTokens(nn.Module):
    r"""Token sequence: [CLS], then the summary and the tokens of each expert.

    .. math:: \mathrm{LN}(r_e(x) + P[\mathrm{position}] + T[e]), \qquad
        r_e(x) = \mathrm{unit}(W_e x + b_e)

    A summary is r_e of the maximum over the tokens of an expert. Positions are 0 for CLS and
    summaries, 1 for tokens of unknown time, else floor(seconds + 2), at most the last one.

    Args:
        padding: with ``masked``, the summary of a missing expert is its type only; with
            ``official`` also r_e(0), the unit bias, as in the code of the authors.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        dim: int,
        *,
        num_positions: int = 32,
        max_tokens: int = 30,
        dropout: float = 0.1,
        padding: Padding = "masked",
    ) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.padding: Padding = padding
        self.maps = nn.ModuleDict({name: nn.Linear(width, dim) for name, width in widths.items()})
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, dim))
        self.types = nn.Parameter(0.02 * torch.randn(1 + len(widths), dim))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def project(
        self, name: str, values: Float[Tensor, "*rows width"]
    ) -> Float[Tensor, "*rows dim"]:
        """Map the values of an expert to unit vectors: r_e."""
        return F.normalize(self.maps[name](values), dim=-1)

    def position_rows(self, expert: Expert) -> Int[Tensor, "videos tokens"]:
        """Return the row of the position table for each token."""
        if expert.seconds is None:
            return torch.full_like(expert.mask, UNKNOWN_TIME, dtype=torch.int64)
        positions = (expert.seconds + 2).floor().clamp(0, len(self.positions) - 1).long()
        return positions.masked_fill(~expert.mask | (expert.seconds < 0), UNKNOWN_TIME)

    def forward(self, experts: Mapping[str, Expert]) -> TokenSequence:
        first = next(iter(experts.values()))
        count = len(first.mask)
        sequence = [(self.types[0] + self.positions[0]).expand(count, 1, -1)]
        masks = [first.mask.new_ones(count, 1)]
        aggregates, length = [], 1
        for number, (name, whole) in enumerate(experts.items(), start=1):
            expert = limit_tokens(whole, self.max_tokens, is_random=self.training)
            type_vector = self.types[number]
            summary = self._summary(name, whole) + self.positions[0] + type_vector
            positions = self.positions[self.position_rows(expert)]
            tokens = self.project(name, expert.values) + positions + type_vector
            sequence += [summary[:, None], tokens]
            masks += [whole.present[:, None], expert.mask]
            aggregates.append(length)
            length += 1 + tokens.shape[1]
        return TokenSequence(
            tokens=self.dropout(self.norm(torch.cat(sequence, dim=1))),
            mask=torch.cat(masks, dim=1),
            aggregates=torch.tensor(aggregates, device=first.mask.device),
            present=torch.stack([expert.present for expert in experts.values()], dim=1),
        )

    def _summary(self, name: str, expert: Expert) -> Float[Tensor, "videos dim"]:
        lowest = torch.finfo(expert.values.dtype).min
        largest = expert.values.masked_fill(~expert.mask[..., None], lowest).amax(dim=1)
        largest = largest.masked_fill(~expert.present[:, None], 0.0)
        summary = self.project(name, largest)
        return summary * effective_mask(expert.present, self.padding)[:, None].to(summary.dtype)


class Vlad(nn.Module):
    r"""VLAD: sums of the residuals of tokens, softly assigned to centres.

    .. math:: \alpha_i = \mathrm{softmax}(\mathrm{BN}(C^\top x_i)), \qquad
        V_k = \mathrm{unit}\Big(\sum_i \alpha_{ik} (x_i - c_k)\Big)

    The result is the unit vector of all V_k, so that the product of two results is the mean cosine
    over centres. Ghost centres take part in the assignment only.

    Args:
        num_sides: number of batch normalisations; 2 if texts and videos share centres (T2VLAD).

    Paper: padded tokens are left out; the released code of CE and T2VLAD aggregates them.
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
        """Aggregate tokens; ``learn_assignment=False`` detaches the assignment (T2VLAD)."""
        assign = self.assign if learn_assignment else self.assign.detach()
        assignment = self.norms[side](tokens @ assign, mask).softmax(dim=-1)[
            ..., : self.num_centres
        ]
        assignment = assignment.masked_fill(~mask[..., None], 0.0)
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
        sums = torch.einsum("ntk,ntd->nkd", assignment, tokens)
        residuals = sums - assignment.sum(dim=1)[..., None] * self.centres
        return F.normalize(F.normalize(residuals, dim=-1).flatten(1), dim=-1)


class GatedEmbedding(nn.Module):
    r"""Linear map whose output gates itself (MEE; used by CE, MMT and T2VLAD).

    .. math:: u = W x + c, \qquad \mathrm{out} = \mathrm{unit}(u \circ \sigma(\mathrm{BN}(W' u)))

    Paper: the second map has no bias, which the batch normalisation after it would cancel.
    """

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = MaskedBatchNorm(dim)

    def forward(
        self, values: Float[Tensor, "rows in_dim"], mask: Bool[Tensor, "rows"] | None = None
    ) -> Float[Tensor, "rows dim"]:
        """Embed rows; only rows where ``mask`` is true enter the statistics."""
        vectors = self.embed(values)
        return F.normalize(vectors * torch.sigmoid(self.norm(self.gate(vectors), mask)), dim=-1)


class PairNetwork(nn.Module):
    """g(x, y): influence of expert y on expert x; three maps with Mish between them (CE).

    Args:
        bias: adds a bias to the last map, as in the official code. It has an effect only with
            missing experts; otherwise the batch normalisation after the map cancels it.
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
        states = self.first(torch.cat([left, right], dim=-1))
        states = F.mish(self.first_norm(states, mask))
        states = F.mish(self.second_norm(self.second(states), mask))
        result: Tensor = self.last(states)
        return result


class CollaborativeGate(nn.Module):
    r"""Gate of every expert by all experts of its video (CE, eqs. 4 and 5).

    .. math:: m_e = \frac{\sum_j a_e a_j g(x_e, x_j)}{\sum_j a_e a_j}, \qquad
        v_e = \mathrm{unit}(x_e \circ \sigma(\mathrm{BN}_1(m_e) + \mathrm{BN}_2(W_e x_e)))

    Args:
        sequential: gate experts one after the other, as in the official code: an expert sees the
            gated vectors of those before it, and every call of g has separate statistics.
        padding: with ``official``, missing experts enter the network and its statistics, as in the
            code of the authors; with ``masked`` they do not.

    Maps before a batch normalisation have no bias, which it would cancel.
    """

    def __init__(
        self, dim: int, num_experts: int, *, sequential: bool = False, padding: Padding = "masked"
    ) -> None:
        super().__init__()
        self.sequential = sequential
        self.padding: Padding = padding
        # A single expert is never missing, so its bias would have no effect.
        self.pair = PairNetwork(dim, bias=padding == "official" and num_experts > 1)
        self.maps = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(num_experts))
        self.pair_norms = nn.ModuleList(MaskedBatchNorm(dim) for _ in range(num_experts))
        self.own_norms = nn.ModuleList(MaskedBatchNorm(dim) for _ in range(num_experts))

    def forward(
        self, experts: Float[Tensor, "videos experts dim"], present: Bool[Tensor, "videos experts"]
    ) -> Float[Tensor, "videos experts dim"]:
        """Return gated unit vectors; with ``padding="masked"``, missing experts are zeros."""
        states = list(experts.unbind(dim=1))
        gated_vectors: list[Tensor] = []
        for index in range(len(states)):
            messages = self._messages(index, states, present)
            mask = effective_mask(present[:, index], self.padding)
            gate = self.pair_norms[index](messages, mask) + self.own_norms[index](
                self.maps[index](states[index]), mask
            )
            vector = F.normalize(states[index] * torch.sigmoid(gate), dim=-1)
            gated_vectors.append(vector * mask[:, None].to(vector.dtype))
            if self.sequential:
                states[index] = gated_vectors[-1]
        return torch.stack(gated_vectors, dim=1)

    def _messages(
        self, index: int, states: list[Tensor], present: Bool[Tensor, "videos experts"]
    ) -> Float[Tensor, "videos dim"]:
        """Return m_e, the mean influence of all experts of a video on expert ``index``."""
        pairs = present & present[:, index : index + 1]
        mask = effective_mask(pairs, self.padding)
        if self.sequential:
            pair_messages = [
                self.pair(states[index], other, mask[:, number])
                for number, other in enumerate(states)
            ]
            messages = torch.stack(pair_messages, dim=1)
        else:
            others = torch.stack(states, dim=1)
            messages = self.pair(states[index][:, None].expand_as(others), others, mask)
        weights = pairs.to(messages.dtype)
        total = (messages * weights[..., None]).sum(dim=1)
        return total / weights.sum(dim=1, keepdim=True).clamp_min(1.0)
