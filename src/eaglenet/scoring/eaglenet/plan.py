"""Weights of EagleNet rearranged for scoring: transposed matrices and folded vectors.

Nothing here is learned: a plan is derived from a method, and as exact as its ``score``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.layers.text_frame_graph import (
    PlainAttention,
    Relation,
    RelationalAttention,
    TextFrameGraph,
)
from eaglenet.methods.eaglenet import EagleNet


@dataclass(frozen=True)
class RelationPlan:
    """Relation of a graph layer.

    ``target`` and ``source`` are ``[in, heads]``: the attention vectors folded into the projection,
    ``e_ij = target(h_i) + source(h_j)``.
    """

    weight: Tensor
    """``[in, heads * head]``; heads are concatenated along the last axis."""
    target: Tensor
    source: Tensor


@dataclass(frozen=True)
class LayerPlan:
    """Graph layer that passes messages."""

    text_text: RelationPlan
    text_frame: RelationPlan
    frame_frame: RelationPlan | None
    residual: Tensor | None
    """``[in, head]`` if all heads share it (released), else ``[in, heads * head]``."""
    needs_frames: bool
    """False if no later layer reads the frames of this layer."""

    @cached_property
    def text_matrix(self) -> Tensor:
        """All matrices that multiply text nodes, concatenated; see :meth:`split_product`."""
        matrices = [self.text_text.weight]
        if self._projects_frames_separately:
            matrices.append(self.text_frame.weight)
        if self.residual is not None:
            matrices.append(self.residual)
        return torch.cat([*matrices, self.attention_vectors], dim=1)

    @property
    def attention_vectors(self) -> Tensor:
        """Target and source vectors of texts, for texts and then for frames: ``[in, 4 heads]``."""
        within, across = self.text_text, self.text_frame
        return torch.cat([within.target, within.source, across.target, across.source], dim=1)

    def split_product(self, product: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Split ``text @ text_matrix``: messages to texts and frames, residual, attention terms."""
        inner = self.text_text.weight.shape[1]
        messages = inner * 2 if self._projects_frames_separately else inner
        last = messages + (0 if self.residual is None else self.residual.shape[1])
        text_values = product[..., :inner]
        frame_values = (
            product[..., inner:messages] if self._projects_frames_separately else text_values
        )
        residual = None if self.residual is None else product[..., messages:last]
        return text_values, frame_values, residual, product[..., last:]

    @property
    def _projects_frames_separately(self) -> bool:
        return self.needs_frames and self.text_frame is not self.text_text


@dataclass(frozen=True)
class GraphPlan:
    """Graph of a method: message layers, and the collapsed last layer."""

    layers: tuple[LayerPlan, ...]
    text_vectors: Tensor
    """``[in, heads]``: term of a text node in the last layer."""
    frame_vectors: Tensor | None
    """``[in, heads]``; None if edge weights are read before LeakyReLU, where frames cancel."""
    frame_position: Tensor | None
    num_heads: int
    negative_slope: float
    is_joint: bool
    """True for one relation with one softmax over all neighbours (GAT)."""


@dataclass(frozen=True)
class PoolingPlan:
    """X-Pool with the query projection folded into keys and the output projection into values.

    A normalised frame times ``frame`` (``[dim, 2 dim + 1]``) gives its key, its value and the
    constant of its key, for a query that is normalised without scale and offset.
    """

    norm_weight: Tensor
    norm_bias: Tensor
    frame: Tensor
    value_bias: Tensor
    output_bias: Tensor
    middle_weight: Tensor
    middle_bias: Tensor
    linear: Tensor
    linear_bias: Tensor
    final_weight: Tensor
    final_bias: Tensor
    epsilon: float


@dataclass(frozen=True)
class Plan:
    """All values besides the features that a score depends on."""

    radius: Tensor
    """``[frames, dim]``."""
    radius_bias: Tensor | None
    noise: Tensor
    """``[1 + candidates, dim]``; row 0 is zero and stands for the text itself."""
    graph: GraphPlan
    pooling: PoolingPlan
    mask_frames: bool
    """True if padded frames are masked (the released code counts them)."""


