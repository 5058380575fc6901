"""Compares the product fused with QuickGELU with the plain layers on a Hopper GPU.

A script, since the tests run Triton's interpreter in their process:
``PYTHONPATH=src python tests/encoders/quick_gelu_on_device.py`` needs only torch and triton. It
prints JSON, and exits with 1 if there are entries under "failures".
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from eaglenet.core.types import quick_gelu
from eaglenet.encoders import blocks as quick_gelu_product
from eaglenet.encoders import quick_gelu_kernel
from eaglenet.encoders.blocks import FeedForward
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES

PRODUCTS = {
    "CLIP B/32, 768 frames": (38400, 768, 3072),
    "CLIP L/14, 32 frames": (8224, 1024, 4096),
    "text tower": (4928, 512, 2048),
    "fewest rows": (16384, 768, 3072),
    "tails in all directions": (5001, 520, 1000),
    "less than a tile": (100, 40, 72),
    "one row": (1, 768, 3072),
}
"""Rows, inputs, outputs."""
FRAMES = 384
"""4,800 tokens of B/32; its last block has 96 and does without."""
ERROR = 3e-3
"""Relative, of a product; rounding to bf16 alone is 1.7e-3."""
LAYER_ERROR = 1e-2
COSINE = 0.999


@contextmanager
def record_launches() -> Iterator[list[int]]:
    """Record the rows of each launch of the kernel."""
    launches: list[int] = []
    launch = quick_gelu_kernel.launch

    def counting(rows: Tensor, *others: Tensor) -> None:
        launches.append(len(rows))
        launch(rows, *others)

    with patch.object(quick_gelu_kernel, "launch", counting):
        yield launches


def without() -> Any:
    return patch.object(quick_gelu_product, "HAS_TRITON", False)


def relative(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact.double()).norm() / exact.double().norm())


def microseconds(function: Callable[[], Any], calls: int = 50) -> float:
    """Return the microseconds of a call, with many calls queued."""
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return round(1e6 * statistics.median(seconds[1:]) / calls, 1)


def compare_product(rows: int, inner: int, width: int) -> dict[str, float]:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    inputs, bias = draw(rows, inner).bfloat16(), draw(width).bfloat16()
    weight = (draw(width, inner) / inner**0.5).bfloat16()
    exact = quick_gelu(F.linear(inputs.float(), weight.float(), bias.float()))
    result = quick_gelu_product.quick_gelu_product(inputs, weight, bias)
    return {
        "error": relative(result, exact),
        "error_of_plain_layers": relative(quick_gelu(F.linear(inputs, weight, bias)), exact),
    }


def compare_module(
    module: nn.Module, call: Callable[[], Tensor], *, is_compiled: bool
) -> dict[str, Any]:
    """Compare a module with and without the kernel; ``launches``: expected kernel launches."""
    result: dict[str, Any] = {}
    outputs = []
    for name in ("with", "without"):
        torch.compiler.reset()
        module._compiled_call_impl = None
        if is_compiled:
            module.compile(dynamic=False, fullgraph=isinstance(module, FeedForward))
        with record_launches() as launches:
            if name == "with":
                outputs.append(call())
            else:
                with without():
                    outputs.append(call())
        result[f"launches_{name}"] = list(launches)
        if name == "with":
            result["microseconds_with"] = microseconds(call)
        else:
            with without():
                result["microseconds_without"] = microseconds(call)
    module._compiled_call_impl = None
    torch.compiler.reset()
    result["difference"] = relative(*outputs)
    result["cosine"] = float(F.cosine_similarity(*(o.double() for o in outputs), dim=-1).min())
    return result


def compare_layers(failures: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    layer = FeedForward(768, 3072, "quick_gelu").to("cuda", torch.bfloat16).eval()
    for frames in (328, 768, 2304):
        tokens = torch.randn(frames, 50, 768, device="cuda", dtype=torch.bfloat16)
        for is_compiled in (False, True):
            name = f"layer, {50 * frames} rows, {'compiled' if is_compiled else 'eager'}"
            result = compare_module(
                layer, lambda given=tokens: layer(given), is_compiled=is_compiled
            )
            if result["launches_with"] != [50 * frames] or result["launches_without"]:
                failures.append(f"{name}: launches")
            if not result["difference"] < LAYER_ERROR:
                failures.append(f"{name}: difference")
            yield name, result


def compare_towers(failures: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    config = CLIP_SHAPES["ViT-B/32"]
    size, blocks = config.vision.image_size, config.vision.layers
    frames = torch.randint(0, 256, (1, FRAMES, 3, size, size), device="cuda").byte()
    mask = torch.ones(1, FRAMES, dtype=torch.bool, device="cuda")
    for dtype in (torch.bfloat16, torch.float32):
        encoder = ClipEncoder(config).to("cuda", dtype).eval()
        expected = [50 * FRAMES] * (blocks - 1) if dtype == torch.bfloat16 else []
        for is_compiled in (False, True) if expected else (False,):
            name = f"CLIP B/32, {dtype}, {'compiled' if is_compiled else 'eager'}"
            result = compare_module(
                encoder.vision,
                lambda given=encoder: given.encode_frames(frames, mask),
                is_compiled=is_compiled,
            )
            if result["launches_with"] != expected or result["launches_without"]:
                failures.append(f"{name}: launches")
            if not result["cosine"] > COSINE:
                failures.append(f"{name}: cosine")
            yield name, result


@torch.inference_mode()
def main() -> int:
    torch.manual_seed(0)
    failures: list[str] = []
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "products": {},
        "modules": {},
        "failures": failures,
    }
    if not quick_gelu_product.has_kernel(torch.device("cuda")):
        failures.append("this device is not one of the kernel's")
    else:
        for name, shape in PRODUCTS.items():
            errors = result["products"][name] = compare_product(*shape)
            if not errors["error"] < ERROR:
                failures.append(f"{name}: error")
            print(f"{name}: {errors}", file=sys.stderr, flush=True)
        for compare in (compare_layers, compare_towers):
            for name, row in compare(failures):
                result["modules"][name] = row
                print(f"{name}: {row}", file=sys.stderr, flush=True)
        if not quick_gelu_product.HAS_TRITON:
            failures.append("a launch failed, and the plain layers stood in")
    print(json.dumps(result, indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
