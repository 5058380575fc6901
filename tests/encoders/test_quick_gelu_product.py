"""The product fused with QuickGELU in Triton's interpreter, and the conditions of its use.

``quick_gelu_on_device.py`` does the same on a GPU.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from eaglenet.core.types import quick_gelu
from eaglenet.encoders import blocks as module
from eaglenet.encoders.blocks import MIN_ROWS, FeedForward, has_kernel, quick_gelu_product
from eaglenet.encoders.clip_config import Activation

OURS = torch.ops.eaglenet.quick_gelu_product.default
HOPPER, AMPERE, BLACKWELL = (9, 0), (8, 0), (10, 0)


def has_interpreter() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    # Triton 3.6 converts arrays of one element to scalars, which NumPy 2.4 refuses.
    works = versions(triton) >= (3, 7) or versions(np) < (2, 4)
    return works and bool(triton.knobs.runtime.interpret)


def versions(module: Any) -> tuple[int, int]:
    major, minor = module.__version__.split(".")[:2]
    return int(major), int(minor)


needs_the_interpreter = pytest.mark.skipif(
    not has_interpreter(),
    reason="Triton is not installed or does not fit NumPy, or TRITON_INTERPRET is not 1",
)


@pytest.fixture(autouse=True)
def no_failure_goes_unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let failures of the kernel raise: plain layers would replace it and pass comparisons."""
    monkeypatch.setattr(module, "HAS_TRITON", True)
    with patch.object(module.logger, "warning") as warning:
        yield
    assert not warning.called


def operands(rows: int, inner: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + inner + width)
    inputs, weight, bias = (
        torch.randn(shape, generator=generator)
        for shape in ((rows, inner), (width, inner), (width,))
    )
    return inputs.bfloat16(), (weight / inner**0.5).bfloat16(), bias.bfloat16()


def relative_error(actual: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor) -> float:
    exact = quick_gelu(F.linear(inputs.double(), weight.double(), bias.double()))
    return float((actual.double() - exact).norm() / exact.norm())


@needs_the_interpreter
@pytest.mark.parametrize(
    ("rows", "inner", "width"),
    [
        (128, 64, 256),  # one tile
        (1, 16, 8),  # one row
        (1, 64, 512),
        (129, 72, 264),  # a little more than a tile, in all directions
        (127, 56, 248),  # a little less
        (300, 200, 520),
        (1200, 64, 256),  # more rows of tiles than a group has
        (1100, 8, 768),
    ],
)
def test_the_product_is_that_of_the_plain_layers(rows: int, inner: int, width: int) -> None:
    arguments = operands(rows, inner, width)
    actual = quick_gelu_product(*arguments)
    assert actual.shape == (rows, width)
    assert actual.dtype == torch.bfloat16
    # The interpreter truncates numbers that a device rounds: by up to 2^-8 of each.
    assert relative_error(actual, *arguments) < 5e-3


@needs_the_interpreter
def test_columns_beyond_the_last_tile_of_the_bias_are_not_read() -> None:
    inputs, weight, _ = operands(5, 16, 264)
    longer = torch.cat([torch.zeros(264), torch.full([256], torch.inf)]).bfloat16()
    actual = quick_gelu_product(inputs, weight, longer[:264])
    assert relative_error(actual, inputs, weight, torch.zeros(264)) < 5e-3


