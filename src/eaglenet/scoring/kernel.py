"""Triton kernels for a two-layer EagleNet: what is left of a pair, on chip.

A pair is scored in four steps, each one program per pair (or per few rows), around two matrix
products that are left to the vendor's library:

1. ``make_candidates``: the text nodes t + r * noise;
   then products give all their projections and attention terms.
2. ``graph_weights``: edges, attention, messages and the collapsed last layer; nothing but one
   weight per text node leaves the chip.
3. ``enrich``: the enriched text and its normalised form, the query of the pooling;
   then attention over frames and one product.
4. ``finish``: residual, LayerNorm and cosine.

Pairs are numbered video first, so that neighbouring programs share a video's frames in cache.
The only module that imports Triton. The algebra is in ``docs/fast_scoring.md``.
"""

# Triton reads these functions as a language of its own, without types.
# mypy: ignore-errors
# ruff: noqa: N803, PIE808

from __future__ import annotations

import triton
import triton.language as tl

NEGATIVE = tl.constexpr(-1.0e30)
"""Stands for -inf: a difference of two of these stays finite."""


@triton.jit
def _column(matrix, index, WIDTH: tl.constexpr):
    """Column ``index`` of a [rows, WIDTH] tile as [rows]."""
    columns = tl.arange(0, WIDTH)
    return tl.sum(tl.where(columns[None, :] == index, matrix, 0.0), axis=1)


@triton.jit
def _leaky(value, slope):
    return tl.where(value > 0, value, value * slope)


@triton.jit
def _high(value, OPERAND: tl.constexpr):
    """A float32 tile rounded to bfloat16, in the type that products take."""
    return value.to(tl.bfloat16).to(OPERAND)


@triton.jit
def _low(value, OPERAND: tl.constexpr):
    """What bfloat16 drops of a float32 tile, rounded to bfloat16 in turn."""
    value = value.to(tl.float32)
    return _high(value - value.to(tl.bfloat16).to(tl.float32), OPERAND)


@triton.jit
def _dot(left, right, accumulator, PRECISE: tl.constexpr, OPERAND: tl.constexpr):
    """Product of two tiles: one of their bfloat16 parts, or three that keep 16 bits of float32."""
    left_high = _high(left, OPERAND)
    right_high = _high(right, OPERAND)
    if PRECISE:
        accumulator = tl.dot(_low(left, OPERAND), right_high, accumulator)
        accumulator = tl.dot(left_high, _low(right, OPERAND), accumulator)
    return tl.dot(left_high, right_high, accumulator)


@triton.jit(do_not_specialize=["num_texts"])
def make_candidates(
    text, radius, noise, candidates,
    num_texts,
    DIM: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr,
    PRECISE: tl.constexpr,
):  # fmt: skip
    """Rows t + r * noise of one pair in bfloat16.

    PRECISE rows hold three parts: the value, what bfloat16 drops of it, and the value again.
    """
    pair = tl.program_id(0).to(tl.int64)
    text_row = pair % num_texts
    columns = tl.arange(0, WIDE)
    inside = columns < DIM
    node = tl.arange(0, ROWS)
    mask = (node < NODES)[:, None] & inside[None, :]
    centre = tl.load(text + text_row * DIM + columns, mask=inside, other=0.0).to(tl.float32)
    spread = tl.load(radius + pair * DIM + columns, mask=inside, other=0.0).to(tl.float32)
    draw = tl.load(noise + node[:, None] * DIM + columns[None, :], mask=mask, other=0.0)
    value = centre[None, :] + spread[None, :] * draw.to(tl.float32)
    row = pair * NODES + node[:, None]
    if PRECISE:
        places = candidates + row * (3 * DIM) + columns[None, :]
        tl.store(places + DIM, _low(value, tl.bfloat16), mask=mask)
        tl.store(places + 2 * DIM, value.to(tl.bfloat16), mask=mask)
    else:
        places = candidates + row * DIM + columns[None, :]
    tl.store(places, value.to(tl.bfloat16), mask=mask)


