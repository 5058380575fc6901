"""Launches of the Triton kernels, and the matrix products between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.types import MIN_NORM
from eaglenet.scoring.eaglenet.factorised import PreparedVideos
from eaglenet.scoring.eaglenet.plan import Plan

MAX_NODES = 64
MAX_FRAMES = 64
"""Largest numbers tested on a GPU; the factorised scorer takes any number."""
LARGE_TILE = 32
"""Number of text nodes or frames above which their tiles use too many registers."""
NARROW_WIDTH = 128
"""Width below which rounding errors of a cosine do not average out, and float32 is cheap."""
ENRICH_PAIRS = 16
"""Pairs per program of ``enrich``: the rows of a tile of the matrix unit."""
RADIUS_PAIRS = 8
"""Pairs per program of ``radius_offsets``; four times as many beyond ``LARGE_TILE`` frames."""
LANES = 128
"""Rows per program of the kernels that work row by row."""
SAMPLE_SIZE = 64
"""Number of texts and of videos from whose radii a basis is computed."""


@dataclass(frozen=True)
class Tuning:
    """Launch shape of ``graph_weights`` and ``node_terms``.

    block: columns of text nodes per step. frame_tile, frame_block: frame nodes and their columns
    per step. stages: loads ahead. registers: maximum per thread.

    With 4 or 8 warps, some tiles of 64 rows caused illegal memory accesses on an H200 (Triton 3.6).
    """

    block: int = 64
    frame_tile: int = 16
    frame_block: int = 128
    warps: int = 1
    stages: int = 2
    registers: int | None = 168


@dataclass(frozen=True)
class RadiusBasis:
    """Basis of radii: a centre plus combinations of a few vectors.

    A radius is a smooth function of the cosines of a pair, so that few vectors are enough. Products
    with the matrices of the model then have that many rows instead of all dimensions.
    """

    centre: Tensor
    """``[dim]`` float32."""
    vectors: Tensor
    """``[dim, k]``, orthonormal; the first column is zero and stands for the centre. For radii in
    bfloat16: high and low parts, concatenated."""
    columns: Tensor
    projection: Tensor
    """Centre and vectors times the factors of radii; see ``KernelLauncher._scale_by_noise``."""


def tuning_for(nodes: int, frames: int, *, precise: bool) -> Tuning:
    """Return the launch shape that was fastest on an H200 for the released preset.

    After a change here, run ``tests/scoring/kernel_on_device.py``.
    """
    if max(nodes, frames) > LARGE_TILE:
        return Tuning(16, 32, 32, registers=None) if precise else Tuning(32, 32, 64)
    return Tuning(32, 16, 32, registers=None) if precise else Tuning()


def staged_tuning(frames: int) -> Tuning:
    """Return the launch shape of ``node_terms``."""
    return Tuning(frame_tile=32, frame_block=64) if frames > 16 else Tuning()


def why_not(plan: Plan, num_frames: int) -> str | None:
    """Return why the kernels cannot score this plan, or None."""
    graph = plan.graph
    nodes = plan.noise.shape[0]
    if len(graph.layers) != 1:
        return f"the kernels support 2 graph layers, not {len(graph.layers) + 1}"
    head = graph.layers[0].text_text.weight.shape[1] // graph.num_heads
    if head < 16 or head & (head - 1):
        return f"the width of a head must be a power of two of at least 16, not {head}"
    if nodes > MAX_NODES:
        return f"the kernels support at most {MAX_NODES} text nodes, not {nodes}"
    if not 0 <= graph.negative_slope <= 1:
        return f"the kernels support LeakyReLU slopes from 0 to 1, not {graph.negative_slope}"
    if num_frames > MAX_FRAMES:
        return f"the kernels support at most {MAX_FRAMES} frames, not {num_frames}"
    return None


def _power_of_two(value: int) -> int:
    """Return the next power of two, at least 16: the smallest tile side of the matrix unit."""
    return max(16, 1 << (value - 1).bit_length())


def _pad_columns(columns: Tensor, width: int) -> Tensor:
    return F.pad(columns, (0, width - columns.shape[1])).contiguous()


def _split_float(value: Tensor) -> tuple[Tensor, Tensor]:
    """Split a float32 tensor into the sum of two bfloat16 tensors (16 bits of mantissa)."""
    high = value.to(torch.bfloat16)
    return high, (value.float() - high.float()).to(torch.bfloat16)


def _leading_directions(rows: Tensor, count: int) -> Tensor:
    """Return orthonormal ``[dim, count]`` that span nearly all of ``rows`` (subspace iteration)."""
    gram = rows.T @ rows
    start = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], count, generator=start).to(rows)
    for _ in range(2):
        directions = torch.linalg.qr(gram @ directions).Q
    return directions


class KernelLauncher:
    """Launcher of the kernels, with the rearranged weights of one plan.

    precise: split factors into two bfloat16 parts, so that scores are within about 1e-6 of the
    exact ones, instead of multiplying in plain bfloat16.
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
        # Data type outside the graph: radius, enriched text and pooling.
        self.outer = torch.float32 if plan.noise.shape[1] < NARROW_WIDTH else self.dtype
        columns = _pad_columns(layer.attention_vectors, self.score_width)
        self.columns = columns
        self.noise_columns = self._to_factor(self._scale_by_noise(columns))
        weights = [layer.text_text.weight]
        if graph.frame_vectors is not None and not graph.is_joint:
            weights.append(layer.text_frame.weight)
        if layer.residual is not None:
            weights.append(layer.residual)
        self.width = sum(weight.shape[1] for weight in weights)
        self.projection = torch.cat(weights, dim=1)
        self.noise_projection = self._to_factor(self._scale_by_noise(self.projection))
        self.basis: RadiusBasis | None = None
        # Sharp edge weights magnify the error of a basis: 3e-4 caused errors of 1.5e-5.
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
        self.padded_heads = 1 << (self.heads - 1).bit_length()
        # 8 columns are the narrowest right factor of the matrix unit.
        width = max(8, self.padded_heads)
        self.narrow_vectors = tuple(
            vectors[:, :width].contiguous() for vectors in (self.text_vectors, self.frame_vectors)
        )
        self.noise = plan.noise.to(self.outer).contiguous()
        self.radius = plan.radius.contiguous()
        self.zero = torch.zeros_like(plan.noise[0], dtype=torch.float32)
        self.radius_bias = self.zero if plan.radius_bias is None else plan.radius_bias.contiguous()
        self.linear = pooling.linear.to(self.outer).contiguous()
        self.middle = (pooling.middle_weight.to(self.outer), pooling.middle_bias.to(self.outer))

    def _scale_by_noise(self, weight: Tensor) -> Tensor:
        """Return ``diag(noise_i) W`` of all candidates, concatenated: the factor of a radius."""
        return (self.plan.noise[1:].T[:, :, None] * weight[:, None]).flatten(1)

    def _to_factor(self, values: Tensor) -> Tensor:
        """Convert to bfloat16; if precise, stack ``[high; high; low]`` for :meth:`_to_rows`."""
        high, low = _split_float(values)
        return torch.cat([high, high, low]) if self.precise else high

    def calibrate(self, text: Tensor, prepared_videos: PreparedVideos) -> None:
        """Compute a basis of the radii of these pairs, if few vectors are enough."""
        cosine = self.cosines(text, prepared_videos).flatten(0, 1)
        frames = cosine.shape[1]
        radii = torch.addmm(self.radius_bias, cosine, self.radius[:frames]).exp_()
        centre = radii.mean(dim=0)
        offsets = radii - centre
        squares = offsets.square().sum(dim=1)
        # Half of the tolerance, because other pairs differ from the sample.
        limits = (self.tolerance / 2) ** 2 * radii.square().sum(dim=1)
        size = 4 * frames
        if not self.precise:
            # The first order of exp has a direction per frame. Many frames add little beyond it.
            size = min(size, 64 + frames)
        size = _power_of_two(size)
        for rows in (size, 2 * size, 4 * size):
            if 2 * rows > radii.shape[1]:
                break
            vectors = _leading_directions(offsets, rows - 1)
            squared_error = squares - (offsets @ vectors).square().sum(dim=1)
            if bool((squared_error <= limits).all()):
                self.basis = self._make_basis(centre, vectors)
                return
        self.basis = None

    def _make_basis(self, centre: Tensor, vectors: Tensor) -> RadiusBasis:
        rows = torch.cat([centre[None], vectors.T])
        vectors = F.pad(vectors, (1, 0)).contiguous()
        return RadiusBasis(
            centre,
            vectors if self.outer == torch.float32 else torch.cat(_split_float(vectors), dim=1),
            columns=self._to_factor(rows @ self._scale_by_noise(self.columns)),
            projection=self._to_factor(rows @ self._scale_by_noise(self.projection)),
        )

    def bytes_per_pair(self) -> int:
        """Return the bytes of the projections of a pair, which dominate those of a tile."""
        return (self.noise.shape[0] - 1) * self.width * self.dtype.itemsize

    def prepare(self, prepared_videos: PreparedVideos) -> PreparedVideos:
        """Convert the output of ``factorised.prepare`` to the data types of the kernels."""
        tensors = {
            "unit": prepared_videos["unit"].float().contiguous(),
            "mask": prepared_videos["mask"].contiguous(),
            # The kernel multiplies all frames with their attention, which is 0 if masked.
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
            tensors["base"] = prepared_videos["base"].to(self.dtype).contiguous()
            tensors["target"] = prepared_videos["target"].float().contiguous()
        if "normaliser" in prepared_videos:
            tensors["normaliser"] = prepared_videos["normaliser"].float().contiguous()
        return tensors

    def score_tile(self, sentence: Tensor, prepared_videos: PreparedVideos) -> Tensor:
        """Return the scores ``[texts, videos]`` of a tile; pairs inside are ``[videos, texts]``."""
        text = sentence.float().contiguous()
        # The kernels need contiguous tensors, and rows may be any selection.
        prepared_videos = {name: value.contiguous() for name, value in prepared_videos.items()}
        cosine = self.cosines(text, prepared_videos)
        basis = self.basis
        offsets, squares = self._compute_radii(cosine, basis)
        coefficients = None if basis is None else self._coefficients(offsets, squares, basis)
        if basis is None or coefficients is None:
            if basis is not None:
                offsets, _ = self._compute_radii(cosine, None)
            rows, centre = self._to_rows(offsets.flatten(0, 1)), self.zero
            columns, projection = self.noise_columns, self.noise_projection
        else:
            rows, centre = self._to_rows(coefficients), basis.centre
            columns, projection = basis.columns, basis.projection
        scores = self._product(rows, columns, torch.float32)
        if self.takes_stages:
            weights = self.attend_in_stages(text, rows, projection, scores, prepared_videos)
        else:
            projections = self._product(rows, projection, self.dtype)
            weights = self.attend(text, projections, scores, prepared_videos)
        return self.pool(text, offsets, centre, weights, prepared_videos).T

    def cosines(self, text: Tensor, prepared_videos: PreparedVideos) -> Tensor:
        """Return the cosines of texts with frames ``[videos, texts, frames]``; 0 if masked."""
        unit = F.normalize(text, dim=-1, eps=MIN_NORM)
        cosine = torch.matmul(unit, prepared_videos["unit"].transpose(1, 2))
        return cosine.masked_fill(~prepared_videos["mask"][:, None], 0.0)

    def _compute_radii(self, cosine: Tensor, basis: RadiusBasis | None) -> tuple[Tensor, Tensor]:
        """Return radii minus the centre ``[videos, texts, dim]``, and squared lengths of both."""
        from eaglenet.scoring.eaglenet.kernel import radius_offsets

        videos, texts, frames = cosine.shape
        dim = self.radius.shape[1]
        offsets = torch.empty(videos, texts, dim, dtype=self.outer, device=cosine.device)
        squares = torch.empty(2, videos * texts, device=cosine.device)
        pairs = 4 * RADIUS_PAIRS if frames > LARGE_TILE else RADIUS_PAIRS
        radius_offsets[(-(-videos * texts // pairs),)](
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
            PAIRS=pairs,
            num_warps=4,
        )
        return offsets, squares

    def _coefficients(self, offsets: Tensor, squares: Tensor, basis: RadiusBasis) -> Tensor | None:
        """Return coefficients ``[pairs, k]`` of centre and vectors; None if a radius needs more."""
        flat = offsets.flatten(0, 1)
        if self.outer == torch.bfloat16:
            high, low = self._product(flat, basis.vectors, torch.float32).chunk(2, dim=1)
            coefficients = high + low
        else:
            coefficients = flat @ basis.vectors
        squared_error = squares[0] - coefficients.square().sum(dim=1)
        if not bool((squared_error <= self.tolerance**2 * squares[1]).all()):
            return None
        coefficients[:, 0] = 1.0
        return coefficients

    def _to_rows(self, values: Tensor) -> Tensor:
        """Convert to bfloat16; if precise, concatenate ``[high | low | high]``."""
        if not self.precise:
            return values.to(torch.bfloat16)
        high, low = _split_float(values)
        return torch.cat([high, low, high], dim=1)

    def _product(self, rows: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Multiply bfloat16 matrices, accumulated in float32."""
        if dtype == torch.bfloat16:
            return rows @ weight
        if rows.is_cuda:
            return torch.mm(rows, weight, out_dtype=torch.float32)
        return rows.float() @ weight.float()

    def attend(
        self, text: Tensor, projections: Tensor, scores: Tensor, prepared_videos: PreparedVideos
    ) -> Tensor:
        """Return softmax weights of text nodes ``[videos, texts, 1 + candidates]`` in float32."""
        from eaglenet.scoring.eaglenet.kernel import graph_weights

        texts, nodes = len(text), self.noise.shape[0]
        videos, frames = prepared_videos["mask"].shape
        widths = [self.inner, self.inner, self.score_width]
        text_terms = (part.contiguous() for part in (text @ self.text_side).split(widths, dim=1))
        output = torch.empty(videos, texts, nodes, device=scores.device)
        blank = prepared_videos["source"]
        graph_weights[(texts * videos,)](
            projections,
            scores,
            *text_terms,
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
            SCORES=self.score_width,
            VECTORS=self.vector_width,
            JOINT=self.plan.graph.is_joint,
            ACTIVATED=self.plan.graph.frame_vectors is not None,
            PRECISE=self.precise,
            **self._sizes(nodes, frames, tuning_for(nodes, frames, precise=self.precise)),
        )
        return output

    def _sizes(self, nodes: int, frames: int, tuning: Tuning) -> dict[str, Any]:
        """Return the constants of the programs that pass messages, and their launch options."""
        from eaglenet.scoring.eaglenet.kernel import operand_type

        head = self.inner // self.heads
        return {
            "WIDTH": self.width,
            "INNER": self.inner,
            "HEAD": head,
            "HEADS": self.heads,
            "NODES": nodes,
            "FRAMES": frames,
            "ROWS": _power_of_two(nodes),
            "FRAME_ROWS": _power_of_two(frames),
            "BLOCK": min(tuning.block, head),
            "FRAME_TILE": min(tuning.frame_tile, _power_of_two(frames)),
            "FRAME_BLOCK": min(tuning.frame_block, head),
            "RESIDUAL_WIDTH": self.residual_width,
            "OPERAND": operand_type(),
            "num_warps": tuning.warps,
            "num_stages": tuning.stages,
            "maxnreg": tuning.registers,
        }

    @property
    def takes_stages(self) -> bool:
        """True if pairs are scored by ``attend_in_stages``."""
        graph = self.plan.graph
        return graph.frame_vectors is not None and not graph.is_joint and not self.precise

    def attend_in_stages(
        self,
        text: Tensor,
        rows: Tensor,
        projection: Tensor,
        scores: Tensor,
        prepared_videos: PreparedVideos,
    ) -> Tensor:
        """Return what :meth:`attend` returns, for half precision and separate relations.

        Attention is normalised before the program that passes messages, which then does little
        besides products. The part of the text itself is a row of the projections.
        """
        videos, texts, nodes = len(prepared_videos["mask"]), len(text), self.noise.shape[0]
        widths = [2 * self.inner, self.score_width]
        text_rows, text_scores = (text @ self.text_side).split(widths, dim=1)
        projections = rows.new_empty(videos, texts, nodes, self.width)
        projections[:, :, 0] = F.pad(text_rows, (0, self.residual_width)).to(self.dtype)
        flat = projections.view(videos * texts, -1)
        torch.mm(rows, projection, out=flat[:, self.width :])
        terms = F.pad(scores.view(videos, texts, nodes - 1, -1), (0, 0, 1, 0))
        terms += text_scores[:, None]
        factors, frame_factors, frame_sources = self._edge_factors(terms, prepared_videos)
        node_terms = self._node_terms(
            projections, factors, frame_factors, frame_sources, prepared_videos
        )
        return self._edge_means(*node_terms, prepared_videos).softmax(dim=-1)

    def _edge_factors(
        self, terms: Tensor, prepared_videos: PreparedVideos
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return factors of text nodes, of frames as targets and of frames as sources.

        The last axis is heads, padded to a power of two. A text node has two factors as a row of
        text-text edges, as their source, as a row of edges from frames and as a source of edges to
        frames: eight in all.
        """
        from eaglenet.scoring.eaglenet.kernel import row_factors, source_factors

        videos, texts, nodes, score_width = terms.shape
        mask = prepared_videos["mask"]
        frames, heads, slope = mask.shape[1], self.heads, self.plan.graph.negative_slope
        num_terms = self.padded_heads
        target, source = (
            F.pad(prepared_videos[name], (0, num_terms - heads)) for name in ("target", "source")
        )
        frame_top = source.masked_fill(~mask[..., None], -1.0e30).amax(dim=1)
        distance = source - frame_top[:, None]
        frame_sources = torch.stack([distance, slope * distance]).exp()
        frame_sources.masked_fill_(~mask[..., None], 0.0)
        num_rows = videos * texts * nodes
        # The kernels compute padded heads, too, but do not write them.
        allocate = terms.new_empty if num_terms == heads else terms.new_zeros
        factors = allocate(8, num_rows, num_terms)
        frame_factors = allocate(2, videos * texts * frames, num_terms)
        tops = allocate(2, videos * texts, num_terms)
        for index, column in enumerate((heads, 3 * heads)):
            source_factors[(-(-num_rows // LANES),)](
                terms,
                factors[2 + 4 * index],
                factors[3 + 4 * index],
                tops[index],
                num_rows,
                slope,
                SCORES=score_width,
                COLUMN=column,
                NODES=nodes,
                HEADS=heads,
                TERMS=num_terms,
                LANES=LANES,
            )

        def normalise(
            targets: Tensor, top: Tensor, sources: Tensor, output: Tensor, column: int
        ) -> None:
            of_frames, from_frames = targets is target, sources is frame_sources
            row_factors[(-(-output.shape[1] // LANES),)](
                targets,
                top,
                *sources,
                *output,
                output.shape[1],
                texts,
                slope,
                STRIDE=targets.shape[-1],
                COLUMN=column,
                ROWS_PER_PAIR=frames if of_frames else nodes,
                COUNT=frames if from_frames else nodes,
                OF_FRAMES=of_frames,
                FROM_FRAMES=from_frames,
                HEADS=heads,
                TERMS=num_terms,
                LANES=LANES,
            )

        normalise(terms, tops[0], factors[2:4], factors[:2], 0)
        normalise(terms, frame_top, frame_sources, factors[4:6], 2 * heads)
        normalise(target, tops[1], factors[6:], frame_factors, 0)
        return factors, frame_factors, frame_sources

    def _node_terms(
        self,
        projections: Tensor,
        factors: Tensor,
        frame_factors: Tensor,
        frame_sources: Tensor,
        prepared_videos: PreparedVideos,
    ) -> tuple[Tensor, Tensor]:
        """Return the terms of text nodes and of frames in the last layer."""
        from eaglenet.scoring.eaglenet.kernel import node_terms

        videos, texts, nodes, _ = projections.shape
        frames = prepared_videos["mask"].shape[1]
        text_terms = factors.new_empty(videos, texts, nodes, self.padded_heads)
        frame_terms = factors.new_empty(videos, texts, frames, self.padded_heads)
        node_terms[(videos * texts,)](
            projections,
            factors,
            frame_factors,
            *frame_sources,
            prepared_videos["message"],
            prepared_videos["base"],
            *self.narrow_vectors,
            text_terms,
            frame_terms,
            texts,
            videos * texts,
            VECTORS=self.narrow_vectors[0].shape[1],
            TERMS=self.padded_heads,
            **self._sizes(nodes, frames, staged_tuning(frames)),
        )
        return text_terms, frame_terms

    def _edge_means(
        self, text_terms: Tensor, frame_terms: Tensor, prepared_videos: PreparedVideos
    ) -> Tensor:
        """Return mean edge weights ``[videos, texts, nodes]``, up to a number per pair."""
        from eaglenet.scoring.eaglenet.kernel import edge_means

        videos, texts, nodes, num_terms = text_terms.shape
        output = text_terms.new_empty(videos, texts, nodes)
        edge_means[(-(-output.numel() // LANES),)](
            text_terms,
            frame_terms,
            prepared_videos["mask"],
            output,
            output.numel(),
            texts,
            self.plan.graph.negative_slope,
            NODES=nodes,
            FRAMES=frame_terms.shape[2],
            HEADS=self.heads,
            TERMS=num_terms,
            MASKED=self.plan.mask_frames,
            LANES=LANES,
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
        """Return cosines of enriched texts and pooled videos ``[videos, texts]`` in float32."""
        from eaglenet.scoring.eaglenet.kernel import enrich, finish, operand_type

        pooling = self.plan.pooling
        videos, texts, dim = offsets.shape
        wide = _power_of_two(dim)
        nodes = self.noise.shape[0]
        enriched_texts = torch.empty_like(offsets)
        query = torch.empty_like(offsets)
        enrich[(-(-videos * texts // ENRICH_PAIRS),)](
            text,
            offsets,
            centre,
            self.noise,
            weights,
            enriched_texts,
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
            enriched_texts,
            output,
            pooling.epsilon,
            DIM=dim,
            WIDE=wide,
            num_warps=1,
        )
        return output
