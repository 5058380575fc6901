"""Triton kernel of ``quick_gelu_product``. No other module of the encoders imports Triton.

Each multiprocessor runs one program, which computes tiles of the output one after the other, so the
end of a tile (bias, activation, writing) overlaps with the loads of the next one. Hopper's copy
engine (TMA) copies tiles; it reads values outside a matrix as 0 and does not write them.
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
from triton.tools.tensor_descriptor import TensorDescriptor

from eaglenet.core.types import SLOPE

TILE = (128, 256, 64)
"""Rows and columns of a tile, and inputs per step: the fastest of several shapes on an H200, with 8
warps and 3 stages."""
GROUP = 8
"""Tiles of a column computed before those of the next column; they share weights in cache."""


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check  # Triton reads the source, which the shape checker of the tests would wrap.
def _activated_product(
    rows, weight, output, bias, num_rows, width, inner,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK_INNER: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, SLOPE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Compute x sigmoid(SLOPE x) of x = rows weight^T + bias; matrices are descriptors."""
    tiles_down = tl.cdiv(num_rows, BLOCK_ROWS)
    tiles_across = tl.cdiv(width, BLOCK_WIDTH)
    steps = tl.cdiv(inner, BLOCK_INNER)
    in_group = GROUP * tiles_across
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, PROGRAMS, flatten=True):
        first = tile // in_group * GROUP
        height = min(tiles_down - first, GROUP)
        row = (first + tile % in_group % height) * BLOCK_ROWS
        column = tile % in_group // height * BLOCK_WIDTH
        value = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
        for step in range(steps):
            inputs = rows.load([row, step * BLOCK_INNER]).to(OPERAND)
            weights = weight.load([column, step * BLOCK_INNER]).to(OPERAND)
            value = tl.dot(inputs, weights.T, value)
        columns = column + tl.arange(0, BLOCK_WIDTH)
        offsets = tl.load(bias + columns, mask=columns < width, other=0.0)
        value += offsets.to(tl.float32)[None, :]
        output.store([row, column], (value * tl.sigmoid(SLOPE * value)).to(tl.bfloat16))


def launch(rows: Tensor, weight: Tensor, bias: Tensor, output: Tensor) -> None:
    """Fill ``output [rows, width]``: bfloat16, contiguous, rows at multiples of 16 bytes."""
    is_interpreted = bool(triton.knobs.runtime.interpret)
    block_rows, block_width, block_inner = TILE
    programs = 2  # In the interpreter: a program has several tiles in tests.
    if rows.is_cuda:
        programs = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _activated_product[(programs,)](
        TensorDescriptor.from_tensor(rows, [block_rows, block_inner]),
        TensorDescriptor.from_tensor(weight, [block_width, block_inner]),
        TensorDescriptor.from_tensor(output, [block_rows, block_width]),
        bias,
        *output.shape,
        rows.shape[1],
        *TILE,
        GROUP,
        programs,
        SLOPE,
        # The interpreter stores bfloat16 as raw integers and would multiply those.
        tl.float32 if is_interpreted else tl.bfloat16,
        num_warps=8,
        num_stages=3,
    )
