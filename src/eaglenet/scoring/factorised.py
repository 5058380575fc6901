"""The exact factorised scorer in plain PyTorch.

What depends on the video alone is computed once per video (:func:`prepare`) and can be kept in an
index; :func:`score_tile` does what is left for a pair. See ``docs/fast_scoring.md``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.errors import ConfigError
from eaglenet.layers.stochastic_text import MIN_NORM
from eaglenet.scoring.plan import GraphPlan, LayerPlan, Plan
from eaglenet.types import VideoFeatures

Prepared = dict[str, Tensor]
"""Per-video tensors by name, each with videos first."""


def prepare(plan: Plan, video: VideoFeatures) -> Prepared:
    """Everything that a score needs of a video and that no text changes."""
    frames = video.frames
    if frames.shape[1] > plan.radius.shape[0]:
        raise ConfigError(
            f"videos of {frames.shape[1]} frames, the model was built for {plan.radius.shape[0]}; "
            "sample fewer frames or build it with a larger num_frames"
        )
    mask = video.mask if plan.masked else torch.ones_like(video.mask)
    prepared = {"mask": mask, "unit": F.normalize(frames, dim=-1, eps=MIN_NORM)}
    prepared |= _prepare_pooling(plan, frames, mask)
    position = plan.graph.frame_position
    nodes = frames if position is None else frames + position[: frames.shape[1]]
    if plan.graph.layers:
        prepared |= _prepare_layer(plan.graph, plan.graph.layers[0], nodes, mask)
    elif plan.graph.frame_vectors is not None:
        prepared["term"] = nodes @ plan.graph.frame_vectors
    return prepared


def _prepare_pooling(plan: Plan, frames: Tensor, mask: Tensor) -> Prepared:
    pooling = plan.pooling
    normed = F.layer_norm(
        frames, frames.shape[-1:], pooling.norm_weight, pooling.norm_bias, pooling.epsilon
    )
    keys = normed @ pooling.key / math.sqrt(frames.shape[-1])
    folded = keys @ pooling.query.T
    values = (normed @ pooling.value + pooling.value_bias) @ pooling.output + pooling.output_bias
    return {
        "key": folded * pooling.norm_weight,
        "key_bias": folded @ pooling.norm_bias + keys @ pooling.query_bias,
        # Of a video without any real frame the reference pools nothing but the bias.
        "value": torch.where(mask[..., None], values, pooling.output_bias),
    }


def _prepare_layer(graph: GraphPlan, layer: LayerPlan, nodes: Tensor, mask: Tensor) -> Prepared:
    message = nodes @ layer.text_frame
    prepared = {
        # Padding has no weight, except in a softmax over padding alone, which must give nothing.
        "message": message.masked_fill(~mask[..., None], 0.0),
        "source": nodes @ layer.text_frame_source,
    }
    if layer.frames_needed:
        prepared["target"] = nodes @ layer.text_frame_target
        base, normaliser = _frame_messages(graph, layer, nodes, mask)
        prepared["base"] = base
        if graph.joint:
            prepared["normaliser"] = normaliser
    return prepared


def _frame_messages(
    graph: GraphPlan, layer: LayerPlan, nodes: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """What frames get from frames and from themselves, and the log-normaliser of the softmax.

    Works on ``[..., frames, dim]``; ``mask`` is ``[..., frames]``.
    """
    width = layer.text_frame.shape[1]
    base = nodes.new_zeros(*nodes.shape[:-1], width)
    normaliser = nodes.new_full((*nodes.shape[:-1], graph.num_heads), -1.0e30)
    if layer.frame_frame is not None:
        target = nodes @ _given(layer.frame_frame_target)
        source = nodes @ _given(layer.frame_frame_source)
        edges = F.leaky_relu(
            target.unsqueeze(-2) + source.unsqueeze(-3), graph.negative_slope
        )  # [..., to, from, heads]
        edges = edges.masked_fill(~mask[..., None, :, None], -1.0e30)
        weights = edges.softmax(dim=-2)
        values = (nodes @ layer.frame_frame).unflatten(-1, (graph.num_heads, -1))
        base = torch.einsum("...ijh,...jhk->...ihk", weights, values).flatten(-2)
        normaliser = edges.logsumexp(dim=-2)
    if layer.residual is not None:
        base = base + _tile(nodes @ layer.residual, width)
    return base, normaliser


def _given(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("a relation has a projection but no attention vectors")
    return value


def _tile(values: Tensor, width: int) -> Tensor:
    """Repeat a residual that all heads share."""
    repeats = width // values.shape[-1]
    return values if repeats == 1 else values.repeat(*[1] * (values.dim() - 1), repeats)


def radius(plan: Plan, sentence: Tensor, prepared: Prepared) -> Tensor:
    """``r = exp(s W + b)`` with ``s`` the cosines to the frames: ``[texts, videos, dim]``."""
    cosine = torch.einsum(
        "td,vfd->tvf", F.normalize(sentence, dim=-1, eps=MIN_NORM), prepared["unit"]
    )
    cosine = cosine.masked_fill(~prepared["mask"][None], 0.0)
    exponent = cosine @ plan.radius[: cosine.shape[-1]]
    return (exponent if plan.radius_bias is None else exponent + plan.radius_bias).exp_()


def score_tile(plan: Plan, sentence: Tensor, prepared: Prepared) -> Tensor:
    """Scores ``[texts, videos]`` of one tile."""
    spread = radius(plan, sentence, prepared)
    weights = graph_weights(plan, sentence, spread, prepared)
    return pooled_scores(plan, sentence, spread, weights, prepared)


def graph_weights(plan: Plan, sentence: Tensor, spread: Tensor, prepared: Prepared) -> Tensor:
    """Softmax weights of the text nodes, eqs. 5-9: ``[texts, videos, 1 + candidates]``."""
    graph = plan.graph
    text = sentence[:, None, None] + spread[:, :, None] * plan.noise
    frames: Tensor | None = None
    for number, layer in enumerate(graph.layers):
        side = prepared if number == 0 else _pair_frames(graph, layer, frames, prepared["mask"])
        text, frames = _layer(graph, layer, text, side, prepared["mask"])
    terms = text @ graph.text_vectors
    if graph.frame_vectors is None:
        return terms.mean(dim=-1).softmax(dim=-1)
    frame_terms = prepared["term"] if frames is None else frames @ graph.frame_vectors
    edges = F.leaky_relu(
        terms[..., :, None, :] + frame_terms[..., None, :, :], graph.negative_slope
    )
    valid = prepared["mask"][:, None, :].to(edges.dtype)
    mean = (edges.mean(dim=-1) * valid).sum(dim=-1) / valid.sum(dim=-1).clamp_min(1.0)
    return mean.softmax(dim=-1)


def _pair_frames(
    graph: GraphPlan, layer: LayerPlan, frames: Tensor | None, mask: Tensor
) -> Prepared:
    """From the second layer on frames know their text, so their side is made per pair."""
    if frames is None:
        raise ValueError("a later layer needs frames that an earlier one does not make")
    return _prepare_layer(graph, layer, frames, mask[None])


def _layer(
    graph: GraphPlan, layer: LayerPlan, text: Tensor, side: Prepared, mask: Tensor
) -> tuple[Tensor, Tensor | None]:
    """One message-passing layer on ``text [t, v, n, d]`` and a frame side of ``[(t,) v, f, .]``."""
    heads, slope = graph.num_heads, graph.negative_slope
    projected, crossed, own, attention = _project(layer, text)
    split = projected.unflatten(-1, (heads, -1)).transpose(-2, -3)  # [t, v, h, n, k]
    target, source, cross_target, cross_source = (
        part.transpose(-1, -2) for part in attention.split(heads, dim=-1)
    )  # [t, v, h, n]

    within = F.leaky_relu(target[..., :, None] + source[..., None, :], slope)
    frame_source = side["source"].transpose(-1, -2)  # [(t,) v, h, f]
    across = F.leaky_relu(cross_target[..., :, None] + frame_source[..., None, :], slope)
    across = across.masked_fill(~mask[:, None, None, :], -1.0e30)
    if graph.joint:
        both = torch.cat([within, across], dim=-1).softmax(dim=-1)
        within, across = both.split([within.shape[-1], across.shape[-1]], dim=-1)
    else:
        within, across = within.softmax(dim=-1), across.softmax(dim=-1)
    message = side["message"].unflatten(-1, (heads, -1)).transpose(-2, -3)  # [(t,) v, h, f, k]
    text_out = within @ split + across @ message
    text_out = text_out.transpose(-2, -3).flatten(-2)
    if own is not None:
        text_out = text_out + _tile(own, text_out.shape[-1])
    text_out = text_out.relu_()
    if not layer.frames_needed:
        return text_out, None

    crossed_split = crossed.unflatten(-1, (heads, -1)).transpose(-2, -3)
    frame_target = side["target"].transpose(-1, -2)  # [(t,) v, h, f]
    back = F.leaky_relu(frame_target[..., :, None] + cross_source[..., None, :], slope)
    base = side["base"]
    if graph.joint:
        normaliser = side["normaliser"].transpose(-1, -2).expand(back.shape[:-1])
        both = torch.cat([back, normaliser[..., None]], dim=-1).softmax(dim=-1)
        back = both[..., :-1]
        share = both[..., -1].transpose(-1, -2)  # [t, v, f, h]
        base = (base.unflatten(-1, (heads, -1)) * share[..., None]).flatten(-2)
    else:
        back = back.softmax(dim=-1)
    frame_out = (back @ crossed_split).transpose(-2, -3).flatten(-2) + base
    return text_out, frame_out.relu_()


def _project(layer: LayerPlan, text: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """All projections of text nodes as one matrix product."""
    same = layer.text_frame is layer.text_text
    parts = [layer.text_text]
    if layer.frames_needed and not same:
        parts.append(layer.text_frame)
    if layer.residual is not None:
        parts.append(layer.residual)
    parts += [
        layer.text_text_target,
        layer.text_text_source,
        layer.text_frame_target,
        layer.text_frame_source,
    ]
    weight = torch.cat(parts, dim=1)
    pieces = list((text @ weight).split([part.shape[1] for part in parts], dim=-1))
    attention = torch.cat(pieces[-4:], dim=-1)
    projected = pieces.pop(0)
    crossed = pieces.pop(0) if layer.frames_needed and not same else projected
    own = pieces.pop(0) if layer.residual is not None else None
    return projected, crossed, own, attention


def pooled_scores(
    plan: Plan, sentence: Tensor, spread: Tensor, weights: Tensor, prepared: Prepared
) -> Tensor:
    """Enriched text (eq. 10), X-Pool with it, cosine: ``[texts, videos]``."""
    pooling = plan.pooling
    width = sentence.shape[-1:]
    enriched = sentence[:, None] + spread * (weights.to(spread.dtype) @ plan.noise)
    query = F.layer_norm(enriched, width, eps=pooling.epsilon)
    logits = torch.einsum("tvd,vfd->tvf", query, prepared["key"]) + prepared["key_bias"]
    logits = logits.masked_fill(~prepared["mask"][None], -1.0e30)
    attended = torch.einsum("tvf,vfd->tvd", logits.softmax(dim=-1), prepared["value"])
    attended = F.layer_norm(
        attended, width, pooling.middle_weight, pooling.middle_bias, pooling.epsilon
    )
    pooled = F.layer_norm(
        attended + attended @ pooling.linear + pooling.linear_bias,
        width,
        pooling.final_weight,
        pooling.final_bias,
        pooling.epsilon,
    )
    return F.cosine_similarity(enriched.float(), pooled.float(), dim=-1)