def plan_of(method: EagleNet, device: torch.device | None = None) -> Plan | None:
    """Return the plan of a model in float32; None if it has no graph."""
    if method.graph is None:
        return None
    if device is not None and method.noise.device != device:
        raise UsageError(
            f"the features are on {device} and the model is on {method.noise.device}; move one of "
            "them"
        )
    log_radius = method.stochastic.log_radius
    noise = method.noise.detach().float()
    return Plan(
        radius=_transpose(log_radius.weight),
        radius_bias=None if log_radius.bias is None else log_radius.bias.detach().float(),
        noise=torch.cat([torch.zeros_like(noise[:1]), noise]),
        graph=_graph_plan(method.graph),
        pooling=_pooling_plan(method.pooling),
        mask_frames=method.config.mask_frames,
    )


def _transpose(weight: Tensor) -> Tensor:
    """Return the transposed weight of a linear layer, for products from the right."""
    return weight.detach().float().T.contiguous()


def _graph_plan(graph: TextFrameGraph) -> GraphPlan:
    edges = graph.edges
    relation = edges.relation
    text_vector, frame_vector = relation.query, relation.key
    if not edges.text_is_query:
        text_vector, frame_vector = frame_vector, text_vector
    layers = []
    is_joint = False
    for layer in graph.layers:
        if isinstance(layer, PlainAttention):
            is_joint = True
            layers.append(_plain_plan(layer))
        elif isinstance(layer, RelationalAttention):
            layers.append(_relational_plan(layer))
        else:
            raise TypeError(f"a graph layer of type {type(layer).__name__} has no plan")
    return GraphPlan(
        layers=tuple(layers),
        text_vectors=_fold(relation, text_vector),
        frame_vectors=_fold(relation, frame_vector) if edges.edge_weights == "activated" else None,
        frame_position=None if graph.position is None else graph.position.detach().float(),
        num_heads=relation.num_heads,
        negative_slope=edges.negative_slope,
        is_joint=is_joint,
    )


def _fold(relation: Relation, vector: Tensor | None) -> Tensor:
    """Return an attention vector folded into its projection: ``[in, heads]``."""
    if vector is None:
        raise ValueError("the relation has no attention vector for scoring")
    return relation.collapse(vector).detach().float().T.contiguous()


def _relational_plan(layer: RelationalAttention) -> LayerPlan:
    return LayerPlan(
        text_text=_relation_plan(layer.text_text),
        text_frame=_relation_plan(layer.text_frame),
        frame_frame=None if layer.frame_frame is None else _relation_plan(layer.frame_frame),
        residual=_transpose(layer.residual.weight),
        needs_frames=layer.update_frames,
    )


def _plain_plan(layer: PlainAttention) -> LayerPlan:
    relation = _relation_plan(layer.relation)
    among_frames = layer.update_frames and layer.frame_edges
    return LayerPlan(
        text_text=relation,
        text_frame=relation,
        frame_frame=relation if among_frames else None,
        residual=None,
        needs_frames=layer.update_frames,
    )


def _relation_plan(relation: Relation) -> RelationPlan:
    return RelationPlan(
        _transpose(relation.projection.weight),
        target=_fold(relation, relation.query),
        source=_fold(relation, relation.key),
    )


def _pooling_plan(pooling: FramePooling) -> PoolingPlan:
    def vector(value: Tensor) -> Tensor:
        return value.detach().float()

    scale, offset = pooling.input_norm.weight.double(), pooling.input_norm.bias.double()
    # Folded in float64, so that the product is as exact as the two products it replaces.
    key = pooling.key.weight.double().T / math.sqrt(len(scale))
    query_key = key @ pooling.query.weight.double()
    constant = query_key @ offset + key @ pooling.query.bias.double()
    output = pooling.output.weight.double().T
    value = pooling.value.weight.double().T @ output
    value_bias = pooling.value.bias.double() @ output + pooling.output.bias.double()
    frame = torch.cat([query_key * scale, value, constant[:, None]], dim=1)
    return PoolingPlan(
        norm_weight=vector(pooling.input_norm.weight),
        norm_bias=vector(pooling.input_norm.bias),
        frame=vector(frame),
        value_bias=vector(value_bias),
        output_bias=vector(pooling.output.bias),
        middle_weight=vector(pooling.attention_norm.weight),
        middle_bias=vector(pooling.attention_norm.bias),
        linear=_transpose(pooling.feed_forward.weight),
        linear_bias=vector(pooling.feed_forward.bias),
        final_weight=vector(pooling.output_norm.weight),
        final_bias=vector(pooling.output_norm.bias),
        epsilon=pooling.input_norm.eps,
    )
