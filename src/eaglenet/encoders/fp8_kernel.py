"""Triton kernel of :mod:`eaglenet.encoders.fp8_gradients`: rounds a matrix to fp8 in two layouts.

GPUs multiply fp8 matrices only along contiguous numbers, and a backward pass multiplies a gradient
along its columns and along its rows. The kernel reads it once, writes both, and adds up its rows
for the bias. A gradient of activated values is first multiplied by the slope of QuickGELU, which
otherwise takes a pass over the widest matrix of a block.
"""

# Triton compiles these functions as another language, without types.
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from eaglenet.core.types import SLOPE


@triton.jit
@no_type_check  # Triton reads the source, which the shape checker of the tests would wrap.
def _round(
    values, inputs, scale, output_scale, rows8, columns8, outputs8, sums, num_rows, width,
    SLOPE: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_INPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Round a tile: HAS_ROWS writes both layouts and the sums, else only the columns.

    Conversions to fp8 clip to its largest number.
    """
    tile = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1).to(tl.int64) * TILE_WIDTH
    row, column = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_WIDTH)
    is_row, is_column = row < num_rows - tile * TILE_ROWS, column < width - across
    # Offsets within a tile fit 32 bits, which are faster.
    start = tile * TILE_ROWS * width + across
    places = row[:, None] * width + column[None, :]
    turned_start = across * num_rows + tile * TILE_ROWS
    turned = column[:, None] * num_rows + row[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    is_turned_inside = is_column[:, None] & is_row[None, :]
    value = tl.load(values + start + places, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_INPUTS:
        entry = tl.load(inputs + start + places, mask=is_inside, other=0.0).to(tl.float32)
        gate = tl.sigmoid(SLOPE * entry)
        output = entry * gate
        value = value * (gate + SLOPE * output * (1.0 - gate))
        output = (output * (1.0 / tl.load(output_scale))).to(outputs8.dtype.element_ty)
        tl.store(outputs8 + turned_start + turned, tl.trans(output), mask=is_turned_inside)
    if HAS_ROWS:
        tl.store(sums + tile * width + across + column, tl.sum(value, axis=0), mask=is_column)
    value = (value * (1.0 / tl.load(scale))).to(columns8.dtype.element_ty)
    if HAS_ROWS:
        tl.store(rows8 + start + places, value, mask=is_inside)
    tl.store(columns8 + turned_start + turned, tl.trans(value), mask=is_turned_inside)


TILE = (128, 64)
"""Rows and columns of a program: the fastest of several shapes on an H200, with 4 warps."""
GATED_TILE = (32, 128)
"""The same with inputs."""


def launch(
    values: Tensor,
    scale: Tensor,
    columns: Tensor,
    rows: Tensor | None = None,
    inputs: Tensor | None = None,
    output_scale: Tensor | None = None,
    outputs: Tensor | None = None,
) -> Tensor:
    """Fill ``columns [width, rows]``, ``rows`` and ``outputs``; return the sums of rows in fp32.

    All tensors are contiguous. The sums [width] mean nothing without ``rows``.
    """
    num_rows, width = values.shape
    tile_rows, tile_width = TILE if inputs is None else GATED_TILE
    tiles = triton.cdiv(num_rows, tile_rows)
    sums = values.new_empty((tiles, width) if rows is not None else (1, 1), dtype=torch.float32)
    _round[(tiles, triton.cdiv(width, tile_width))](
        values,
        values if inputs is None else inputs,
        scale,
        scale if output_scale is None else output_scale,
        columns if rows is None else rows,
        columns,
        columns if outputs is None else outputs,
        sums,
        num_rows,
        width,
        SLOPE=SLOPE,
        HAS_ROWS=rows is not None,
        HAS_INPUTS=inputs is not None,
        TILE_ROWS=tile_rows,
        TILE_WIDTH=tile_width,
        num_warps=4,
    )
    return sums.sum(0)
