"""Exact factorised scorer of EagleNet in plain PyTorch.

The part that depends only on the video is computed once (:func:`prepare`) and can be stored in an
index; :func:`score_tile` computes the rest per pair. See ``docs/explanation/fast_scoring.md``.

The graph of a plan may be in half precision. Then the large products are in half precision, and
everything else (radius, attention weights, pooling, cosine) stays in float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.errors import too_many_frames
from eaglenet.core.types import MIN_NORM, VideoFeatures
from eaglenet.scoring.eaglenet.plan import GraphPlan, LayerPlan, Plan

PreparedVideos = dict[str, Tensor]
"""Tensors per video by name; the first axis is videos."""


def prepare(plan: Plan, video: VideoFeatures) -> PreparedVideos:
    """Compute the part of scores that depends on the videos only."""
    frames = video.frames
    if frames.shape[1] > plan.radius.shape[0]:
        raise too_many_frames(frames.shape[1], plan.radius.shape[0])
    mask = video.mask if plan.mask_frames else torch.ones_like(video.mask)
    prepared_videos = {"mask": mask, "unit": F.normalize(frames, dim=-1, eps=MIN_NORM)}
    prepared_videos |= _prepare_pooling(plan, frames, mask)
    position = plan.graph.frame_position
    nodes = frames if position is None else frames + position[: frames.shape[1]]
    if plan.graph.layers:
        prepared_videos |= _prepare_layer(plan.graph, plan.graph.layers[0], nodes, mask)
    elif plan.graph.frame_vectors is not None:
        prepared_videos["term"] = nodes @ plan.graph.frame_vectors
    return prepared_videos


def round_messages(prepared_videos: PreparedVideos, dtype: torch.dtype) -> PreparedVideos:
    """Return prepared videos with messages in ``dtype``; other tensors stay unchanged."""
    return {
        name: value.to(dtype) if name in ("message", "base") else value
        for name, value in prepared_videos.items()
    }


def _prepare_pooling(plan: Plan, frames: Tensor, mask: Tensor) -> PreparedVideos:
    pooling = plan.pooling
    unit_frames = F.layer_norm(
        frames, frames.shape[-1:], pooling.norm_weight, pooling.norm_bias, pooling.epsilon
    )
    dim = frames.shape[-1]
    key, value, constant = (unit_frames @ pooling.frame).split([dim, dim, 1], dim=-1)
    return {
        "key": key.contiguous(),
        "key_bias": constant.squeeze(-1).contiguous(),
        # For a video without real frames, the reference pools only the bias.
        "value": torch.where(mask[..., None], value + pooling.value_bias, pooling.output_bias),
    }


def _prepare_layer(
    graph: GraphPlan, layer: LayerPlan, nodes: Tensor, mask: Tensor
) -> PreparedVideos:
    message = nodes @ layer.text_frame.weight
    prepared_videos = {
        # Zero, because a softmax over padding alone would give it weight.
        "message": message.masked_fill(~mask[..., None], 0.0),
        "source": nodes @ layer.text_frame.source,
    }
    if layer.needs_frames:
        prepared_videos["target"] = nodes @ layer.text_frame.target
        base, normaliser = _frame_messages(graph, layer, nodes, mask)
        prepared_videos["base"] = base
        if graph.is_joint:
            prepared_videos["normaliser"] = normaliser
    return prepared_videos


def _frame_messages(
    graph: GraphPlan, layer: LayerPlan, nodes: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the messages among frames with the residual, and the log-normaliser of the softmax.

    ``nodes`` is ``[..., frames, dim]``, ``mask`` is ``[..., frames]``.
    """
    width = layer.text_frame.weight.shape[1]
    base = nodes.new_zeros(*nodes.shape[:-1], width)
    normaliser = nodes.new_full((*nodes.shape[:-1], graph.num_heads), -1.0e30)
    if layer.frame_frame is not None:
        target = nodes @ layer.frame_frame.target
        source = nodes @ layer.frame_frame.source
        edges = F.leaky_relu(
            (target.unsqueeze(-2) + source.unsqueeze(-3)).float(), graph.negative_slope
        )  # [..., to, from, heads]
        edges = edges.masked_fill(~mask[..., None, :, None], -1.0e30)
        weights = edges.softmax(dim=-2).to(nodes.dtype)
        values = (nodes @ layer.frame_frame.weight).unflatten(-1, (graph.num_heads, -1))
        base = torch.einsum("...ijh,...jhk->...ihk", weights, values).flatten(-2)
        normaliser = edges.logsumexp(dim=-2)
    if layer.residual is not None:
        base = base + _tile(nodes @ layer.residual, width)
    return base, normaliser


