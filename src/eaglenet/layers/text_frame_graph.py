"""Text-frame graph: weighs text nodes by their relations with the frames."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.masking import frame_weights, masked_softmax

Texts = Float[Tensor, "texts videos nodes dim"]
Frames = Float[Tensor, "#texts videos frames dim"]
Mask = Bool[Tensor, "videos frames"]


class Relation(nn.Module):
    """``psi([W h_i || W h_j]) = query . W h_i + key . W h_j`` per head, for one kind of edge.

    Paper eq. 5. The heads share ``query`` and ``key``, as ``psi^r`` has no head index.
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
        """Return ``W^h h_j`` for every node and head."""
        return torch.unflatten(self.projection(nodes), -1, (self.num_heads, self.head_dim))

    def collapse(self, vector: Float[Tensor, "head_dim"]) -> Float[Tensor, "heads dim"]:
        """Return ``vector . W^h``, so that a score takes one dot product per head."""
        weight = torch.unflatten(self.projection.weight, 0, (self.num_heads, self.head_dim))
        return torch.einsum("k,hkd->hd", vector, weight)

    def query_scores(
        self, nodes: Float[Tensor, "*batch nodes dim"]
    ) -> Float[Tensor, "*batch heads nodes"]:
        """Return ``query . W^h h_i``."""
        if self.query is None:
            raise RuntimeError("the relation has no query vector")
        return F.linear(nodes, self.collapse(self.query)).transpose(-1, -2)

    def key_scores(
        self, nodes: Float[Tensor, "*batch nodes dim"]
    ) -> Float[Tensor, "*batch heads nodes"]:
        """Return ``key . W^h h_j``."""
        if self.key is None:
            raise RuntimeError("the relation has no key vector")
        return F.linear(nodes, self.collapse(self.key)).transpose(-1, -2)


class RelationalAttention(nn.Module):
    """Message-passing layer with one relation per kind of edge (paper eqs. 6, 7).

    ``h_i' = ReLU(W_out h_i + ||_h sum_r sum_j alpha_ij^{r,h} W^{r,h} h_j)``,
    ``alpha^{r,h} = softmax_j LeakyReLU(psi^r)`` over the neighbours of relation r.

    shared_residual: the output of ``W_out`` has the width of one head and is added to every head
        (released code), instead of the width of all heads (paper).
    update_frames: False if nothing reads the frames of this layer; the frame-frame relation is
        not built either.
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
    """GAT layer: a single relation, all nodes are neighbours, no ``W_out``.

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
        """Return the weights for texts and for frames, of one softmax over both."""
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
    """Return the additive ``psi`` of every pair of nodes."""
    return queries[..., :, None] + keys[..., None, :]


def aggregate(
    weights: Float[Tensor, "#texts videos heads queries keys"],
    messages: Float[Tensor, "#texts videos keys heads head_dim"],
) -> Float[Tensor, "#texts videos queries heads head_dim"]:
    """Return ``sum_j alpha_ij W h_j``; messages that all texts share are not copied per text."""
    weights = weights.to(messages.dtype)
    if messages.shape[0] == 1:
        return torch.einsum("tvhij,vjhd->tvihd", weights, messages[0])
    return torch.einsum("tvhij,tvjhd->tvihd", weights, messages)


def _attention_vector(dim: int) -> nn.Parameter:
    """Return a vector initialised like a linear map to one number."""
    limit = 1.0 / math.sqrt(dim)
    return nn.Parameter(torch.empty(dim).uniform_(-limit, limit))


GraphKind = Literal["rgat", "gat"]
HeadSize = Literal["full", "split"]
EdgeWeights = Literal["raw", "activated"]
EdgeDirection = Literal["text_to_frame", "frame_to_text"]


