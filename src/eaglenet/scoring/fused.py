"""The scorer around the Triton kernels: arranged weights, launches, products in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.layers.stochastic_text import MIN_NORM
from eaglenet.scoring.factorised import Prepared
from eaglenet.scoring.plan import Plan

MAX_NODES = 64
MAX_FRAMES = 128
NARROW = 128
"""Below this width rounding errors of a cosine do not average out, and float32 costs nothing."""


MANY_FRAMES = 32
"""Above this, tiles of two parts each no longer fit a program's registers."""


@dataclass(frozen=True)
class Tuning:
    """Launch shape of ``graph_weights``: columns at a time and warps."""

    block: int = 128
    warps: int = 2
    stages: int = 2


def tuning_for(num_frames: int, *, precise: bool) -> Tuning:
    """With 64 frames the usual shape keeps 7.7 KB a thread in memory in precise mode (0.7 KB so).

    A million pairs took 6.3 s on an H200 with the usual shape; this one has not been timed.
    """
    return Tuning(block=64, warps=4) if precise and num_frames > MANY_FRAMES else Tuning()


def why_not(plan: Plan, num_frames: int) -> str | None:
    """The reason why the kernels cannot score this plan, or None."""
    graph = plan.graph
    nodes = plan.noise.shape[0]
    if len(graph.layers) != 1:
        return f"the kernels are written for 2 graph layers, not {len(graph.layers) + 1}"
    head = graph.layers[0].text_text.shape[1] // graph.num_heads
    if head < 16 or head & (head - 1):
        return f"a head of {head} dimensions is not a power of two of at least 16"
    if nodes > MAX_NODES:
        return f"{nodes} text nodes are more than {MAX_NODES}"
    if num_frames > MAX_FRAMES:
        return f"{num_frames} frames are more than {MAX_FRAMES}"
    return None


def why_slower(num_frames: int, *, precise: bool) -> str | None:
    """The reason why the factorised scorer is the better choice on a GPU, or None."""
    if precise and num_frames > MANY_FRAMES:
        return f"{num_frames} frames in fp32 are more than the {MANY_FRAMES} the kernels hold well"
    return None


def _power_of_two(value: int) -> int:
    """At least 16: the smallest side of a matrix unit's tile."""
    return max(16, 1 << (value - 1).bit_length())


def _padded(columns: Tensor, width: int) -> Tensor:
    return F.pad(columns, (0, width - columns.shape[1])).contiguous()


