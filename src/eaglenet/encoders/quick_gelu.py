"""QuickGELU at the end of the product before it, on Hopper GPUs, and where it may be taken.

cuBLAS applies no QuickGELU, so the widest tensor of a block of CLIP is written, read and written
again, by torch.compile too. With the activation inside the product it is written once: CLIP B/32
encodes 3 to 4% more frames a second on an H200 (768 frames at a time). Triton is imported by the
first call, for nothing else may pay for it.
"""

from __future__ import annotations

import importlib.util
import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglenet.core.types import quick_gelu

logger = logging.getLogger(__name__)
LEAST_ROWS = 16384
"""With fewer, starting the kernel takes longer than it saves: 96 frames of CLIP B/32 (4,800 rows)
took 3.1 instead of 2.2 ms on an H200; layers of 10,000 rows are 10% faster with it."""
CAPABILITY = (9, 0)
"""Hopper's: the kernel was tuned there, and older devices do not have its copy engine."""
HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
"""Asked here, since torch.compile cannot. AMD's devices also have a "capability" of (9, 0)."""
STEP = 8
"""Numbers of 16 bytes together: the copy engine wants every row to start at a multiple of them."""


@torch.library.custom_op(
    "eaglenet::quick_gelu_product",
    mutates_args=(),
    schema="(Tensor rows, Tensor weight, Tensor bias) -> Tensor",
)
def quick_gelu_product(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """quick_gelu(rows weight^T + bias) of bfloat16 tensors, rounded once.

    An operation of its own, so that torch.compile takes it as it is and does not look inside.
    Triton wants a C compiler and a folder to write to; where it fails, it is not asked again.
    """
    global HAS_TRITON
    if HAS_TRITON:
        output = rows.new_empty(len(rows), len(weight))
        try:
            from eaglenet.encoders.quick_gelu_kernel import launch

            with torch.cuda.device_of(rows):
                launch(_aligned(rows), _aligned(weight), bias.contiguous(), output)
            return output
        except Exception as error:
            HAS_TRITON = False
            logger.warning("CLIP's towers do without our kernel, a little slower: %s", error)
    # A compiled tower calls this whatever was found out after it was compiled.
    return quick_gelu(F.linear(rows, weight, bias))


@quick_gelu_product.register_fake
def _shape(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0])


def _aligned(matrix: Tensor) -> Tensor:
    matrix = matrix.contiguous()
    return matrix.clone() if matrix.data_ptr() % (STEP * matrix.element_size()) else matrix


def is_applicable(tokens: Tensor, layer: nn.Linear) -> bool:
    """Whether ``quick_gelu_product`` may stand for ``layer`` and QuickGELU, and pays.

    There are no gradients through it: whether they are wanted is for the caller to ask.
    """
    return (
        tokens.is_cuda
        and not torch.is_autocast_enabled("cuda")
        and tokens.dtype == layer.weight.dtype == layer.bias.dtype == torch.bfloat16
        and tokens.numel() >= LEAST_ROWS * tokens.shape[-1]
        and (layer.in_features % STEP, layer.out_features % STEP) == (0, 0)
        and has_kernel(tokens.device)
    )


def has_kernel(device: torch.device) -> bool:
    """Whether the kernel runs on this CUDA device; torch.compile takes the answer as a constant."""
    properties = torch.cuda.get_device_properties(device)
    return HAS_TRITON and (properties.major, properties.minor) == CAPABILITY
