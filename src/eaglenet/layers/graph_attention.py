"""Attention layers of the text-frame graph: relational (RGAT) and plain (GAT).

Texts come as ``[texts, videos, nodes, dim]`` and frames as ``[1, videos, frames, dim]`` as long as
they do not depend on the text (the first layer), ``[texts, videos, frames, dim]`` after. So what
depends on a video alone is computed once per video, and the four blocks of the adjacency (text to
text, text to frame, frame to text, frame to frame) are kept apart: no ``[nodes, nodes]`` matrix of
zeros is ever built.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.layers.masking import masked_softmax

Texts = Float[Tensor, "texts videos nodes dim"]
Frames = Float[Tensor, "#texts videos frames dim"]
Mask = Bool[Tensor, "videos frames"]


class Relation(nn.Module):
    """``psi([W h_i || W h_j]) = query . W h_i + key . W h_j`` of one kind of edge, for each head.

    Paper eq. 5. The heads share ``query`` and ``key``, as ``psi^r`` carries no head index.
    """

    def __init__(
        self, in_dim: int, *, num_heads: int, head_dim: int, query: bool = True, key: bool = True
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.projection = nn.Linear(in_dim, num_heads * head_dim, bias=False)
        self.query = _attention_vector(head_dim) if query else None
        self.key = _attention_vector(head_dim) if key else None

    def messages(
        self, nodes: Float[Tensor, "*batch nodes dim"]
    ) -> Float[Tensor, "*batch nodes heads head_dim"]:
        """``W^h h_j`` of every node and head."""
        return torch.unflatten(self.projection(nodes), -1, (self.num_heads, self.head_dim))

    def collapsed(self, vector: Float[Tensor, "head_dim"]) -> Float[Tensor, "heads dim"]:
        """``vector . W^h``: a score needs one dot product per head, not a projection."""
        weight = torch.unflatten(self.projection.weight, 0, (self.num_heads, self.head_dim))
        return torch.einsum("k,hkd->hd", vector, weight)

    def query_scores(
        self, nodes: Float[Tensor, "*batch nodes dim"]
    ) -> Float[Tensor, "*batch heads nodes"]:
        """``query . W^h h_i``."""
        if self.query is None:
            raise RuntimeError("this relation was built without a query vector")
        return F.linear(nodes, self.collapsed(self.query)).transpose(-1, -2)

    def key_scores(
        self, nodes: Float[Tensor, "*batch nodes dim"]
    ) -> Float[Tensor, "*batch heads nodes"]:
        """``key . W^h h_j``."""
        if self.key is None:
            raise RuntimeError("this relation was built without a key vector")
        return F.linear(nodes, self.collapsed(self.key)).transpose(-1, -2)


class RelationalAttention(nn.Module):
    """One message-passing layer with a relation for each kind of edge (paper eqs. 6, 7).

    ``h_i' = ReLU(W_out h_i + ||_h sum_r sum_j alpha_ij^{r,h} W^{r,h} h_j)``,
    ``alpha^{r,h} = softmax_j LeakyReLU(psi^r)`` over the neighbours of relation r.

    shared_residual: ``W_out`` gives one head's width, added to every head (released code), instead
        of the width of all heads (paper).
    update_frames: false where nothing reads the frames this layer would give; the frame-frame
        relation is then not built either.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        num_heads: int,
        head_dim: int,
        frame_edges: bool = True,
        update_frames: bool = True,
        shared_residual: bool = False,
        negative_slope: float = 0.1,
    ) -> None:
        super().__init__()
        self.update_frames = update_frames
        self.negative_slope = negative_slope
        self.text_text = Relation(in_dim, num_heads=num_heads, head_dim=head_dim)
        self.text_frame = Relation(in_dim, num_heads=num_heads, head_dim=head_dim)
        self.frame_frame = (
            Relation(in_dim, num_heads=num_heads, head_dim=head_dim)
            if update_frames and frame_edges
            else None
        )
        residual_heads = 1 if shared_residual else num_heads
        self.residual = nn.Linear(in_dim, residual_heads * head_dim, bias=False)
        self.head_dim = head_dim

    def forward(
        self, texts: Texts, frames: Frames, mask: Mask | None
    ) -> tuple[Float[Tensor, "texts videos nodes out"], Tensor]:
        """Return new texts and frames; frames that are not updated stay unchanged."""
        new_texts = self._attend(self.text_text, texts, texts, None)
        new_texts = new_texts + self._attend(self.text_frame, texts, frames, mask)
        new_texts = F.relu(new_texts + self._residual(texts)).flatten(-2)
        if not self.update_frames:
            return new_texts, frames
        new_frames = self._attend(self.text_frame, frames, texts, None)
        if self.frame_frame is not None:
            new_frames = new_frames + self._attend(self.frame_frame, frames, frames, mask)
        return new_texts, F.relu(new_frames + self._residual(frames)).flatten(-2)

    def _residual(self, nodes: Tensor) -> Tensor:
        return torch.unflatten(self.residual(nodes), -1, (-1, self.head_dim))

    def _attend(
        self, relation: Relation, queries: Tensor, keys: Tensor, mask: Mask | None
    ) -> Tensor:
        logits = pair_scores(relation.query_scores(queries), relation.key_scores(keys))
        logits = F.leaky_relu(logits, self.negative_slope)
        weights = masked_softmax(logits, None if mask is None else mask[:, None, None])
        return aggregate(weights, relation.messages(keys))


