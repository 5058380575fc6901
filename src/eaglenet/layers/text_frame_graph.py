"""Text-frame graph: weights of text nodes from their relations with the frames."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.layers.graph_attention import (
    PlainAttention,
    Relation,
    RelationalAttention,
    pair_scores,
)
from eaglenet.layers.masking import frame_weights

GraphKind = Literal["rgat", "gat"]
HeadSize = Literal["full", "split"]
EdgeWeights = Literal["raw", "activated"]
EdgeDirection = Literal["text_to_frame", "frame_to_text"]


class TextFrameEdges(nn.Module):
    """The last layer: the weight of every text-frame edge, averaged over heads and frames.

    ``e_i = 1/(H M) sum_h sum_j e_ij^{tf,h}`` (paper eqs. 8, 9).
    Its messages would never be read, so only the text-frame relation is there.

    ``raw`` reads ``e`` before the LeakyReLU (paper). As psi is a sum of a text and a frame part,
    the frame part is then the same for all texts and cancels in the softmax over texts: the frame
    vector of psi is not built. ``activated`` reads after the LeakyReLU (released code), which is
    what lets last-layer frames matter.
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
        edges = F.leaky_relu(edges, self.negative_slope).mean(
            dim=2
        )  # [texts, videos, nodes, frames]
        if mask is None:
            return edges.mean(dim=-1)
        return torch.einsum("tvnf,vf->tvn", edges, frame_weights(mask, edges.dtype))


class TextFrameGraph(nn.Module):
    """Weights of the text nodes of every pair, from their relations with frames (paper 3.2.1).

    Hidden layers pass messages over the edges text-text, text-frame and frame-frame; the last
    layer only weighs text-frame edges. ``w = softmax_i e_i`` over the text nodes.

    kind: ``rgat`` (a relation for each kind of edge) or ``gat`` (one for all, no residual).
    head_size: each head of a hidden layer is ``dim`` wide (``full``, paper) or ``dim / num_heads``
        (``split``, released code). The last layer's heads are always ``dim`` wide.
    frame_position: learnable temporal position, added to the frames of the graph only.

    Nothing is built that could not get a gradient: with ``edge_weights="raw"`` nobody reads the
    frames of the last hidden layer, so that layer has no frame-frame relation; and with one layer
    frames do not matter at all, so there is no position either.
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
            raise ConfigError(f"a text-frame graph of {num_layers} layers; give 1 or more")
        if head_size == "split" and dim % num_heads:
            raise ConfigError(
                f"dim {dim} cannot be split over {num_heads} heads; use a divisor or head_size full"
            )
        head_dim = dim if head_size == "full" else dim // num_heads
        frames_read_last = edge_weights == "activated"
        self.layers = nn.ModuleList()
        width = dim
        for index in range(num_layers - 1):
            options: dict[str, Any] = {
                "num_heads": num_heads,
                "head_dim": head_dim,
                "frame_edges": frame_edges,
                "update_frames": frames_read_last or index < num_layers - 2,
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
        has_position = frame_position and (num_layers > 1 or frames_read_last)
        self.position = nn.Parameter(torch.randn(num_frames, dim)) if has_position else None
        self.dropout = nn.Dropout(dropout)

    def with_positions(
        self, frames: Float[Tensor, "videos frames dim"]
    ) -> Float[Tensor, "videos frames dim"]:
        """Frames as graph nodes: ``f_j + PE(j)`` (paper eq. 4)."""
        return frames if self.position is None else frames + self.position[: frames.shape[1]]

    def forward(
        self,
        texts: Float[Tensor, "texts videos nodes dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "texts videos nodes"]:
        """``w`` of every text node; ``texts`` holds the text itself and its candidates."""
        frame_nodes = self.with_positions(frames)[None]
        for layer in self.layers:
            texts, new_frames = layer(texts, frame_nodes, mask)
            texts = self.dropout(texts)
            frame_nodes = self.dropout(new_frames) if layer.update_frames else frame_nodes
        logits: Tensor = self.edges(texts, frame_nodes, mask)
        return logits.softmax(dim=-1)
