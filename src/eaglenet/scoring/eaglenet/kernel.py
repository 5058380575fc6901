"""Triton kernels for the per-pair part of a two-layer EagleNet.

Candidates t + r * noise_i are never built: (t + r * noise_i) W = t W + r (diag(noise_i) W), a
product of the radius with matrices that depend on the model only. A pair is scored in four steps
around matrix products of the vendor's library:

1. ``radius_offsets``: the difference of the radius from a centre.
2. ``graph_weights``: edges, attention, messages and the collapsed last layer; only one weight per
   text node is written to memory.
3. ``enrich``: the enriched text and its normalised form, which is the query of the pooling; then
   attention over frames and one matrix product.
4. ``finish``: residual, LayerNorm and cosine.

Step 2 also exists in four kernels, for separate relations in half precision: ``source_factors``
and ``row_factors`` normalise attention, ``node_terms`` passes messages and does little besides
products, ``edge_means`` computes the logits of the weights.

Pairs are numbered by video first, so that neighbouring programs share the frames of a video in
cache. No other module of scoring imports Triton. Algebra: ``docs/explanation/fast_scoring.md``.
"""

# Triton compiles these functions from source; they have no types.
# mypy: ignore-errors
# ruff: noqa: N803, PIE808

from __future__ import annotations

import triton
import triton.language as tl

NEGATIVE = tl.constexpr(-1.0e30)
"""Replaces -inf, so that the difference of two of them is finite."""


@triton.jit
def _column(matrix, index, WIDTH: tl.constexpr):
    """Return column ``index`` of a [rows, WIDTH] tile."""
    columns = tl.arange(0, WIDTH)
    return tl.sum(tl.where(columns[None, :] == index, matrix, 0.0), axis=1)


@triton.jit
def _leaky(value, slope):
    return tl.where(value > 0, value, value * slope)


@triton.jit
def _relu(value):
    """ReLU that keeps NaN, which ``tl.maximum`` would otherwise replace by 0."""
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _high(value, OPERAND: tl.constexpr):
    """Round a float32 tile to bfloat16; return it in the operand type of products."""
    return value.to(tl.bfloat16).to(OPERAND)


@triton.jit
def _low(value, OPERAND: tl.constexpr):
    """Return the rounding error of :func:`_high`, itself rounded to bfloat16."""
    value = value.to(tl.float32)
    return _high(value - value.to(tl.bfloat16).to(tl.float32), OPERAND)


@triton.jit
def _dot(left, right, accumulator, PRECISE: tl.constexpr, OPERAND: tl.constexpr):
    """Multiply two tiles in bfloat16; PRECISE: three products that keep 16 bits of float32."""
    left_high = _high(left, OPERAND)
    right_high = _high(right, OPERAND)
    if PRECISE:
        accumulator = tl.dot(_low(left, OPERAND), right_high, accumulator)
        accumulator = tl.dot(left_high, _low(right, OPERAND), accumulator)
    return tl.dot(left_high, right_high, accumulator)


@triton.jit
def _operand(value, PRECISE: tl.constexpr, OPERAND: tl.constexpr):
    """Round the left factor of several products once, unless PRECISE needs its low part."""
    if not PRECISE:
        value = _high(value, OPERAND)
    return value


@triton.jit
def _attention(target, source, is_source, slope):
    """Return exp(leaky(t_i + s_j) - peak_i), and peak_i = max_j leaky(t_i + s_j).

    Entries where ``is_source`` is False are 0. LeakyReLU with a slope from 0 to 1 is monotonic, and
    equals the larger of z and slope * z. So the peak belongs to the largest s_j, and the
    exponential of a sum is a product of exponentials, which are computed per node instead of per
    edge. No factor exceeds 1.
    """
    top = tl.max(tl.where(is_source, source, NEGATIVE), axis=0)
    above = tl.exp(tl.where(is_source, source - top, NEGATIVE))
    below = tl.exp(tl.where(is_source, slope * (source - top), NEGATIVE))
    largest = target + top
    peak = _leaky(largest, slope)
    steep = tl.exp(largest - peak)
    flat = tl.exp(slope * largest - peak)
    edges = tl.maximum(
        steep[:, None] * above[None, :], flat[:, None] * below[None, :],
        propagate_nan=tl.PropagateNan.ALL,
    )  # fmt: skip
    return edges, peak