class PlainAttention(nn.Module):
    """One GAT layer: a single relation, every node a neighbour of every node, no ``W_out``.

    Paper eqs. 25-27 (appendix F.2). Without ``frame_edges`` frames attend to texts only.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        num_heads: int,
        head_dim: int,
        frame_edges: bool = True,
        update_frames: bool = True,
        negative_slope: float = 0.1,
    ) -> None:
        super().__init__()
        self.update_frames = update_frames
        self.frame_edges = frame_edges
        self.negative_slope = negative_slope
        self.relation = Relation(in_dim, num_heads=num_heads, head_dim=head_dim)

    def forward(
        self, texts: Texts, frames: Frames, mask: Mask | None
    ) -> tuple[Float[Tensor, "texts videos nodes out"], Tensor]:
        """Return new texts and frames; frames that are not updated stay unchanged."""
        text_keys, frame_keys = self.relation.key_scores(texts), self.relation.key_scores(frames)
        text_messages, frame_messages = (
            self.relation.messages(texts),
            self.relation.messages(frames),
        )
        queries = self.relation.query_scores(texts)
        to_texts, to_frames = self._weights(queries, text_keys, frame_keys, mask)
        new_texts = aggregate(to_texts, text_messages) + aggregate(to_frames, frame_messages)
        new_texts = F.relu(new_texts).flatten(-2)
        if not self.update_frames:
            return new_texts, frames
        queries = self.relation.query_scores(frames)
        if not self.frame_edges:
            logits = F.leaky_relu(pair_scores(queries, text_keys), self.negative_slope)
            new_frames = aggregate(logits.softmax(dim=-1), text_messages)
            return new_texts, F.relu(new_frames).flatten(-2)
        to_texts, to_frames = self._weights(queries, text_keys, frame_keys, mask)
        new_frames = aggregate(to_texts, text_messages) + aggregate(to_frames, frame_messages)
        return new_texts, F.relu(new_frames).flatten(-2)

    def _weights(
        self, queries: Tensor, text_keys: Tensor, frame_keys: Tensor, mask: Mask | None
    ) -> tuple[Tensor, Tensor]:
        """Apply one softmax over texts and frames, and split it into the two parts."""
        to_texts = F.leaky_relu(pair_scores(queries, text_keys), self.negative_slope)
        to_frames = F.leaky_relu(pair_scores(queries, frame_keys), self.negative_slope)
        if mask is not None:
            lowest = torch.finfo(to_frames.dtype).min
            to_frames = to_frames.masked_fill(~mask[:, None, None], lowest)
        to_frames = to_frames.expand(*to_texts.shape[:-1], to_frames.shape[-1])
        weights = torch.cat([to_texts, to_frames], dim=-1).softmax(dim=-1)
        num_texts = to_texts.shape[-1]
        return weights[..., :num_texts], weights[..., num_texts:]


def pair_scores(
    queries: Float[Tensor, "#texts videos heads queries"],
    keys: Float[Tensor, "#texts videos heads keys"],
) -> Float[Tensor, "#texts videos heads queries keys"]:
    """The additive ``psi`` of every pair of nodes."""
    return queries[..., :, None] + keys[..., None, :]


def aggregate(
    weights: Float[Tensor, "#texts videos heads queries keys"],
    messages: Float[Tensor, "#texts videos keys heads head_dim"],
) -> Float[Tensor, "#texts videos queries heads head_dim"]:
    """``sum_j alpha_ij W h_j``; messages that do not depend on the text are not copied per text."""
    weights = weights.to(messages.dtype)
    if messages.shape[0] == 1:
        return torch.einsum("tvhij,vjhd->tvihd", weights, messages[0])
    return torch.einsum("tvhij,tvjhd->tvihd", weights, messages)


def _attention_vector(dim: int) -> nn.Parameter:
    """Initialise a vector like a linear map to one number."""
    limit = 1.0 / math.sqrt(dim)
    return nn.Parameter(torch.empty(dim).uniform_(-limit, limit))