def _parts(value: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as the sum of two bfloat16 tensors (16 bits of mantissa)."""
    high = value.to(torch.bfloat16)
    return high, (value.float() - high.float()).to(torch.bfloat16)


class FusedScorer:
    """Scores tiles of pairs with the kernels. Built once per plan; holds its arranged weights.

    precise: products of two bfloat16 parts each, accumulated in float32 (about 1e-6 of the exact
    score) instead of plain bfloat16.
    """

    def __init__(self, plan: Plan, *, precise: bool) -> None:
        graph, pooling = plan.graph, plan.pooling
        layer = graph.layers[0]
        self.plan = plan
        self.precise = precise
        self.heads = graph.num_heads
        self.inner = layer.text_text.shape[1]
        self.residual_width = 0 if layer.residual is None else layer.residual.shape[1]
        self.score_width = _power_of_two(4 * self.heads)
        self.vector_width = _power_of_two(self.heads)
        self.dtype = torch.float32 if precise else torch.bfloat16
        # Of everything outside the graph: radius, enriched text and pooling.
        self.outer = torch.float32 if plan.noise.shape[1] < NARROW else self.dtype
        columns = torch.cat(
            [
                layer.text_text_target,
                layer.text_text_source,
                layer.text_frame_target,
                layer.text_frame_source,
            ],
            dim=1,
        )
        self.columns = self._right_side(_padded(columns, self.score_width))
        weights = [layer.text_text]
        if graph.frame_vectors is not None and not graph.joint:
            weights.append(layer.text_frame)
        if layer.residual is not None:
            weights.append(layer.residual)
        self.projection = self._right_side(torch.cat(weights, dim=1))
        self.text_vectors = _padded(graph.text_vectors, self.vector_width).to(self.dtype)
        self.frame_vectors = (
            self.text_vectors
            if graph.frame_vectors is None
            else _padded(graph.frame_vectors, self.vector_width).to(self.dtype)
        )
        self.noise = plan.noise.to(self.outer).contiguous()
        self.radius = plan.radius.contiguous()
        self.linear = pooling.linear.to(self.outer).contiguous()
        self.middle = (pooling.middle_weight.to(self.outer), pooling.middle_bias.to(self.outer))

    def _right_side(self, weight: Tensor) -> Tensor:
        """``[w_high; w_high; w_low]`` for rows ``[x_high | x_low | x_high]``, or ``w_high``."""
        high, low = _parts(weight)
        return torch.cat([high, high, low]) if self.precise else high.contiguous()

    def prepare(self, prepared: Prepared) -> Prepared:
        """A video's part of ``factorised.prepare`` in the kernels' types."""
        arranged = {
            "unit": prepared["unit"].float().contiguous(),
            "mask": prepared["mask"],
            "message": prepared["message"].to(self.dtype).contiguous(),
            "source": prepared["source"].float().contiguous(),
            "key": prepared["key"].to(self.outer).contiguous(),
            "key_bias": prepared["key_bias"].float().contiguous(),
            "value": prepared["value"].to(self.outer).contiguous(),
        }
        if "base" in prepared:
            arranged["base"] = prepared["base"].to(self.dtype).contiguous()
            arranged["target"] = prepared["target"].float().contiguous()
        if "normaliser" in prepared:
            arranged["normaliser"] = prepared["normaliser"].float().contiguous()
        return arranged

    def score_tile(self, sentence: Tensor, prepared: Prepared) -> Tensor:
        """Scores ``[texts, videos]`` of one tile. Inside, pairs are ``[videos, texts]``."""
        text = sentence.float().contiguous()
        spread = self.radii(text, prepared)
        candidates = self.candidates(text, spread)
        scores = self._product(candidates, self.columns, torch.float32)
        projections = self._product(candidates, self.projection, self.dtype)
        weights = self.attend(projections, scores, prepared, len(text))
        return self.pool(text, spread, weights, prepared).T

    def radii(self, text: Tensor, prepared: Prepared) -> Tensor:
        """``r`` of every pair: ``[videos, texts, dim]``."""
        unit = F.normalize(text, dim=-1, eps=MIN_NORM)
        cosine = torch.matmul(unit, prepared["unit"].transpose(1, 2))
        cosine = cosine.masked_fill(~prepared["mask"][:, None], 0.0)
        weight = self.radius[: cosine.shape[-1]]
        if self.plan.radius_bias is None:
            return torch.matmul(cosine, weight).exp_().to(self.outer)
        flat = torch.addmm(self.plan.radius_bias, cosine.flatten(0, 1), weight)
        return flat.exp_().to(self.outer).view(*cosine.shape[:2], -1)

    def candidates(self, text: Tensor, spread: Tensor) -> Tensor:
        """Text nodes ``[pairs * nodes, dim]``, three parts side by side if precise."""
        from eaglenet.scoring.kernel import make_candidates

        videos, texts, dim = spread.shape
        nodes = self.noise.shape[0]
        width = 3 * dim if self.precise else dim
        candidates = spread.new_empty(videos * texts * nodes, width, dtype=torch.bfloat16)
        make_candidates[(videos * texts,)](
            text,
            spread,
            self.noise,
            candidates,
            texts,
            DIM=dim,
            WIDE=_power_of_two(dim),
            NODES=nodes,
            ROWS=_power_of_two(nodes),
            PRECISE=self.precise,
            num_warps=8,
        )
        return candidates

    def _product(self, rows: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A matrix product of bfloat16 numbers, summed in float32, by the vendor's library."""
        if dtype == torch.bfloat16:
            return rows @ weight
        if rows.is_cuda:
            return torch.mm(rows, weight, out_dtype=torch.float32)
        return rows.float() @ weight.float()

    def attend(self, projections: Tensor, scores: Tensor, prepared: Prepared, texts: int) -> Tensor:
        """Softmax weights of the text nodes: ``[videos, texts, 1 + candidates]`` float32."""
        from eaglenet.scoring.kernel import graph_weights, operand_type

        nodes = self.noise.shape[0]
        videos, frames = prepared["mask"].shape
        tuning = tuning_for(frames, precise=self.precise)
        output = torch.empty(videos, texts, nodes, device=scores.device)
        head = self.inner // self.heads
        blank = prepared["source"]
        graph_weights[(texts * videos,)](
            projections,
            scores,
            prepared["message"],
            prepared.get("base", prepared["message"]),
            prepared["source"],
            prepared.get("target", blank),
            prepared.get("normaliser", blank),
            prepared["mask"],
            self.text_vectors,
            self.frame_vectors,
            output,
            texts,
            self.plan.graph.negative_slope,
            WIDTH=projections.shape[1],
            INNER=self.inner,
            HEAD=head,
            HEADS=self.heads,
            NODES=nodes,
            FRAMES=frames,
            ROWS=_power_of_two(nodes),
            FRAME_ROWS=_power_of_two(frames),
            BLOCK=min(tuning.block, head),
            SCORES=self.score_width,
            VECTORS=self.vector_width,
            RESIDUAL_WIDTH=self.residual_width,
            JOINT=self.plan.graph.joint,
            ACTIVATED=self.plan.graph.frame_vectors is not None,
            PRECISE=self.precise,
            OPERAND=operand_type(),
            num_warps=tuning.warps,
            num_stages=tuning.stages,
        )
        return output

    def pool(self, text: Tensor, spread: Tensor, weights: Tensor, prepared: Prepared) -> Tensor:
        """Cosine of enriched text and pooled video: ``[videos, texts]`` float32."""
        from eaglenet.scoring.kernel import enrich, finish

        pooling = self.plan.pooling
        videos, texts, dim = spread.shape
        wide = _power_of_two(dim)
        nodes = self.noise.shape[0]
        enriched = torch.empty_like(spread)
        query = torch.empty_like(spread)
        enrich[(videos * texts,)](
            text,
            spread,
            self.noise,
            weights,
            enriched,
            query,
            texts,
            pooling.epsilon,
            DIM=dim,
            WIDE=wide,
            NODES=nodes,
            ROWS=_power_of_two(nodes),
            num_warps=4,
        )
        logits = torch.bmm(query, prepared["key"].transpose(1, 2)).float()
        logits += prepared["key_bias"][:, None]
        logits = logits.masked_fill(~prepared["mask"][:, None], -1.0e30)
        attended = torch.bmm(logits.softmax(dim=-1).to(self.outer), prepared["value"])
        attended = F.layer_norm(attended, (dim,), *self.middle, pooling.epsilon)
        moved = torch.matmul(attended, self.linear)
        output = torch.empty(videos, texts, device=spread.device)
        finish[(videos * texts,)](
            attended,
            moved,
            pooling.linear_bias,
            pooling.final_weight,
            pooling.final_bias,
            enriched,
            output,
            pooling.epsilon,
            DIM=dim,
            WIDE=wide,
            num_warps=1,
        )
        return output