@triton.jit(do_not_specialize=["num_texts"])
def graph_weights(
    projections, scores,
    frame_values, frame_base, frame_source, frame_target, frame_normaliser, frame_mask,
    text_vectors, frame_vectors,
    output,
    num_texts, slope,
    WIDTH: tl.constexpr, INNER: tl.constexpr, HEAD: tl.constexpr, HEADS: tl.constexpr,
    NODES: tl.constexpr, FRAMES: tl.constexpr, ROWS: tl.constexpr, FRAME_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SCORES: tl.constexpr, VECTORS: tl.constexpr,
    RESIDUAL_WIDTH: tl.constexpr, JOINT: tl.constexpr, ACTIVATED: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Softmax weights of the text nodes of one pair (eqs. 5-9 with the last layer collapsed).

    ``projections`` holds for every text node the text-text messages, then (ACTIVATED, not JOINT)
    the text-frame messages, then the residual. JOINT: one relation for all edges (GAT).
    ACTIVATED: edge weights are read after LeakyReLU, so frames matter. RESIDUAL_WIDTH: 0 without a
    residual, HEAD if all heads share it, else INNER.
    """
    pair = tl.program_id(0).to(tl.int64)
    video = pair // num_texts
    node = tl.arange(0, ROWS)
    is_node = node < NODES
    row = pair * NODES + tl.where(is_node, node, 0)
    frame = tl.arange(0, FRAME_ROWS)
    frame_row = video * FRAMES + tl.where(frame < FRAMES, frame, 0)
    is_frame = (frame < FRAMES) & (tl.load(frame_mask + frame_row) != 0)

    vector_range = tl.arange(0, VECTORS)
    text_terms = tl.zeros([ROWS, VECTORS], dtype=tl.float32)
    frame_terms = tl.zeros([FRAME_ROWS, VECTORS], dtype=tl.float32)
    if RESIDUAL_WIDTH == BLOCK:
        own = (WIDTH - RESIDUAL_WIDTH) + tl.arange(0, BLOCK)
        kept = tl.load(
            projections + row[:, None] * WIDTH + own[None, :], mask=is_node[:, None], other=0.0
        )

    for block in range(0, INNER, BLOCK):
        head = block // HEAD
        columns = block + tl.arange(0, BLOCK)
        places = row[:, None] * WIDTH + columns[None, :]
        frame_places = frame_row[:, None] * INNER + columns[None, :]
        projected = tl.load(projections + places, mask=is_node[:, None], other=0.0)
        values = tl.load(frame_values + frame_places, mask=is_frame[:, None], other=0.0)

        # Text nodes: messages from texts, from frames, and their own.
        terms = scores + row * SCORES + head
        seen = tl.load(frame_source + frame_row * HEADS + head)
        edge = _leaky(tl.load(terms)[:, None] + tl.load(terms + HEADS)[None, :], slope)
        edge = tl.where(is_node[None, :], edge, NEGATIVE)
        cross = _leaky(tl.load(terms + 2 * HEADS)[:, None] + seen[None, :], slope)
        cross = tl.where(is_frame[None, :], cross, NEGATIVE)
        peak = tl.max(edge, axis=1)
        cross_peak = tl.max(cross, axis=1)
        if JOINT:
            peak = tl.maximum(peak, cross_peak)
            cross_peak = peak
        edge = tl.exp(edge - peak[:, None])
        cross = tl.exp(cross - cross_peak[:, None])
        total = tl.sum(edge, axis=1)
        cross_total = tl.sum(cross, axis=1)
        if JOINT:
            total += cross_total
            cross_total = total
        if RESIDUAL_WIDTH == BLOCK:
            text_out = kept.to(tl.float32)
        elif RESIDUAL_WIDTH > 0:
            own = (WIDTH - RESIDUAL_WIDTH) + columns % RESIDUAL_WIDTH
            own_places = row[:, None] * WIDTH + own[None, :]
            text_out = tl.load(projections + own_places, mask=is_node[:, None], other=0.0)
            text_out = text_out.to(tl.float32)
        else:
            text_out = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        text_out = _dot(edge / total[:, None], projected, text_out, PRECISE, OPERAND)
        text_out = _dot(cross / cross_total[:, None], values, text_out, PRECISE, OPERAND)
        vectors = columns[:, None] * VECTORS + vector_range[None, :]
        text_terms = _dot(
            tl.maximum(text_out, 0.0), tl.load(text_vectors + vectors), text_terms, PRECISE, OPERAND
        )

        if ACTIVATED:
            # Frame nodes: messages from texts, added to what the video alone gives them.
            if JOINT:
                crossed = projected
            else:
                crossed = tl.load(projections + INNER + places, mask=is_node[:, None], other=0.0)
            base = tl.load(frame_base + frame_places, mask=is_frame[:, None], other=0.0)
            base = base.to(tl.float32)
            asked = tl.load(frame_target + frame_row * HEADS + head)
            back = _leaky(asked[:, None] + tl.load(terms + 3 * HEADS)[None, :], slope)
            back = tl.where(is_node[None, :], back, NEGATIVE)
            summit = tl.max(back, axis=1)
            if JOINT:
                rest = tl.load(frame_normaliser + frame_row * HEADS + head)
                summit = tl.maximum(summit, rest)
            back = tl.exp(back - summit[:, None])
            share = tl.sum(back, axis=1)
            if JOINT:
                rest = tl.exp(rest - summit)
                share += rest
                base = base * (rest / share)[:, None]
            frame_out = _dot(back / share[:, None], crossed, base, PRECISE, OPERAND)
            frame_terms = _dot(
                tl.maximum(frame_out, 0.0), tl.load(frame_vectors + vectors), frame_terms,
                PRECISE, OPERAND,
            )  # fmt: skip

    # Mean over heads and frames of the last layer's edge weights: one number a text node.
    weight = tl.zeros([ROWS], dtype=tl.float32)
    for head in range(0, HEADS):
        mine = _column(text_terms, head, VECTORS)
        if ACTIVATED:
            edge = _leaky(mine[:, None] + _column(frame_terms, head, VECTORS)[None, :], slope)
            weight += tl.sum(tl.where(is_frame[None, :], edge, 0.0), axis=1)
        else:
            weight += mine
    if ACTIVATED:
        weight = weight / tl.maximum(tl.sum(is_frame.to(tl.float32), axis=0), 1.0)
    weight = tl.where(is_node, weight / HEADS, NEGATIVE)
    weight = tl.exp(weight - tl.max(weight, axis=0))
    tl.store(output + row, weight / tl.sum(weight, axis=0), mask=is_node)


@triton.jit(do_not_specialize=["num_texts"])
def enrich(
    text, radius, noise, weights, enriched, query,
    num_texts, epsilon,
    DIM: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Enriched text t + r * sum_i w_i noise_i of one pair (eq. 10), and its LayerNorm."""
    pair = tl.program_id(0).to(tl.int64)
    text_row = pair % num_texts
    columns = tl.arange(0, WIDE)
    inside = columns < DIM
    node = tl.arange(0, ROWS)
    weight = tl.load(weights + pair * NODES + node, mask=node < NODES, other=0.0)
    draw = tl.load(
        noise + node[:, None] * DIM + columns[None, :],
        mask=(node < NODES)[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    shift = tl.sum(weight[:, None] * draw.to(tl.float32), axis=0)
    centre = tl.load(text + text_row * DIM + columns, mask=inside, other=0.0).to(tl.float32)
    spread = tl.load(radius + pair * DIM + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, centre + spread * shift, 0.0)
    tl.store(enriched + pair * DIM + columns, value, mask=inside)
    away = tl.where(inside, value - tl.sum(value, axis=0) / DIM, 0.0)
    normed = away * tl.rsqrt(tl.sum(away * away, axis=0) / DIM + epsilon)
    tl.store(query + pair * DIM + columns, normed, mask=inside)


@triton.jit
def finish(
    attended, moved, bias, scale, offset, enriched, output,
    epsilon,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Cosine of the enriched text and LayerNorm(attended + moved + bias) of one pair."""
    pair = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDE)
    inside = columns < DIM
    places = pair * DIM + columns
    value = tl.load(attended + places, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(moved + places, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + columns, mask=inside, other=0.0)
    away = tl.where(inside, value - tl.sum(value, axis=0) / DIM, 0.0)
    pooled = away * tl.rsqrt(tl.sum(away * away, axis=0) / DIM + epsilon)
    pooled = pooled * tl.load(scale + columns, mask=inside, other=0.0)
    pooled += tl.load(offset + columns, mask=inside, other=0.0)
    text = tl.load(enriched + places, mask=inside, other=0.0).to(tl.float32)
    lengths = tl.sqrt(tl.sum(pooled * pooled, axis=0)) * tl.sqrt(tl.sum(text * text, axis=0))
    tl.store(output + pair, tl.sum(pooled * text, axis=0) / tl.maximum(lengths, 1e-12))


def operand_type() -> tl.dtype:
    """What products take: bfloat16, or float32 holding bfloat16 values under the interpreter.

    Triton's interpreter keeps bfloat16 as raw 16-bit integers and would multiply those.
    """
    return tl.float32 if is_interpreted() else tl.bfloat16


def is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a CUDA device (``TRITON_INTERPRET=1``)."""
    return bool(triton.knobs.runtime.interpret)