def _require(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("a plan lacks a tensor that its options need")
    return value


def _tile(values: Tensor, width: int) -> Tensor:
    """Repeat a residual that all heads share, to the width of all heads."""
    repeats = width // values.shape[-1]
    return values if repeats == 1 else values.repeat(*[1] * (values.dim() - 1), repeats)


Project = Callable[[Tensor, Tensor], Tensor | None]
"""Projection of candidates for the first layer from text vectors and radii; None if impossible."""


def score_tile(
    plan: Plan, sentence: Tensor, prepared_videos: PreparedVideos, project: Project | None = None
) -> Tensor:
    """Return the scores ``[texts, videos]`` of one tile; inside, pairs are ``[videos, texts]``."""
    radii = compute_radii(plan, sentence, prepared_videos)
    projections = project(sentence, radii) if project is not None and plan.graph.layers else None
    weights = graph_weights(plan, sentence, radii, prepared_videos, projections)
    return pooled_scores(plan, sentence, radii, weights, prepared_videos).T


def compute_radii(plan: Plan, sentence: Tensor, prepared_videos: PreparedVideos) -> Tensor:
    """Return ``r = exp(s W + b)`` ``[videos, texts, dim]``; ``s`` are the cosines with frames."""
    unit = F.normalize(sentence, dim=-1, eps=MIN_NORM)
    cosine = unit @ prepared_videos["unit"].transpose(1, 2)
    cosine = cosine.masked_fill_(~prepared_videos["mask"][:, None], 0.0)
    exponent = cosine @ plan.radius[: cosine.shape[-1]]
    return (exponent if plan.radius_bias is None else exponent.add_(plan.radius_bias)).exp_()


def graph_weights(
    plan: Plan,
    sentence: Tensor,
    radii: Tensor,
    prepared_videos: PreparedVideos,
    projections: Tensor | None = None,
) -> Tensor:
    """Return the softmax weights of the text nodes (eqs. 5-9): ``[videos, texts, 1 + candidates]``.

    ``projections`` is :func:`project_texts` of the candidates, if already computed.
    """
    graph, mask = plan.graph, prepared_videos["mask"]
    if projections is None:
        text = candidates(plan, sentence, radii)
        if not graph.layers:
            terms = (text @ graph.text_vectors).float()
            return _edge_weights(graph, terms, prepared_videos.get("term"), mask)
        projections = project_texts(graph.layers[0], text)
    side = prepared_videos
    for layer, following in zip(graph.layers, graph.layers[1:], strict=False):
        texts, frames = zip(*_heads(graph, layer, projections, side, mask), strict=True)
        projections = project_texts(following, torch.cat(texts, dim=-1))
        # From the second layer on, frames depend on the text, so they are prepared per pair.
        side = _prepare_layer(graph, following, torch.cat(frames, dim=-1), mask[:, None])
    # The output of each head is multiplied by its rows of the vectors of the last layer.
    terms, frame_terms = torch.zeros(1, device=projections.device), None
    heads = _heads(graph, graph.layers[-1], projections, side, mask)
    for head, (text_out, frame_out) in enumerate(heads):
        rows = slice(head * text_out.shape[-1], (head + 1) * text_out.shape[-1])
        terms = terms + (text_out @ graph.text_vectors[rows]).float()
        if graph.frame_vectors is not None:
            head_terms = (_require(frame_out) @ graph.frame_vectors[rows]).float()
            frame_terms = head_terms if frame_terms is None else frame_terms + head_terms
    return _edge_weights(graph, terms, frame_terms, mask)


def candidates(plan: Plan, sentence: Tensor, radii: Tensor) -> Tensor:
    """Return the text itself and ``t + r * eps_i``: ``[videos, texts, 1 + candidates, dim]``."""
    centre, width, noise = (
        value.to(plan.graph.text_vectors.dtype) for value in (sentence, radii, plan.noise)
    )
    return torch.addcmul(centre[:, None], width[:, :, None], noise)


def project_texts(layer: LayerPlan, text: Tensor) -> Tensor:
    """Multiply text nodes with all their matrices at once: ``[videos, texts, nodes, width]``."""
    return (text.flatten(0, 2) @ layer.text_matrix).view(*text.shape[:3], -1)


def _edge_weights(
    graph: GraphPlan, terms: Tensor, frame_terms: Tensor | None, mask: Tensor
) -> Tensor:
    """Return the weights of text nodes by the collapsed last layer.

    Terms of texts are ``[v, t, n, heads]``, those of frames ``[v, (t,) f, heads]``.
    """
    if frame_terms is None:
        return terms.mean(dim=-1).softmax(dim=-1)
    edges = _edges(graph, _heads_first(terms), _with_texts(_heads_first(frame_terms)))
    valid = mask[:, None, None].float()
    mean = (edges.mean(dim=0) * valid).sum(dim=-1) / valid.sum(dim=-1).clamp_min(1.0)
    return mean.softmax(dim=-1)


def _heads(
    graph: GraphPlan, layer: LayerPlan, text: Tensor, side: PreparedVideos, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield new texts ``[v, t, n, k]`` and frames ``[v, t, f, k]`` of a layer, head by head.

    text: result of :func:`project_texts`, ``[v, t, n, .]``. side: result of ``_prepare_layer`` for
    the frames, ``[v, (t,) f, .]``. Matrices are read in place, so that nothing is copied or
    transposed.
    """
    videos, texts, nodes, _ = text.shape
    projections, frame_values, residual, attention = layer.split_product(text.flatten(0, 1))
    attention = attention.view(videos, texts, nodes, 4, -1).permute(3, 4, 0, 1, 2)
    attention = attention.float().contiguous()
    target, source, cross_target, cross_source = attention  # [h, v, t, n] each

    within = _edges(graph, target, source)
    across = _edges(graph, cross_target, _with_texts(_heads_first(side["source"])))
    across = across.masked_fill_(~mask[:, None, None], -1.0e30)
    if graph.is_joint:
        both = torch.cat([within, across], dim=-1).softmax(dim=-1)
        within, across = both[..., :nodes], both[..., nodes:]
    else:
        within, across = within.softmax(dim=-1), across.softmax(dim=-1)
    back, base_weight = None, None
    if layer.needs_frames:
        back, base_weight = _frame_attention(graph, cross_source, side)

    width = layer.text_frame.weight.shape[1] // graph.num_heads
    for head in range(graph.num_heads):
        columns = slice(head * width, (head + 1) * width)
        values = projections[..., columns]
        weights = within[head].flatten(0, 1).to(text.dtype)
        if residual is None:
            text_out = torch.bmm(weights, values)
        else:
            is_shared = residual.shape[-1] == width
            text_out = torch.baddbmm(
                residual if is_shared else residual[..., columns], weights, values
            )
        message = side["message"][..., columns].flatten(0, -3)  # [v or v * t, f, k]
        groups = message.shape[0]
        text_out.view(groups, -1, width).baddbmm_(
            across[head].reshape(groups, -1, across.shape[-1]).to(text.dtype), message
        )
        frame_out = None
        if back is not None:
            frame_out = torch.bmm(
                back[head].flatten(0, 1).to(text.dtype), frame_values[..., columns]
            )
            frame_out = frame_out.view(videos, texts, -1, width)
            base = _with_texts(side["base"][..., columns], axis=1)
            if base_weight is None:
                frame_out = frame_out.add_(base)
            else:
                frame_out = frame_out.addcmul_(base, base_weight[head].to(text.dtype))
            frame_out = frame_out.relu_()
        yield text_out.view(videos, texts, nodes, width).relu_(), frame_out


def _frame_attention(
    graph: GraphPlan, cross_source: Tensor, side: PreparedVideos
) -> tuple[Tensor, Tensor | None]:
    """Return the weights of texts for frames ``[h, v, t, f, n]``.

    With a joint softmax, also returns the weight ``[h, v, t, f, 1]`` of the messages among frames.
    """
    back = _edges(graph, _with_texts(_heads_first(side["target"])), cross_source)
    if not graph.is_joint:
        return back.softmax(dim=-1), None
    normaliser = _with_texts(_heads_first(side["normaliser"])).expand(back.shape[:-1])
    both = torch.cat([back, normaliser[..., None]], dim=-1).softmax(dim=-1)
    return both[..., :-1], both[..., -1:]


def _edges(graph: GraphPlan, target: Tensor, source: Tensor) -> Tensor:
    """Return ``LeakyReLU(target_i + source_j)`` ``[..., i, j]``."""
    return F.leaky_relu_(target[..., :, None] + source[..., None, :], graph.negative_slope)


def _heads_first(terms: Tensor) -> Tensor:
    """Move the heads of ``[v, (t,) nodes, heads]`` to the front."""
    return terms.movedim(-1, 0).contiguous()


def _with_texts(value: Tensor, axis: int = 2) -> Tensor:
    """Return values with 4 axes: those without an axis of texts get one."""
    return value if value.dim() == 4 else value.unsqueeze(axis)


def pooled_scores(
    plan: Plan, sentence: Tensor, radii: Tensor, weights: Tensor, prepared_videos: PreparedVideos
) -> Tensor:
    """Enrich the text (eq. 10), pool frames with it (X-Pool), and return cosines."""
    pooling = plan.pooling
    width = sentence.shape[-1:]
    enriched_text = torch.addcmul(sentence, radii, weights.to(radii.dtype) @ plan.noise)
    query = F.layer_norm(enriched_text, width, eps=pooling.epsilon)
    logits = torch.baddbmm(
        prepared_videos["key_bias"][:, None], query, prepared_videos["key"].transpose(1, 2)
    )
    logits = logits.masked_fill_(~prepared_videos["mask"][:, None], -1.0e30)
    attention_output = torch.bmm(logits.softmax(dim=-1), prepared_videos["value"])
    attention_output = F.layer_norm(
        attention_output, width, pooling.middle_weight, pooling.middle_bias, pooling.epsilon
    )
    output = (attention_output @ pooling.linear).add_(attention_output).add_(pooling.linear_bias)
    pooled_video = F.layer_norm(
        output, width, pooling.final_weight, pooling.final_bias, pooling.epsilon
    )
    return F.cosine_similarity(enriched_text.float(), pooled_video.float(), dim=-1)


# Cheaper projection of candidates: radii of real pairs lie in a small subspace.
#
# A candidate is t + r * eps_i with the radius r = exp(s W + b), where s are the cosines with a
# dozen frames. So r is a smooth function of a dozen numbers, and real radii are, to the last
# digits, combinations r = sum_k a_k u_k of a few orthonormal vectors. Then
#
#     (t + r * eps_i) V = t V + sum_k a_k ((u_k * eps_i) V),
#
# and the bracket depends on the model only: K x 21 multiply-adds per column instead of 21 x 512.
# The u_k are computed from the radii of scored pairs. Every radius is compared with its
# combination. If one differs by more than ``TOLERANCE``, vectors are added, or, if there would be
# too many, the full product is computed.

TOLERANCE = 1e-3
"""Largest relative error of a radius. It affects only the weights of candidates: scores of the demo
model differ by 2e-7, which is the rounding error of float32."""
MAX_VECTORS = 256
"""Above this number, or half the dimensions, a subspace saves little time."""


@dataclass(frozen=True)
class _Basis:
    vectors: Tensor
    """``[k, dim]``, orthonormal."""
    products: Tensor
    """``[k, nodes * width]``: ``(u_k * eps_i) V`` of all nodes i."""


class RadiusSubspace:
    """Projection of candidates through a subspace of radii; see above. Thread-safe."""

    def __init__(self, plan: Plan) -> None:
        self.noise = plan.noise
        self.matrix = plan.graph.layers[0].text_matrix
        self._lock = threading.Lock()
        empty = plan.noise.new_zeros(0, plan.noise.shape[1])
        self._basis: _Basis | None = self._make_basis(empty)

    @property
    def size(self) -> int | None:
        """Number of vectors; None if the radii need too many."""
        return None if self._basis is None else len(self._basis.vectors)

    def project(self, sentence: Tensor, radii: Tensor) -> Tensor | None:
        """Return the projected candidates ``[videos, texts, nodes, width]``.

        sentence: ``[texts, dim]``. radii: ``[videos, texts, dim]``. Returns None if the radii fit
        no small subspace.
        """
        rows = radii.flatten(0, 1)
        basis = self._basis
        if basis is None or not self._fits(basis, rows):
            basis = self._extend(rows)
        if basis is None:
            return None
        nodes = len(self.noise)
        projections = (rows @ basis.vectors.T) @ basis.products
        projections = projections.view(*radii.shape[:2], nodes, -1)
        return projections.add_((sentence @ self.matrix)[None, :, None])

    def _fits(self, basis: _Basis, radii: Tensor) -> bool:
        remainder = radii - (radii @ basis.vectors.T) @ basis.vectors
        lengths = torch.linalg.vector_norm(radii, dim=-1)
        return bool((torch.linalg.vector_norm(remainder, dim=-1) <= TOLERANCE * lengths).all())

    def _extend(self, radii: Tensor) -> _Basis | None:
        """Extend the basis so that it fits these radii too."""
        with self._lock:
            basis = self._basis
            if basis is None or self._fits(basis, radii):
                return basis
            vectors = basis.vectors.double()
            units = torch.nn.functional.normalize(radii.double(), dim=-1)
            remainder = units - (units @ vectors.T) @ vectors
            # NumPy's: torch's CUDA wheels for ARM end the process in the LAPACK that they bundle.
            svd = np.linalg.svd(remainder.cpu().numpy(), full_matrices=False)
            sizes, directions = (torch.from_numpy(part).to(radii.device) for part in svd[1:])
            # Limits the error of all radii together, which bounds that of each.
            errors = sizes.square().flip(0).cumsum(0).flip(0).sqrt()
            new_vectors = directions[: int((errors > 0.3 * TOLERANCE).sum())]
            both = torch.cat([vectors, new_vectors - (new_vectors @ vectors.T) @ vectors])
            if len(both) > min(MAX_VECTORS, radii.shape[1] // 2):
                self._basis = None
            else:
                self._basis = self._make_basis(torch.linalg.qr(both.T).Q.T.to(radii.dtype))
            return self._basis

    def _make_basis(self, vectors: Tensor) -> _Basis:
        products = (vectors[:, None] * self.noise).flatten(0, 1) @ self.matrix
        width = len(self.noise) * self.matrix.shape[1]
        return _Basis(vectors.contiguous(), products.reshape(len(vectors), width).contiguous())