@triton.jit
def _terms(candidate_terms, base, row, column, is_candidate, WIDTH: tl.constexpr):
    """Load one attention term of every text node."""
    term = tl.load(candidate_terms + row * WIDTH + column, mask=is_candidate, other=0.0)
    return term + tl.load(base + column)


@triton.jit(do_not_specialize=["num_pairs"])
def radius_offsets(
    cosines, weight, bias, centre, offsets, offset_squares, radius_squares,
    num_pairs,
    DIM: tl.constexpr, WIDE: tl.constexpr, FRAMES: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Compute radii exp(s W + b) minus the centre, and the squared lengths of both."""
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    is_pair = pair < num_pairs
    columns = tl.arange(0, WIDE)
    inside = columns < DIM
    logs = tl.zeros([PAIRS, WIDE], dtype=tl.float32)
    logs += tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    for frame in range(0, FRAMES):
        cosine = tl.load(cosines + pair * FRAMES + frame, mask=is_pair, other=0.0)
        row = tl.load(weight + frame * DIM + columns, mask=inside, other=0.0)
        logs += cosine[:, None] * row[None, :]
    radius = tl.where(inside[None, :], tl.exp(logs), 0.0)
    offset = radius - tl.load(centre + columns, mask=inside, other=0.0)[None, :]
    positions = pair[:, None] * DIM + columns[None, :]
    tl.store(offsets + positions, offset, mask=is_pair[:, None] & inside[None, :])
    tl.store(offset_squares + pair, tl.sum(offset * offset, axis=1), mask=is_pair)
    tl.store(radius_squares + pair, tl.sum(radius * radius, axis=1), mask=is_pair)


@triton.jit(do_not_specialize=["num_texts"])
def graph_weights(
    projections, scores, text_base, text_messages, text_scores,
    frame_values, frame_base, frame_source, frame_target, frame_normaliser, frame_mask,
    text_vectors, frame_vectors,
    output,
    num_texts, slope,
    WIDTH: tl.constexpr, INNER: tl.constexpr, HEAD: tl.constexpr, HEADS: tl.constexpr,
    NODES: tl.constexpr, FRAMES: tl.constexpr, ROWS: tl.constexpr, FRAME_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, FRAME_TILE: tl.constexpr, FRAME_BLOCK: tl.constexpr,
    SCORES: tl.constexpr, VECTORS: tl.constexpr,
    RESIDUAL_WIDTH: tl.constexpr, JOINT: tl.constexpr, ACTIVATED: tl.constexpr,
    PRECISE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Compute the softmax weights of the text nodes of one pair (eqs. 5-9).

    projections: contribution of the noise of every candidate to the text-text messages, then
        (ACTIVATED, not JOINT) to the text-frame messages, then to the residual.
    scores: contribution of the noise to the attention terms.
    text_base, text_messages: contribution of the text itself to messages and residual, and to
        messages to frames. It is equal in all nodes of the text, and attention weights sum to 1, so
        it is added after attention.
    JOINT: one relation for all edges (GAT), with one softmax over texts and frames.
    ACTIVATED: edge weights are read after LeakyReLU, so that frames matter.
    RESIDUAL_WIDTH: 0 without a residual, HEAD if all heads share it, else INNER.
    """
    pair = tl.program_id(0).to(tl.int64)
    video = pair // num_texts
    node = tl.arange(0, ROWS)
    is_node = node < NODES
    is_candidate = is_node & (node > 0)  # Node 0 is the text itself, without noise.
    # 32-bit offsets are enough inside a pair; 64-bit offsets would need more registers.
    row = tl.where(is_candidate, node - 1, 0)
    projections += pair * ((NODES - 1) * WIDTH)
    scores += pair * ((NODES - 1) * SCORES)
    text_row = pair % num_texts
    text_base += text_row * INNER
    text_messages += text_row * INNER
    text_scores += text_row * SCORES
    frame = tl.arange(0, FRAME_ROWS)
    frame_row = tl.where(frame < FRAMES, frame, 0)
    frame_mask += video * FRAMES
    frame_values += video * (FRAMES * INNER)
    frame_base += video * (FRAMES * INNER)
    frame_source += video * (FRAMES * HEADS)
    frame_target += video * (FRAMES * HEADS)
    frame_normaliser += video * (FRAMES * HEADS)
    is_frame = (frame < FRAMES) & (tl.load(frame_mask + frame_row) != 0)

    # Text nodes: residual, and messages from texts and from frames.
    vector_range = tl.arange(0, VECTORS)
    text_terms = tl.zeros([ROWS, VECTORS], dtype=tl.float32)
    for head in range(0, HEADS):
        target = _terms(scores, text_scores, row, head, is_candidate, SCORES)
        source = _terms(scores, text_scores, row, HEADS + head, is_candidate, SCORES)
        text_target_term = _terms(scores, text_scores, row, 2 * HEADS + head, is_candidate, SCORES)
        frame_source_term = tl.load(frame_source + frame_row * HEADS + head)
        edge, peak = _attention(target, source, is_node, slope)
        cross, cross_peak = _attention(text_target_term, frame_source_term, is_frame, slope)
        total = tl.sum(edge, axis=1)
        cross_total = tl.sum(cross, axis=1)
        if JOINT:
            summit = tl.maximum(peak, cross_peak)
            edge_scale = tl.exp(peak - summit)
            cross_scale = tl.exp(cross_peak - summit)
            joint = total * edge_scale + cross_total * cross_scale
            text_part = (total * edge_scale / joint)[:, None]
            edge *= (edge_scale / joint)[:, None]
            cross *= (cross_scale / joint)[:, None]
        else:
            edge *= (1.0 / total)[:, None]
            # A video may have no real frame.
            cross *= (1.0 / tl.where(cross_total == 0, 1.0, cross_total))[:, None]
        edge = _operand(edge, PRECISE, OPERAND)
        cross = _operand(cross, PRECISE, OPERAND)
        for block in range(0, HEAD, BLOCK):
            columns = head * HEAD + block + tl.arange(0, BLOCK)
            positions = row[:, None] * WIDTH + columns[None, :]
            frame_positions = frame_row[:, None] * INNER + columns[None, :]
            text_projection = tl.load(
                projections + positions, mask=is_candidate[:, None], other=0.0
            )
            values = tl.load(frame_values + frame_positions)
            base = tl.load(text_base + columns)[None, :]
            if JOINT:
                base = base * text_part
            if RESIDUAL_WIDTH > 0:
                residual_columns = (WIDTH - RESIDUAL_WIDTH) + columns % RESIDUAL_WIDTH
                residual_positions = row[:, None] * WIDTH + residual_columns[None, :]
                residual = tl.load(
                    projections + residual_positions, mask=is_candidate[:, None], other=0.0
                )
                base = base + residual.to(tl.float32)
            # ``base`` is added last: as an accumulator it would change its layout in float32.
            text_out = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
            text_out = _dot(edge, text_projection, text_out, PRECISE, OPERAND)
            text_out = _dot(cross, values, text_out, PRECISE, OPERAND)
            vectors = tl.load(text_vectors + columns[:, None] * VECTORS + vector_range[None, :])
            text_terms = _dot(_relu(text_out + base), vectors, text_terms, PRECISE, OPERAND)

    # Mean over heads and frames of the edge weights of the last layer, per text node.
    weight = tl.zeros([ROWS], dtype=tl.float32)
    if ACTIVATED:
        # Frame nodes in tiles: messages from texts, added to the prepared messages of frames.
        for first in range(0, FRAME_ROWS, FRAME_TILE):
            frame_index = first + tl.arange(0, FRAME_TILE)
            tile_row = tl.where(frame_index < FRAMES, frame_index, 0)
            is_tile_frame = (frame_index < FRAMES) & (tl.load(frame_mask + tile_row) != 0)
            frame_terms = tl.zeros([FRAME_TILE, VECTORS], dtype=tl.float32)
            for head in range(0, HEADS):
                target = tl.load(frame_target + tile_row * HEADS + head)
                source = _terms(scores, text_scores, row, 3 * HEADS + head, is_candidate, SCORES)
                back, peak = _attention(target, source, is_node, slope)
                total = tl.sum(back, axis=1)
                if JOINT:
                    normaliser = tl.load(frame_normaliser + tile_row * HEADS + head)
                    summit = tl.maximum(peak, normaliser)
                    back_scale = tl.exp(peak - summit)
                    normaliser = tl.exp(normaliser - summit)
                    joint = total * back_scale + normaliser
                    base_part = (normaliser / joint)[:, None]
                    text_message_part = (total * back_scale / joint)[:, None]
                    back *= (back_scale / joint)[:, None]
                else:
                    back *= (1.0 / total)[:, None]
                back = _operand(back, PRECISE, OPERAND)
                for block in range(0, HEAD, FRAME_BLOCK):
                    columns = head * HEAD + block + tl.arange(0, FRAME_BLOCK)
                    positions = row[:, None] * WIDTH + columns[None, :]
                    if not JOINT:
                        positions += INNER
                    text_values = tl.load(
                        projections + positions, mask=is_candidate[:, None], other=0.0
                    )
                    base = tl.load(frame_base + tile_row[:, None] * INNER + columns[None, :])
                    base = base.to(tl.float32)
                    text_message = tl.load(text_messages + columns)[None, :]
                    if JOINT:
                        base = base * base_part
                        text_message = text_message * text_message_part
                    frame_out = tl.zeros([FRAME_TILE, FRAME_BLOCK], dtype=tl.float32)
                    frame_out = _dot(back, text_values, frame_out, PRECISE, OPERAND)
                    vectors = columns[:, None] * VECTORS + vector_range[None, :]
                    frame_terms = _dot(
                        _relu(frame_out + (base + text_message)), tl.load(frame_vectors + vectors),
                        frame_terms, PRECISE, OPERAND,
                    )  # fmt: skip
            for head in range(0, HEADS):
                frame_term = _column(frame_terms, head, VECTORS)
                edge = _leaky(
                    _column(text_terms, head, VECTORS)[:, None] + frame_term[None, :], slope
                )
                weight += tl.sum(tl.where(is_tile_frame[None, :], edge, 0.0), axis=1)
    else:
        for head in range(0, HEADS):
            weight += _column(text_terms, head, VECTORS)
    if ACTIVATED:
        weight = weight / tl.maximum(tl.sum(is_frame.to(tl.float32), axis=0), 1.0)
    weight = tl.where(is_node, weight / HEADS, NEGATIVE)
    weight = tl.exp(weight - tl.max(weight, axis=0))
    tl.store(output + pair * NODES + node, weight / tl.sum(weight, axis=0), mask=is_node)


@triton.jit
def _edges(steep, flat, above, below):
    """Return the larger of two outer products: exp(leaky(t_i + s_j)) up to a factor per row."""
    return tl.maximum(
        steep[:, None] * above[None, :], flat[:, None] * below[None, :],
        propagate_nan=tl.PropagateNan.ALL,
    )  # fmt: skip


@triton.jit
def _relu_operand(value, OPERAND: tl.constexpr):
    """Return ReLU rounded to bfloat16, in one instruction for two numbers; NaN stays NaN."""
    if tl.bfloat16 == OPERAND:
        value = tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [value],
            dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        value = _high(_relu(value), OPERAND)
    return value


@triton.jit(do_not_specialize=["num_rows"])
def source_factors(
    terms, above, below, tops,
    num_rows, slope,
    SCORES: tl.constexpr, COLUMN: tl.constexpr, NODES: tl.constexpr, HEADS: tl.constexpr,
    TERMS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute exp(s_j - top) and exp(slope (s_j - top)) of all text nodes, with their pair's top.

    Rows are text nodes of pairs; heads are the last axis, padded to TERMS.
    """
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    head = tl.arange(0, TERMS)
    inside = (row < num_rows)[:, None] & (head < HEADS)[None, :]
    row = tl.minimum(row, num_rows - 1)  # Loads need no mask: columns beyond the heads exist, too.
    column = COLUMN + head
    pair = row // NODES
    sources = terms + (pair * (NODES * SCORES))[:, None] + column[None, :]
    top = tl.load(sources)
    for node in range(1, NODES):
        top = tl.maximum(top, tl.load(sources + node * SCORES))
    source = tl.load(terms + row[:, None] * SCORES + column[None, :])
    positions = row[:, None] * TERMS + head[None, :]
    tl.store(above + positions, tl.exp(source - top), mask=inside)
    tl.store(below + positions, tl.exp(slope * (source - top)), mask=inside)
    is_first = inside & (row % NODES == 0)[:, None]
    tl.store(tops + pair[:, None] * TERMS + head[None, :], top, mask=is_first)


@triton.jit(do_not_specialize=["num_rows", "num_texts"])
def row_factors(
    targets, tops, above, below, steep, flat,
    num_rows, num_texts, slope,
    STRIDE: tl.constexpr, COLUMN: tl.constexpr, ROWS_PER_PAIR: tl.constexpr, COUNT: tl.constexpr,
    OF_FRAMES: tl.constexpr, FROM_FRAMES: tl.constexpr, HEADS: tl.constexpr, TERMS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Compute factors of rows so that the :func:`_edges` of a row sum to 1.

    OF_FRAMES: rows are frames of pairs, and the target is a term of the video. Otherwise they are
    text nodes of pairs. FROM_FRAMES: the COUNT sources are frames of the video, not text nodes.
    """
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    head = tl.arange(0, TERMS)
    inside = (row < num_rows)[:, None] & (head < HEADS)[None, :]
    row = tl.minimum(row, num_rows - 1)
    pair = row // ROWS_PER_PAIR
    video = pair // num_texts
    target_row = row
    if OF_FRAMES:
        target_row = video * ROWS_PER_PAIR + row % ROWS_PER_PAIR
    group = pair
    if FROM_FRAMES:
        group = video
    column = COLUMN + head
    largest = tl.load(targets + target_row[:, None] * STRIDE + column[None, :])
    largest += tl.load(tops + group[:, None] * TERMS + head[None, :])
    peak = _leaky(largest, slope)
    up = tl.exp(largest - peak)
    down = tl.exp(slope * largest - peak)
    sources = (group * (COUNT * TERMS))[:, None] + head[None, :]
    total = tl.zeros([LANES, TERMS], dtype=tl.float32)
    for source in tl.range(0, COUNT, loop_unroll_factor=8):
        total += tl.maximum(
            up * tl.load(above + sources + source * TERMS),
            down * tl.load(below + sources + source * TERMS),
            propagate_nan=tl.PropagateNan.ALL,
        )
    scale = 1.0 / tl.where(total == 0, 1.0, total)  # A video may have no real frame.
    positions = row[:, None] * TERMS + head[None, :]
    tl.store(steep + positions, up * scale, mask=inside)
    tl.store(flat + positions, down * scale, mask=inside)


@triton.jit(do_not_specialize=["num_texts", "num_pairs"])
def node_terms(
    projections, factors, frame_factors, frame_above, frame_below, frame_values, frame_base,
    text_vectors, frame_vectors,
    text_terms, frame_terms,
    num_texts, num_pairs,
    WIDTH: tl.constexpr, INNER: tl.constexpr, HEAD: tl.constexpr, HEADS: tl.constexpr,
    NODES: tl.constexpr, FRAMES: tl.constexpr, ROWS: tl.constexpr, FRAME_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FRAME_TILE: tl.constexpr, FRAME_BLOCK: tl.constexpr, VECTORS: tl.constexpr,
    TERMS: tl.constexpr, RESIDUAL_WIDTH: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Compute the terms of text and frame nodes in the last layer, for one pair.

    A program does little besides products: edges are normalised before they are built
    (``factors``, from :func:`source_factors` and :func:`row_factors`), what is added to messages
    goes through the matrix unit too, and ReLU is part of rounding.

    projections: as for :func:`graph_weights`, with a row for the text itself: the part of messages
        to texts (with the residual) and to frames that all nodes share, and 0 as its residual. Its
        edges have the weight 1, because the weights that it stands for sum to 1.
    """
    pair = tl.program_id(0).to(tl.int64)
    video = pair // num_texts
    plane = num_pairs.to(tl.int64) * (NODES * TERMS)
    frame_plane = num_pairs.to(tl.int64) * (FRAMES * TERMS)
    projections += pair * (NODES * WIDTH)
    factors += pair * (NODES * TERMS)
    frame_factors += pair * (FRAMES * TERMS)
    text_terms += pair * (NODES * TERMS)
    frame_terms += pair * (FRAMES * TERMS)
    frame_above += video * (FRAMES * TERMS)
    frame_below += video * (FRAMES * TERMS)
    frame_values += video * (FRAMES * INNER)
    frame_base += video * (FRAMES * INNER)
    vector = tl.arange(0, VECTORS)

    # Text nodes: messages from texts and from frames, and the residual.
    row = tl.arange(0, ROWS)
    is_row = row < NODES
    row_or_0 = tl.where(is_row, row, 0)
    frame = tl.arange(0, FRAME_ROWS)
    is_frame = frame < FRAMES
    frame_or_0 = tl.where(is_frame, frame, 0)
    identity = (row[:, None] == row[None, :]).to(tl.float32).to(OPERAND)
    terms = tl.zeros([ROWS, VECTORS], dtype=tl.float32)
    for head in range(0, HEADS):
        lane = factors + row_or_0 * TERMS + head
        frame_lane = frame_or_0 * TERMS + head
        edge = _edges(
            tl.load(lane, mask=is_row, other=0.0),
            tl.load(lane + plane, mask=is_row, other=0.0),
            tl.load(lane + 2 * plane, mask=is_row, other=0.0),
            tl.load(lane + 3 * plane, mask=is_row, other=0.0),
        )
        edge = tl.where((row == 0)[None, :], 1.0, edge)
        edge = _high(edge, OPERAND)
        cross = _edges(
            tl.load(lane + 4 * plane, mask=is_row, other=0.0),
            tl.load(lane + 5 * plane, mask=is_row, other=0.0),
            tl.load(frame_above + frame_lane, mask=is_frame, other=0.0),
            tl.load(frame_below + frame_lane, mask=is_frame, other=0.0),
        )
        cross = _high(cross, OPERAND)
        for block in range(0, HEAD, BLOCK):
            columns = head * HEAD + block + tl.arange(0, BLOCK)
            residual_columns = (WIDTH - RESIDUAL_WIDTH) + columns % RESIDUAL_WIDTH
            messages = tl.load(
                projections + row_or_0[:, None] * WIDTH + columns[None, :],
                mask=is_row[:, None], other=0.0,
            )  # fmt: skip
            values = tl.load(frame_values + frame_or_0[:, None] * INNER + columns[None, :])
            residual = tl.load(
                projections + row_or_0[:, None] * WIDTH + residual_columns[None, :],
                mask=is_row[:, None], other=0.0,
            )  # fmt: skip
            vectors = tl.load(text_vectors + columns[:, None] * VECTORS + vector[None, :])
            output = tl.dot(edge, messages.to(OPERAND))
            output = tl.dot(cross, values.to(OPERAND), output)
            output = tl.dot(identity, residual.to(OPERAND), output)
            terms = tl.dot(_relu_operand(output, OPERAND), vectors.to(OPERAND), terms)
    tl.store(
        text_terms + row[:, None] * TERMS + vector[None, :], terms,
        mask=is_row[:, None] & (vector < HEADS)[None, :],
    )  # fmt: skip

    # Frame nodes in tiles: messages from texts, added to the prepared messages of frames.
    tile_frame = tl.arange(0, FRAME_TILE)
    tile_identity = (tile_frame[:, None] == tile_frame[None, :]).to(tl.float32).to(OPERAND)
    for begin in range(0, FRAME_ROWS, FRAME_TILE):
        tile = begin + tile_frame
        tile_or_0 = tl.where(tile < FRAMES, tile, 0)
        tile_terms = tl.zeros([FRAME_TILE, VECTORS], dtype=tl.float32)
        for head in range(0, HEADS):
            lane = factors + 6 * plane + row_or_0 * TERMS + head
            tile_lane = frame_factors + tile_or_0 * TERMS + head
            back = _edges(
                tl.load(tile_lane),
                tl.load(tile_lane + frame_plane),
                tl.load(lane, mask=is_row, other=0.0),
                tl.load(lane + plane, mask=is_row, other=0.0),
            )
            back = _high(tl.where((row == 0)[None, :], 1.0, back), OPERAND)
            for block in range(0, HEAD, FRAME_BLOCK):
                columns = head * HEAD + block + tl.arange(0, FRAME_BLOCK)
                messages = tl.load(
                    projections + row_or_0[:, None] * WIDTH + (INNER + columns)[None, :],
                    mask=is_row[:, None], other=0.0,
                )  # fmt: skip
                base = tl.load(frame_base + tile_or_0[:, None] * INNER + columns[None, :])
                vectors = tl.load(frame_vectors + columns[:, None] * VECTORS + vector[None, :])
                output = tl.dot(back, messages.to(OPERAND))
                output = tl.dot(tile_identity, base.to(OPERAND), output)
                tile_terms = tl.dot(_relu_operand(output, OPERAND), vectors.to(OPERAND), tile_terms)
        tl.store(
            frame_terms + tile[:, None] * TERMS + vector[None, :], tile_terms,
            mask=(tile < FRAMES)[:, None] & (vector < HEADS)[None, :],
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "num_texts"])
def edge_means(
    text_terms, frame_terms, frame_mask, output,
    num_rows, num_texts, slope,
    NODES: tl.constexpr, FRAMES: tl.constexpr, HEADS: tl.constexpr, TERMS: tl.constexpr,
    MASKED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute the mean over heads and real frames of leaky(t_i + f_j), up to a number per pair.

    leaky(z) = (1 + slope) / 2 z + (1 - slope) / 2 |z|, and the sum of f_j is the same for all nodes
    of a pair, so that a softmax does not depend on it.
    """
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_row = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    head = tl.arange(0, TERMS)
    pair = row // NODES
    video = pair // num_texts
    term = tl.load(text_terms + row[:, None] * TERMS + head[None, :])
    others = frame_terms + (pair * (FRAMES * TERMS))[:, None] + head[None, :]
    total = tl.zeros([LANES, TERMS], dtype=tl.float32)
    count = tl.zeros([LANES], dtype=tl.float32)
    for frame in tl.range(0, FRAMES, loop_unroll_factor=8):
        distance = tl.abs(term + tl.load(others + frame * TERMS))
        if MASKED:
            is_real = tl.load(frame_mask + video * FRAMES + frame) != 0
            distance = tl.where(is_real[:, None], distance, 0.0)
            count += is_real.to(tl.float32)
        total += distance
    if MASKED:
        term = tl.where((count > 0)[:, None], term, 0.0)
        mean = total / tl.maximum(count, 1.0)[:, None]
    else:
        mean = total / FRAMES
    weight = 0.5 * (1.0 + slope) * term + 0.5 * (1.0 - slope) * mean
    weight = tl.sum(tl.where((head < HEADS)[None, :], weight, 0.0), axis=1) / HEADS
    tl.store(output + row, weight, mask=is_row)


@triton.jit(do_not_specialize=["num_texts", "num_pairs"])
def enrich(
    text, offsets, centre, noise, weights, enriched_texts, query,
    num_texts, num_pairs, epsilon,
    DIM: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr,
    PAIRS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Compute enriched texts t + r * sum_i w_i noise_i (eq. 10), and their LayerNorm.

    The pairs of a program share the loaded noise. The product keeps 16 bits of both factors.
    """
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    is_pair = pair < num_pairs
    columns = tl.arange(0, WIDE)
    inside = is_pair[:, None] & (columns < DIM)[None, :]
    node = tl.arange(0, ROWS)
    is_node = node < NODES
    weight = tl.load(
        weights + pair[:, None] * NODES + node[None, :],
        mask=is_pair[:, None] & is_node[None, :], other=0.0,
    )  # fmt: skip
    noise_tile = tl.load(
        noise + node[:, None] * DIM + columns[None, :],
        mask=is_node[:, None] & (columns < DIM)[None, :], other=0.0,
    )  # fmt: skip
    shift = tl.zeros([PAIRS, WIDE], dtype=tl.float32)
    shift = _dot(weight, noise_tile, shift, True, OPERAND)
    positions = pair[:, None] * DIM + columns[None, :]
    text_positions = (pair % num_texts)[:, None] * DIM + columns[None, :]
    radius = tl.load(offsets + positions, mask=inside, other=0.0).to(tl.float32)
    radius += tl.load(centre + columns, mask=columns < DIM, other=0.0)[None, :]
    text_value = tl.load(text + text_positions, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, text_value + radius * shift, 0.0)
    tl.store(enriched_texts + positions, value, mask=inside)
    deviation = tl.where(inside, value - (tl.sum(value, axis=1) / DIM)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(deviation * deviation, axis=1) / DIM + epsilon)
    tl.store(query + positions, deviation * scale[:, None], mask=inside)


@triton.jit
def finish(
    attention_output, product, bias, scale, offset, enriched_texts, output,
    epsilon,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute the cosine of a text and LayerNorm(attention_output + product + bias)."""
    pair = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDE)
    inside = columns < DIM
    positions = pair * DIM + columns
    value = tl.load(attention_output + positions, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(product + positions, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + columns, mask=inside, other=0.0)
    deviation = tl.where(inside, value - tl.sum(value, axis=0) / DIM, 0.0)
    pooled_video = deviation * tl.rsqrt(tl.sum(deviation * deviation, axis=0) / DIM + epsilon)
    pooled_video = pooled_video * tl.load(scale + columns, mask=inside, other=0.0)
    pooled_video += tl.load(offset + columns, mask=inside, other=0.0)
    text = tl.load(enriched_texts + positions, mask=inside, other=0.0).to(tl.float32)
    lengths = tl.sqrt(tl.sum(pooled_video * pooled_video, axis=0)) * tl.sqrt(
        tl.sum(text * text, axis=0)
    )
    tl.store(output + pair, tl.sum(pooled_video * text, axis=0) / tl.maximum(lengths, 1e-12))


def operand_type() -> tl.dtype:
    """Return the operand type: bfloat16, or float32 with bfloat16 values in the interpreter.

    The interpreter of Triton stores bfloat16 as 16-bit integers and would multiply those.
    """
    return tl.float32 if is_interpreted() else tl.bfloat16


def is_interpreted() -> bool:
    """Return whether Triton interprets kernels instead of compiling (``TRITON_INTERPRET=1``)."""
    return bool(triton.knobs.runtime.interpret)
