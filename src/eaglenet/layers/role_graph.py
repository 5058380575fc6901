"""HGR's text graph: words in context, nodes from their spans, one layer of attention over edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import TextGraph
from eaglenet.layers.masking import masked_softmax


class WordGRU(nn.Module):
    """A bidirectional GRU over the real words; the mean of both directions."""

    def __init__(self, in_dim: int, dim: int, *, dropout: float = 0.2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.forward_network = nn.GRU(in_dim, dim, batch_first=True)
        self.backward_network = nn.GRU(in_dim, dim, batch_first=True)
        for network in (self.forward_network, self.backward_network):
            for name, parameter in network.named_parameters():
                if "weight" in name:
                    nn.init.orthogonal_(parameter)
                else:
                    nn.init.zeros_(parameter)

    def forward(
        self, words: Float[Tensor, "texts words width"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words dim"]:
        """Zeros where there is no word."""
        words = self.dropout(words.masked_fill(~mask[..., None], 0.0))
        ahead, _ = self.forward_network(words)
        # Real words in reverse come first, so that padding is read after them, never before.
        places = torch.arange(mask.shape[1], device=mask.device)
        turned = (mask.sum(dim=1, keepdim=True) - 1 - places).clamp_min(0)
        back, _ = self.backward_network(words.take_along_dim(turned[..., None], dim=1))
        back = back.take_along_dim(turned[..., None], dim=1)
        mean: Tensor = (ahead + back) / 2
        return mean.masked_fill(~mask[..., None], 0.0)


class RolePooling(nn.Module):
    """sum_i softmax_i(a . x_i) x_i over the real entries; the softmax needs no bias."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, 1, bias=False)

    def forward(
        self, values: Float[Tensor, "sets entries dim"], mask: Bool[Tensor, "sets entries"]
    ) -> Float[Tensor, "sets dim"]:
        weights = masked_softmax(self.query(values).squeeze(-1), mask)
        return torch.einsum("ne,ned->nd", weights, values)


class RoleGraph(nn.Module):
    r"""Nodes of a sentence and what they hear from each other.

    A node is the maximum over its words times the embedding of its role; the sentence is pooled by
    attention. Then one layer, over the nodes j that node i hears:

    .. math:: g'_i = \mathrm{LN}\Big(g_i + \mathrm{drop}\big(W_c \sum_j b_{ij} g_j\big)\Big), \qquad
        b_{ij} = \mathrm{softmax}_j \frac{\langle W_q g_i, W_k g_j \rangle}{\sqrt{d/2}}

    Paper: nodes that are not there are masked at once; the key map has no bias, which the softmax
    would cancel.
    """

    def __init__(self, dim: int, *, num_roles: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.pooling = RolePooling(dim)
        self.roles = nn.Parameter(torch.randn(num_roles, dim))
        self.query = nn.Linear(dim, dim // 2)
        self.key = nn.Linear(dim, dim // 2, bias=False)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        words: Float[Tensor, "texts words dim"],
        mask: Bool[Tensor, "texts words"],
        graph: TextGraph,
    ) -> tuple[Float[Tensor, "texts nodes dim"], Bool[Tensor, "texts nodes"]]:
        """Nodes, the sentence first, and which are there."""
        missing = max(words.shape[1] - graph.spans.shape[2], 0)
        spans = F.pad(graph.spans, (0, missing))[..., : words.shape[1]] & mask[:, None]
        exists = spans.any(dim=-1)
        nodes = self._nodes(words, spans, graph.roles)
        sentence = self.pooling(words, mask)
        nodes = torch.cat([sentence[:, None], nodes[:, 1:]], dim=1)
        exists = torch.cat([exists.new_ones(len(exists), 1), exists[:, 1:]], dim=1)
        logits = self.query(nodes) @ self.key(nodes).transpose(1, 2)
        heard = graph.edges & exists[:, None, :] & exists[:, :, None]
        shares = masked_softmax(logits / self.key.out_features**0.5, heard)
        told = self.dropout(self.mix(shares @ nodes))
        return self.norm(nodes + told), exists

    def _nodes(
        self,
        words: Float[Tensor, "texts words dim"],
        spans: Bool[Tensor, "texts nodes words"],
        roles: Int[Tensor, "texts nodes"],
    ) -> Float[Tensor, "texts nodes dim"]:
        lowest = torch.finfo(words.dtype).min
        largest = words[:, None].masked_fill(~spans[..., None], lowest).amax(dim=2)
        largest = largest.masked_fill(~spans.any(dim=-1)[..., None], 0.0)
        return largest * self.roles[roles]
