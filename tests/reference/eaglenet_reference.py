"""EagleNet as slow loops written from the paper's equations: one pair, one node, one head a time.

Nothing here shares code with the product. Weights that the product does not build, because they
could have no effect, are drawn at random here: results that agree prove that they have none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def pool_frames(pooling: Any, text: Tensor, frames: Tensor, mask: Tensor) -> Tensor:
    """``pi(F | t)`` of one pair, with a key bias of its own."""
    key_bias = torch.randn(len(text), dtype=text.dtype, generator=torch.Generator().manual_seed(7))
    query = pooling.query.weight @ layer_norm(text, pooling.input_norm) + pooling.query.bias
    scores, values = [], []
    for frame, is_real in zip(frames, mask, strict=True):
        if is_real:
            normed = layer_norm(frame, pooling.input_norm)
            key = pooling.key.weight @ normed + key_bias
            scores.append(query @ key / math.sqrt(len(text)))
            values.append(pooling.value.weight @ normed + pooling.value.bias)
    total = sum(torch.exp(score) for score in scores)
    mixed = sum(torch.exp(s) / total * value for s, value in zip(scores, values, strict=True))
    mixed = layer_norm(pooling.output.weight @ mixed + pooling.output.bias, pooling.attention_norm)
    branch = pooling.feed_forward.weight @ mixed + pooling.feed_forward.bias
    return layer_norm(mixed + branch, pooling.output_norm)


def radius(stochastic: Any, text: Tensor, frames: Tensor, mask: Tensor) -> Tensor:
    """``exp(W s + b)`` of one pair."""
    log_radius = torch.zeros(len(text), dtype=text.dtype)
    for index, (frame, is_real) in enumerate(zip(frames, mask, strict=True)):
        if is_real:
            cosine = (text @ frame) / (text.norm() * frame.norm())
            log_radius = log_radius + cosine * stochastic.log_radius.weight[:, index]
    if stochastic.log_radius.bias is not None:
        log_radius = log_radius + stochastic.log_radius.bias
    return torch.exp(log_radius)


class Edges:
    """Projection and psi of one relation, with random stand-ins for what is not built."""

    def __init__(self, relation: Any, in_dim: int, heads: int, head_dim: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        matrix = (
            random(heads * head_dim, in_dim) if relation is None else relation.projection.weight
        )
        self.matrices = matrix.reshape(heads, head_dim, in_dim)
        self.query = getattr(relation, "query", None)
        self.key = getattr(relation, "key", None)
        self.query = random(head_dim) if self.query is None else self.query
        self.key = random(head_dim) if self.key is None else self.key

    def weight(self, head: int, target: Tensor, source: Tensor) -> Tensor:
        """``e_ij = psi([W h_i || W h_j])``."""
        matrix = self.matrices[head]
        return self.query @ (matrix @ target) + self.key @ (matrix @ source)


def graph_weights(
    graph: Any, texts: Tensor, frames: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """``w_i`` of the text nodes of one pair, by message passing over every node."""
    heads, slope, dim = options["num_heads"], options["negative_slope"], texts.shape[1]
    nodes = list(texts)
    is_text = [True] * len(texts)
    for index, (frame, is_real) in enumerate(zip(frames, mask, strict=True)):
        if is_real:
            position = 0.0 if graph.position is None else graph.position[index]
            nodes.append(frame + position)
            is_text.append(False)
    for number, layer in enumerate(graph.layers):
        head_dim = dim if options["head_size"] == "full" else dim // heads
        relations = _relations(layer, len(nodes[0]), heads, head_dim, 100 * number, options)
        nodes = [
            _message(i, nodes, is_text, relations, layer, heads, head_dim, slope)
            for i in range(len(nodes))
        ]
    last = Edges(graph.edges.relation, len(nodes[0]), heads, dim, 999)
    energies = []
    for i in range(len(texts)):
        values = []
        for j in range(len(texts), len(nodes)):
            for head in range(heads):
                pair = (nodes[i], nodes[j])
                if options["edge_direction"] == "frame_to_text":
                    pair = (nodes[j], nodes[i])
                value = last.weight(head, *pair)
                if options["edge_weights"] == "activated":
                    value = F.leaky_relu(value, slope)
                values.append(value)
        energies.append(sum(values) / len(values))
    total = sum(torch.exp(value) for value in energies)
    return torch.stack([torch.exp(value) / total for value in energies])


def _relations(
    layer: Any, in_dim: int, heads: int, head_dim: int, seed: int, options: dict[str, Any]
) -> list[tuple[Edges, Any]]:
    """Each relation with the rule that says whether (is_text_i, is_text_j) is its edge."""
    has_frame_edges = options["frame_edges"]
    if options["kind"] == "gat":
        edges = Edges(layer.relation, in_dim, heads, head_dim, seed)
        return [(edges, lambda i, j: i or j or has_frame_edges)]
    made = [
        Edges(getattr(layer, name), in_dim, heads, head_dim, seed + k)
        for k, name in enumerate(("text_text", "text_frame", "frame_frame"))
    ]
    rules = (
        lambda i, j: i and j,
        lambda i, j: i != j,
        lambda i, j: not i and not j and has_frame_edges,
    )
    return list(zip(made, rules, strict=True))


def _message(
    i: int,
    nodes: list[Tensor],
    is_text: list[bool],
    relations: list[tuple[Edges, Any]],
    layer: Any,
    heads: int,
    head_dim: int,
    slope: float,
) -> Tensor:
    parts = []
    for head in range(heads):
        part = torch.zeros(head_dim, dtype=torch.float64)
        for edges, belongs in relations:
            neighbours = [j for j in range(len(nodes)) if belongs(is_text[i], is_text[j])]
            if not neighbours:
                continue
            values = [
                torch.exp(F.leaky_relu(edges.weight(head, nodes[i], nodes[j]), slope))
                for j in neighbours
            ]
            total = sum(values)
            for j, value in zip(neighbours, values, strict=True):
                part = part + value / total * (edges.matrices[head] @ nodes[j])
        parts.append(part)
    residual = getattr(layer, "residual", None)
    out = torch.cat(parts)
    if residual is not None:
        add = residual.weight @ nodes[i]
        out = out + (add if len(add) == len(out) else add.repeat(heads))
    return torch.relu(out)


def support_text(text: Tensor, video: Tensor, length: Tensor) -> Tensor:
    """``t + (v - t) / ||v - t|| ||r||`` of one pair (paper)."""
    return text + (video - text) / (video - text).norm() * length.norm()


def frame_energy(energy: Any, text: Tensor, frame: Tensor) -> Tensor:
    kind = type(energy).__name__
    if kind == "PerceptronEnergy":
        joined = torch.cat([frame, text])
        hidden = torch.relu(energy.hidden.weight @ joined + energy.hidden.bias)
        out = energy.output.weight[0] @ hidden
        return out if energy.output.bias is None else out + energy.output.bias[0]
    if kind == "CosineEnergy":
        return -(text @ frame) / (text.norm() * frame.norm())
    projected = energy.projection.weight @ (text / text.norm())
    if energy.projection.bias is not None:
        projected = projected + energy.projection.bias
    return -(projected @ frame) / frame.norm()


def video_energy(energy: Any, text: Tensor, frames: Tensor, mask: Tensor) -> Tensor:
    values = [
        frame_energy(energy, text, frame)
        for frame, is_real in zip(frames, mask, strict=True)
        if is_real
    ]
    if energy.pooling == "max":
        return max(values)  # type: ignore[type-var]
    if energy.pooling == "min":
        return min(values)  # type: ignore[type-var]
    return sum(values) / len(values)  # type: ignore[return-value]


def langevin(
    energy: Any,
    text: Tensor,
    frames: Tensor,
    *,
    steps: int,
    step_size: float,
    deviation: float,
    noise: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """The chain of one pair, with gradients by automatic differentiation."""
    everywhere = torch.ones(len(frames), dtype=torch.bool)
    for step in range(steps):
        text = text.detach().requires_grad_()
        frames = frames.detach().requires_grad_()
        value = video_energy(energy, text, frames, everywhere)
        to_text, to_frames = torch.autograd.grad(value, (text, frames))
        text = text - step_size * to_text + deviation * noise[0][step]
        frames = frames - step_size * to_frames + deviation * noise[1][step]
    return text.detach(), frames.detach()


def score(method: Any, text: Tensor, frames: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Score of one pair; ``noise`` is [candidates, dim]."""
    around = radius(method.stochastic, text, frames, mask)
    candidates = [text + around * epsilon for epsilon in noise]
    if method.graph is None:
        video = pool_frames(method.pooling, text, frames, mask)
        return max(c @ video / (c.norm() * video.norm()) for c in candidates)
    config = method.config
    options = {
        "kind": config.graph,
        "num_heads": config.num_heads,
        "negative_slope": config.negative_slope,
        "head_size": config.head_size,
        "frame_edges": config.frame_edges,
        "edge_weights": config.edge_weights,
        "edge_direction": config.edge_direction,
    }
    nodes = torch.stack([text, *candidates])
    weights = graph_weights(method.graph, nodes, frames, mask, options)
    enriched = sum(w * node for w, node in zip(weights, nodes, strict=True))
    video = pool_frames(method.pooling, enriched, frames, mask)
    return enriched @ video / (enriched.norm() * video.norm())