@needs_the_interpreter
def test_matrices_that_do_not_lie_as_the_kernel_reads_them_are_copied() -> None:
    inputs, weight, bias = operands(9, 16, 8)
    unaligned_inputs = torch.cat([inputs.new_zeros(1), inputs.flatten()])[1:].view(9, 16)
    assert unaligned_inputs.data_ptr() % 16
    expected = quick_gelu_product(inputs, weight, bias)
    assert torch.equal(quick_gelu_product(unaligned_inputs, weight, bias), expected)
    transposed_weight = weight.T.contiguous().T
    assert torch.equal(quick_gelu_product(inputs, transposed_weight, bias), expected)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_kernel_that_fails_is_left_out_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglenet.encoders import quick_gelu_kernel

    def fail(*_: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(quick_gelu_kernel, "launch", fail)
    arguments = operands(9, 16, 8)
    with patch.object(module.logger, "warning") as warning:
        actual = [quick_gelu_product(*arguments) for _ in range(2)]
    assert all(torch.equal(each, quick_gelu(F.linear(*arguments))) for each in actual)
    warning.assert_called_once()
    assert "C compiler" in str(warning.call_args)
    assert not module.HAS_TRITON


@needs_the_interpreter
def test_the_operation_is_registered_as_torch_wants_it() -> None:
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(quick_gelu_product, operands(7, 16, 8), test_utils=checks)


@needs_the_interpreter
def test_a_layer_gives_the_same_with_it() -> None:
    layer = FeedForward(16, 64, "quick_gelu").bfloat16().eval()
    tokens = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        actual = layer._in_triton_product(tokens)
        expected = layer.float()(tokens.float())
    assert actual.shape == tokens.shape
    assert float((actual - expected).norm() / expected.norm()) < 1e-2


@needs_the_interpreter
@pytest.mark.filterwarnings("ignore:Guards may run slower")  # of Python 3.13.0
def test_compiling_takes_the_operation_as_it_is() -> None:
    arguments = operands(7, 16, 8)
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled_product = torch.compile(lambda *those: quick_gelu_product(*those) + 1, backend=keep)
    with torch.no_grad():
        assert torch.equal(compiled_product(*arguments), quick_gelu_product(*arguments) + 1)
    (graph,) = graphs
    assert "eaglenet.quick_gelu_product" in graph.code
    torch.compiler.reset()


@needs_the_interpreter
def test_the_operations_of_the_product_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from common import operations

    arguments = operands(7, 16, 8)
    with torch.inference_mode():
        assert operations(lambda: quick_gelu_product(*arguments)) == 2 * 7 * 16 * 8
        assert operations(lambda: F.linear(*arguments)) == 2 * 7 * 16 * 8


class Recorded(TorchDispatchMode):
    """Records the operations of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls.append(operation)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, int]]]:
    """Simulate a GPU, whose tensors have shapes and no values."""
    settings = {"capability": HOPPER}

    def properties(device: torch.device) -> SimpleNamespace:
        major, minor = settings["capability"]
        return SimpleNamespace(major=major, minor=minor)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    with FakeTensorMode():
        yield settings


with_a_described_device = pytest.mark.usefixtures("device")


def is_taken(
    *shape: int,
    hidden_width: int = 256,
    activation: Activation = "quick_gelu",
    weights: torch.dtype = torch.bfloat16,
    dtype: torch.dtype = torch.bfloat16,
    on: str = "cuda",
    training: bool = False,
    gradients: bool = False,
) -> bool:
    """Return whether a layer uses our product."""
    layer = FeedForward(shape[-1], hidden_width, activation).train(training)
    for part in (layer.up, layer.down):
        for name, value in list(part.named_parameters()):
            tensor = torch.empty(value.shape, device=on, dtype=weights)
            setattr(part, name, torch.nn.Parameter(tensor, requires_grad=False))
    tokens = torch.empty(shape, device=on, dtype=dtype)
    with torch.set_grad_enabled(gradients), Recorded() as record:
        assert layer(tokens).shape == shape
    return OURS in record.calls


@with_a_described_device
def test_a_layer_takes_it_in_inference_on_hopper() -> None:
    assert is_taken(MIN_ROWS, 64)
    assert is_taken(384, 50, 64)
    assert is_taken(384, 50, 64, hidden_width=264)


@with_a_described_device
@pytest.mark.parametrize(
    "options",
    [
        {"gradients": True},
        {"training": True},
        {"activation": "gelu"},
        {"activation": "gelu_tanh"},
        {"weights": torch.float32, "dtype": torch.float32},
        {"weights": torch.float16, "dtype": torch.float16},
        {"on": "cpu"},
        {"hidden_width": 260},
    ],
    ids=str,
)
def test_a_layer_does_as_before_where_it_cannot_take_it(options: dict[str, Any]) -> None:
    assert not is_taken(384, 50, 64, **options)


@with_a_described_device
def test_few_rows_and_odd_widths_are_left_to_others() -> None:
    assert not is_taken(MIN_ROWS - 1, 64)
    assert not is_taken(768, 1, 64)
    assert not is_taken(384, 50, 60)


@with_a_described_device
def test_autocast_chooses_its_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert not is_taken(384, 50, 64)


@pytest.mark.parametrize("capability", [AMPERE, (8, 9), BLACKWELL, (12, 0)])
def test_other_devices_are_left_as_they_are(
    device: dict[str, tuple[int, int]], capability: tuple[int, int]
) -> None:
    device["capability"] = capability
    assert not has_kernel(torch.device("cuda"))
    assert not is_taken(384, 50, 64)


@with_a_described_device
def test_without_triton_everything_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_TRITON", False)
    assert not is_taken(384, 50, 64)


@pytest.mark.slow
def test_the_towers_are_imported_without_triton_and_the_compiler() -> None:
    code = (
        "import sys, eaglenet.encoders.clip\n"
        "print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
