"""HGR's text graph: words in context, nodes from their spans, attention over edges."""

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
        """Return the states of the words; zeros for padding."""
        words = self.dropout(words.masked_fill(~mask[..., None], 0.0))
        ahead, _ = self.forward_network(words)
        # Real words in reverse come first, so that padding is read after them, never before.
        indices = torch.arange(mask.shape[1], device=mask.device)
        reverse = (mask.sum(dim=1, keepdim=True) - 1 - indices).clamp_min(0)
        back, _ = self.backward_network(words.take_along_dim(reverse[..., None], dim=1))
        back = back.take_along_dim(reverse[..., None], dim=1)
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


class RoleGraphLayer(nn.Module):
    r"""Attention of each node ``i`` over the nodes ``j`` with an edge to it.

    .. math:: g'_i = \mathrm{LN}\Big(g_i + \mathrm{drop}\big(W_c \sum_j b_{ij} g_j\big)\Big), \qquad
        b_{ij} = \mathrm{softmax}_j \frac{\langle W_q g_i, W_k g_j \rangle}{\sqrt{d/2}}

    The key map has no bias, which the softmax would cancel.
    """

    def __init__(self, dim: int, *, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim // 2)
        self.key = nn.Linear(dim, dim // 2, bias=False)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, nodes: Float[Tensor, "texts nodes dim"], edges: Bool[Tensor, "texts nodes nodes"]
    ) -> Float[Tensor, "texts nodes dim"]:
        logits = self.query(nodes) @ self.key(nodes).transpose(1, 2)
        weights = masked_softmax(logits / self.key.out_features**0.5, edges)
        messages = self.dropout(self.mix(weights @ nodes))
        result: Tensor = self.norm(nodes + messages)
        return result


class RoleGraph(nn.Module):
    """Nodes of a sentence after a few layers of attention over their edges.

    A node is the maximum over its words times the embedding of its role; the sentence is pooled by
    attention. Nodes without words are masked at once.
    """

    def __init__(
        self, dim: int, *, num_roles: int, num_layers: int = 1, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.pooling = RolePooling(dim)
        self.roles = nn.Parameter(torch.randn(num_roles, dim))
        self.layers = nn.ModuleList(RoleGraphLayer(dim, dropout=dropout) for _ in range(num_layers))

    def forward(
        self,
        words: Float[Tensor, "texts words dim"],
        mask: Bool[Tensor, "texts words"],
        graph: TextGraph,
    ) -> tuple[Float[Tensor, "texts nodes dim"], Bool[Tensor, "texts nodes"]]:
        """Return the nodes, the whole text first, and a mask of those that exist."""
        missing = max(words.shape[1] - graph.spans.shape[2], 0)
        spans = F.pad(graph.spans, (0, missing))[..., : words.shape[1]] & mask[:, None]
        exists = spans.any(dim=-1)
        nodes = self._nodes(words, spans, graph.roles)
        sentence = self.pooling(words, mask)
        nodes = torch.cat([sentence[:, None], nodes[:, 1:]], dim=1)
        exists = torch.cat([exists.new_ones(len(exists), 1), exists[:, 1:]], dim=1)
        edges = graph.edges & exists[:, None, :] & exists[:, :, None]
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes, exists

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
