"""Launches of the Triton kernels, with prepared weights and the products in between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.types import MIN_NORM
from eaglenet.scoring.eaglenet.factorised import PreparedVideos
from eaglenet.scoring.eaglenet.plan import Plan

MAX_NODES = 64
MAX_FRAMES = 64
"""Largest size run on a GPU; the factorised scorer takes any number."""
LARGE_TILE = 32
"""Above this many text nodes or frames, their tiles crowd a program's registers."""
NARROW_WIDTH = 128
"""Below this width, rounding errors of a cosine do not average out and float32 is cheap."""
ENRICH_PAIRS = 16
"""Pairs of one program of ``enrich``: the rows of a matrix unit's tile."""
SPREAD_PAIRS = 4
"""Pairs of one program of ``spread``."""
SAMPLE_SIZE = 64
"""Number of texts and of videos whose radii a basis is made from."""


@dataclass(frozen=True)
class Tuning:
    """Launch shape of ``graph_weights``.

    block: columns of text nodes at a time; frame_tile and frame_block: frame nodes and their
    columns at a time; stages: loads ahead; registers: the most for a thread.

    With 4 or 8 warps, some shapes of tiles of 64 rows ended in illegal memory accesses on an H200
    (Triton 3.6).
    """

    block: int = 64
    frame_tile: int = 16
    frame_block: int = 128
    warps: int = 1
    stages: int = 2
    registers: int | None = 168


@dataclass(frozen=True)
class RadiusBasis:
    """Radii of pairs as a centre plus a combination of a few vectors.

    A radius is a smooth function of a pair's cosines with the frames, so few vectors are enough;
    the products with the model's matrices then have as many rows instead of all dimensions.
    """

    centre: Tensor
    """``[dim]`` float32."""
    vectors: Tensor
    """``[dim, k]`` orthonormal; the first column is zero and stands for the centre. For radii in
    bfloat16 two parts side by side."""
    columns: Tensor
    projection: Tensor
    """Centre and vectors times the factors of radii; see ``KernelLauncher._noise_scaled``."""


def tuning_for(nodes: int, frames: int, *, precise: bool) -> Tuning:
    """Return the fastest of several shapes on an H200 for the released preset.

    After a change here, run ``tests/scoring/kernel_on_device.py``.
    """
    if max(nodes, frames) > LARGE_TILE:
        return Tuning(16, 32, 32, registers=None) if precise else Tuning(32, 32, 64)
    return Tuning(32, 16, 32, registers=None) if precise else Tuning()


def why_not(plan: Plan, num_frames: int) -> str | None:
    """Return why the kernels cannot score this plan, or None."""
    graph = plan.graph
    nodes = plan.noise.shape[0]
    if len(graph.layers) != 1:
        return f"the kernels are written for 2 graph layers, not {len(graph.layers) + 1}"
    head = graph.layers[0].text_text.weight.shape[1] // graph.num_heads
    if head < 16 or head & (head - 1):
        return f"a head of {head} dimensions is not a power of two of at least 16"
    if nodes > MAX_NODES:
        return f"{nodes} text nodes are more than {MAX_NODES}"
    if not 0 <= graph.negative_slope <= 1:
        return f"the kernels take LeakyReLU slopes from 0 to 1, not {graph.negative_slope}"
    if num_frames > MAX_FRAMES:
        return f"{num_frames} frames are more than {MAX_FRAMES}"
    return None


def _power_of_two(value: int) -> int:
    """At least 16: the smallest side of a matrix unit's tile."""
    return max(16, 1 << (value - 1).bit_length())


def _pad_columns(columns: Tensor, width: int) -> Tensor:
    return F.pad(columns, (0, width - columns.shape[1])).contiguous()