class TextFrameEdges(nn.Module):
    """Last layer: the weights of text-frame edges, averaged over heads and frames.

    ``e_i = 1/(H M) sum_h sum_j e_ij^{tf,h}`` (paper eqs. 8, 9).
    Nothing reads messages of this layer, so it has the text-frame relation only.

    edge_weights: ``raw`` reads ``e`` before the LeakyReLU (paper). There psi is the sum of a text
        term and a frame term, and the frame term is equal for all text nodes and cancels in the
        softmax over them, so the frame vector of psi is not built. ``activated`` reads ``e`` after
        the LeakyReLU (released code), so that the frames of the last layer have an effect.
    edge_direction: ``text_to_frame`` takes the text as the query of psi (paper), ``frame_to_text``
        the frame (released code).
    """

    def __init__(
        self,
        in_dim: int,
        *,
        num_heads: int,
        head_dim: int,
        edge_weights: EdgeWeights = "raw",
        edge_direction: EdgeDirection = "text_to_frame",
        negative_slope: float = 0.1,
    ) -> None:
        super().__init__()
        self.edge_weights = edge_weights
        self.negative_slope = negative_slope
        self.text_is_query = edge_direction == "text_to_frame"
        with_frames = edge_weights == "activated"
        self.relation = Relation(
            in_dim,
            num_heads=num_heads,
            head_dim=head_dim,
            query=self.text_is_query or with_frames,
            key=not self.text_is_query or with_frames,
        )

    def forward(
        self,
        texts: Float[Tensor, "texts videos nodes dim"],
        frames: Float[Tensor, "#texts videos frames _"],
        mask: Bool[Tensor, "videos frames"] | None,
    ) -> Float[Tensor, "texts videos nodes"]:
        relation = self.relation
        text_scores = relation.query_scores if self.text_is_query else relation.key_scores
        if self.edge_weights == "raw":
            return text_scores(texts).mean(dim=-2)
        frame_scores = relation.key_scores if self.text_is_query else relation.query_scores
        edges = pair_scores(text_scores(texts), frame_scores(frames))
        edges = F.leaky_relu(edges, self.negative_slope).mean(dim=2)  # mean over heads
        if mask is None:
            return edges.mean(dim=-1)
        return torch.einsum("tvnf,vf->tvn", edges, frame_weights(mask, edges.dtype))


class TextFrameGraph(nn.Module):
    """Graph that weighs the text nodes of every pair by their relations with frames (3.2.1).

    Hidden layers pass messages over text-text, text-frame and frame-frame edges; the last layer
    only weighs text-frame edges. ``w = softmax_i e_i`` over the text nodes.

    kind: ``rgat`` (one relation per kind of edge) or ``gat`` (one for all, no residual).
    head_size: width of the heads of hidden layers: ``dim`` (``full``, paper) or ``dim / num_heads``
        (``split``, released code). The heads of the last layer always have the width ``dim``.
    frame_position: adds learned temporal positions to the frames of the graph.

    Parameters without a gradient are not built: with ``edge_weights="raw"`` nothing reads the
    frames of the last hidden layer, so that layer has no frame-frame relation; with one layer
    frames have no effect, so there is no position either.
    """

    def __init__(
        self,
        dim: int,
        num_frames: int,
        *,
        kind: GraphKind = "rgat",
        num_layers: int = 2,
        num_heads: int = 4,
        head_size: HeadSize = "full",
        shared_residual: bool = False,
        frame_edges: bool = True,
        frame_position: bool = True,
        edge_weights: EdgeWeights = "raw",
        edge_direction: EdgeDirection = "text_to_frame",
        negative_slope: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ConfigError(f"num_layers must be 1 or more, not {num_layers}")
        if head_size == "split" and dim % num_heads:
            raise ConfigError(
                f"dim {dim} cannot be split over {num_heads} heads; use a divisor or head_size=full"
            )
        head_dim = dim if head_size == "full" else dim // num_heads
        reads_last_frames = edge_weights == "activated"
        self.layers = nn.ModuleList()
        width = dim
        for index in range(num_layers - 1):
            options: dict[str, Any] = {
                "num_heads": num_heads,
                "head_dim": head_dim,
                "frame_edges": frame_edges,
                "update_frames": reads_last_frames or index < num_layers - 2,
                "negative_slope": negative_slope,
            }
            if kind == "rgat":
                self.layers.append(
                    RelationalAttention(width, **options, shared_residual=shared_residual)
                )
            else:
                self.layers.append(PlainAttention(width, **options))
            width = num_heads * head_dim
        self.edges = TextFrameEdges(
            width,
            num_heads=num_heads,
            head_dim=dim,
            edge_weights=edge_weights,
            edge_direction=edge_direction,
            negative_slope=negative_slope,
        )
        has_position = frame_position and (num_layers > 1 or reads_last_frames)
        self.position = nn.Parameter(torch.randn(num_frames, dim)) if has_position else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        texts: Float[Tensor, "texts videos nodes dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "texts videos nodes"]:
        """Return ``w`` of every text node; ``texts`` are the text itself and its candidates.

        Frames become nodes as ``f_j + PE(j)`` (paper eq. 4).
        """
        if self.position is not None:
            frames = frames + self.position[: frames.shape[1]]
        frame_nodes = frames[None]
        for layer in self.layers:
            texts, new_frames = layer(texts, frame_nodes, mask)
            texts = self.dropout(texts)
            frame_nodes = self.dropout(new_frames) if layer.update_frames else frame_nodes
        logits: Tensor = self.edges(texts, frame_nodes, mask)
        return logits.softmax(dim=-1)