def _parts(value: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as the sum of two bfloat16 tensors (16 bits of mantissa)."""
    high = value.to(torch.bfloat16)
    return high, (value.float() - high.float()).to(torch.bfloat16)


def _leading_directions(rows: Tensor, count: int) -> Tensor:
    """Orthonormal ``[dim, count]`` that explain nearly all of ``rows``: a subspace iteration."""
    gram = rows.T @ rows
    start = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], count, generator=start).to(rows)
    for _ in range(2):
        directions = torch.linalg.qr(gram @ directions).Q
    return directions


class KernelLauncher:
    """Scores tiles of pairs with the kernels. Built once per plan; holds its rearranged weights.

    precise: products of two bfloat16 parts each, accumulated in float32 (about 1e-6 of the exact
    score) instead of plain bfloat16.
    """

    def __init__(self, plan: Plan, *, precise: bool) -> None:
        graph, pooling = plan.graph, plan.pooling
        layer = graph.layers[0]
        self.plan = plan
        self.precise = precise
        self.heads = graph.num_heads
        self.inner = layer.text_text.weight.shape[1]
        self.residual_width = 0 if layer.residual is None else layer.residual.shape[1]
        self.score_width = _power_of_two(4 * self.heads)
        self.vector_width = _power_of_two(self.heads)
        self.dtype = torch.float32 if precise else torch.bfloat16
        # Type of everything outside the graph: radius, enriched text and pooling.
        self.outer = torch.float32 if plan.noise.shape[1] < NARROW_WIDTH else self.dtype
        columns = _pad_columns(layer.attention_vectors, self.score_width)
        self.columns = columns
        self.noise_columns = self._split(self._noise_scaled(columns))
        weights = [layer.text_text.weight]
        if graph.frame_vectors is not None and not graph.joint:
            weights.append(layer.text_frame.weight)
        if layer.residual is not None:
            weights.append(layer.residual)
        self.width = sum(weight.shape[1] for weight in weights)
        self.projection = torch.cat(weights, dim=1)
        self.noise_projection = self._split(self._noise_scaled(self.projection))
        self.basis: RadiusBasis | None = None
        # Sharp edge weights magnify the error of a basis: 3e-4 gave errors of 1.5e-5.
        self.tolerance = 1e-4 if precise else 1e-3
        base = layer.text_text.weight
        if layer.residual is not None:
            base = base + layer.residual.repeat(1, self.inner // self.residual_width)
        self.text_side = torch.cat([base, layer.text_frame.weight, columns], dim=1)
        self.text_vectors = _pad_columns(graph.text_vectors, self.vector_width).to(self.dtype)
        self.frame_vectors = (
            self.text_vectors
            if graph.frame_vectors is None
            else _pad_columns(graph.frame_vectors, self.vector_width).to(self.dtype)
        )
        self.noise = plan.noise.to(self.outer).contiguous()
        self.radius = plan.radius.contiguous()
        self.zero = torch.zeros_like(plan.noise[0], dtype=torch.float32)
        self.radius_bias = self.zero if plan.radius_bias is None else plan.radius_bias.contiguous()
        self.linear = pooling.linear.to(self.outer).contiguous()
        self.middle = (pooling.middle_weight.to(self.outer), pooling.middle_bias.to(self.outer))

    def _noise_scaled(self, weight: Tensor) -> Tensor:
        """``diag(noise_i) W`` of every candidate, side by side: the factor of a radius."""
        return (self.plan.noise[1:].T[:, :, None] * weight[:, None]).flatten(1)

    def _split(self, values: Tensor) -> Tensor:
        """In bfloat16. Precise: ``[w_high; w_high; w_low]`` for ``[r_high | r_low | r_high]``."""
        high, low = _parts(values)
        return torch.cat([high, high, low]) if self.precise else high

    def calibrate(self, text: Tensor, prepared_videos: PreparedVideos) -> None:
        """Find a basis of the radii of these pairs, if one of few vectors is enough."""
        cosine = self.cosines(text, prepared_videos).flatten(0, 1)
        frames = cosine.shape[1]
        radii = torch.addmm(self.radius_bias, cosine, self.radius[:frames]).exp_()
        centre = radii.mean(dim=0)
        offsets = radii - centre
        squares = offsets.square().sum(dim=1)
        # Half of the tolerance, because other pairs differ from the sample.
        limits = (self.tolerance / 2) ** 2 * radii.square().sum(dim=1)
        size = _power_of_two(4 * frames)
        for rows in (size, 2 * size, 4 * size):
            if 2 * rows > radii.shape[1]:
                break
            vectors = _leading_directions(offsets, rows - 1)
            left = squares - (offsets @ vectors).square().sum(dim=1)
            if bool((left <= limits).all()):
                self.basis = self._basis(centre, vectors)
                return
        self.basis = None

    def _basis(self, centre: Tensor, vectors: Tensor) -> RadiusBasis:
        rows = torch.cat([centre[None], vectors.T])
        vectors = F.pad(vectors, (1, 0)).contiguous()
        return RadiusBasis(
            centre,
            vectors if self.outer == torch.float32 else torch.cat(_parts(vectors), dim=1),
            columns=self._split(rows @ self._noise_scaled(self.columns)),
            projection=self._split(rows @ self._noise_scaled(self.projection)),
        )

    def bytes_per_pair(self) -> int:
        """Bytes of the projections of a pair, which are nearly all of a tile."""
        return (self.noise.shape[0] - 1) * self.width * self.dtype.itemsize

    def prepare(self, prepared_videos: PreparedVideos) -> PreparedVideos:
        """Convert the output of ``factorised.prepare`` to the kernels' types."""
        converted_parts = {
            "unit": prepared_videos["unit"].float().contiguous(),
            "mask": prepared_videos["mask"].contiguous(),
            # The kernel multiplies all frames with their attention, which is 0 for masked ones.
            "message": prepared_videos["message"]
            .masked_fill(~prepared_videos["mask"][..., None], 0.0)
            .to(self.dtype)
            .contiguous(),
            "source": prepared_videos["source"].float().contiguous(),
            "key": prepared_videos["key"].to(self.outer).contiguous(),
            "key_bias": prepared_videos["key_bias"].float().contiguous(),
            "value": prepared_videos["value"].to(self.outer).contiguous(),
        }
        if "base" in prepared_videos:
            converted_parts["base"] = prepared_videos["base"].to(self.dtype).contiguous()
            converted_parts["target"] = prepared_videos["target"].float().contiguous()
        if "normaliser" in prepared_videos:
            converted_parts["normaliser"] = prepared_videos["normaliser"].float().contiguous()
        return converted_parts

    def score_tile(self, sentence: Tensor, prepared_videos: PreparedVideos) -> Tensor:
        """Scores ``[texts, videos]`` of one tile. Inside, pairs are ``[videos, texts]``."""
        text = sentence.float().contiguous()
        # Rows may be any selection; the kernels need contiguous tensors.
        prepared_videos = {name: value.contiguous() for name, value in prepared_videos.items()}
        cosine = self.cosines(text, prepared_videos)
        basis = self.basis
        offsets, squares = self._spread(cosine, basis)
        coefficients = None if basis is None else self._coefficients(offsets, squares, basis)
        if basis is None or coefficients is None:
            if basis is not None:
                offsets, _ = self._spread(cosine, None)
            rows, centre = self._rows(offsets.flatten(0, 1)), self.zero
            columns, projection = self.noise_columns, self.noise_projection
        else:
            rows, centre = self._rows(coefficients), basis.centre
            columns, projection = basis.columns, basis.projection
        scores = self._product(rows, columns, torch.float32)
        projections = self._product(rows, projection, self.dtype)
        weights = self.attend(text, projections, scores, prepared_videos)
        return self.pool(text, offsets, centre, weights, prepared_videos).T

    def cosines(self, text: Tensor, prepared_videos: PreparedVideos) -> Tensor:
        """Cosines of texts with frames: ``[videos, texts, frames]``; 0 for masked frames."""
        unit = F.normalize(text, dim=-1, eps=MIN_NORM)
        cosine = torch.matmul(unit, prepared_videos["unit"].transpose(1, 2))
        return cosine.masked_fill(~prepared_videos["mask"][:, None], 0.0)

    def _spread(self, cosine: Tensor, basis: RadiusBasis | None) -> tuple[Tensor, Tensor]:
        """Radii minus the centre ``[videos, texts, dim]``; squared lengths of both."""
        from eaglenet.scoring.eaglenet.kernel import spread

        videos, texts, frames = cosine.shape
        dim = self.radius.shape[1]
        offsets = torch.empty(videos, texts, dim, dtype=self.outer, device=cosine.device)
        squares = torch.empty(2, videos * texts, device=cosine.device)
        spread[(-(-videos * texts // SPREAD_PAIRS),)](
            cosine,
            self.radius,
            self.radius_bias,
            self.zero if basis is None else basis.centre,
            offsets,
            squares[0],
            squares[1],
            videos * texts,
            DIM=dim,
            WIDE=_power_of_two(dim),
            FRAMES=frames,
            PAIRS=SPREAD_PAIRS,
            num_warps=4,
        )
        return offsets, squares

    def _coefficients(self, offsets: Tensor, squares: Tensor, basis: RadiusBasis) -> Tensor | None:
        """Coefficients of centre and vectors ``[pairs, k]``; None if a radius does not fit."""
        flat = offsets.flatten(0, 1)
        if self.outer == torch.bfloat16:
            high, low = self._product(flat, basis.vectors, torch.float32).chunk(2, dim=1)
            coefficients = high + low
        else:
            coefficients = flat @ basis.vectors
        left = squares[0] - coefficients.square().sum(dim=1)
        if not bool((left <= self.tolerance**2 * squares[1]).all()):
            return None
        coefficients[:, 0] = 1.0
        return coefficients

    def _rows(self, values: Tensor) -> Tensor:
        """Rows of a product in bfloat16, three parts side by side if precise."""
        if not self.precise:
            return values.to(torch.bfloat16)
        high, low = _parts(values)
        return torch.cat([high, low, high], dim=1)

    def _product(self, rows: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A matrix product of bfloat16 numbers, summed in float32, by the vendor's library."""
        if dtype == torch.bfloat16:
            return rows @ weight
        if rows.is_cuda:
            return torch.mm(rows, weight, out_dtype=torch.float32)
        return rows.float() @ weight.float()

    def attend(
        self, text: Tensor, projections: Tensor, scores: Tensor, prepared_videos: PreparedVideos
    ) -> Tensor:
        """Softmax weights of the text nodes: ``[videos, texts, 1 + candidates]`` float32."""
        from eaglenet.scoring.eaglenet.kernel import graph_weights, operand_type

        texts, nodes = len(text), self.noise.shape[0]
        videos, frames = prepared_videos["mask"].shape
        tuning = tuning_for(nodes, frames, precise=self.precise)
        widths = [self.inner, self.inner, self.score_width]
        own = (part.contiguous() for part in (text @ self.text_side).split(widths, dim=1))
        output = torch.empty(videos, texts, nodes, device=scores.device)
        head = self.inner // self.heads
        blank = prepared_videos["source"]
        graph_weights[(texts * videos,)](
            projections,
            scores,
            *own,
            prepared_videos["message"],
            prepared_videos.get("base", prepared_videos["message"]),
            prepared_videos["source"],
            prepared_videos.get("target", blank),
            prepared_videos.get("normaliser", blank),
            prepared_videos["mask"],
            self.text_vectors,
            self.frame_vectors,
            output,
            texts,
            self.plan.graph.negative_slope,
            WIDTH=self.width,
            INNER=self.inner,
            HEAD=head,
            HEADS=self.heads,
            NODES=nodes,
            FRAMES=frames,
            ROWS=_power_of_two(nodes),
            FRAME_ROWS=_power_of_two(frames),
            BLOCK=min(tuning.block, head),
            FRAME_TILE=min(tuning.frame_tile, _power_of_two(frames)),
            FRAME_BLOCK=min(tuning.frame_block, head),
            SCORES=self.score_width,
            VECTORS=self.vector_width,
            RESIDUAL_WIDTH=self.residual_width,
            JOINT=self.plan.graph.joint,
            ACTIVATED=self.plan.graph.frame_vectors is not None,
            PRECISE=self.precise,
            OPERAND=operand_type(),
            num_warps=tuning.warps,
            num_stages=tuning.stages,
            maxnreg=tuning.registers,
        )
        return output

    def pool(
        self,
        text: Tensor,
        offsets: Tensor,
        centre: Tensor,
        weights: Tensor,
        prepared_videos: PreparedVideos,
    ) -> Tensor:
        """Cosine of enriched text and pooled video: ``[videos, texts]`` float32."""
        from eaglenet.scoring.eaglenet.kernel import enrich, finish, operand_type

        pooling = self.plan.pooling
        videos, texts, dim = offsets.shape
        wide = _power_of_two(dim)
        nodes = self.noise.shape[0]
        enriched = torch.empty_like(offsets)
        query = torch.empty_like(offsets)
        enrich[(-(-videos * texts // ENRICH_PAIRS),)](
            text,
            offsets,
            centre,
            self.noise,
            weights,
            enriched,
            query,
            texts,
            videos * texts,
            pooling.epsilon,
            DIM=dim,
            WIDE=wide,
            NODES=nodes,
            ROWS=_power_of_two(nodes),
            PAIRS=ENRICH_PAIRS,
            OPERAND=operand_type(),
            num_warps=4,
        )
        logits = torch.bmm(query, prepared_videos["key"].transpose(1, 2)).float()
        logits += prepared_videos["key_bias"][:, None]
        logits = logits.masked_fill(~prepared_videos["mask"][:, None], -1.0e30)
        attention_output = torch.bmm(
            logits.softmax(dim=-1).to(self.outer), prepared_videos["value"]
        )
        attention_output = F.layer_norm(attention_output, (dim,), *self.middle, pooling.epsilon)
        output_product = torch.matmul(attention_output, self.linear)
        output = torch.empty(videos, texts, device=offsets.device)
        finish[(videos * texts,)](
            attention_output,
            output_product,
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
