"""The product with QuickGELU at its end, under Triton's interpreter, and where it is taken.

``quick_gelu_on_device.py`` does the same where there is a device.
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


def interpreted() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    # Triton 3.6 makes scalars of arrays with one element, which NumPy 2.4 refuses.
    works = versions(triton) >= (3, 7) or versions(np) < (2, 4)
    return works and bool(triton.knobs.runtime.interpret)


def versions(module: Any) -> tuple[int, int]:
    major, minor = module.__version__.split(".")[:2]
    return int(major), int(minor)


needs_the_interpreter = pytest.mark.skipif(
    not interpreted(),
    reason="Triton is not installed or does not fit NumPy, or TRITON_INTERPRET is not 1",
)


@pytest.fixture(autouse=True)
def no_failure_goes_unseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plain layers stand in for a kernel that fails, and would pass any comparison."""
    monkeypatch.setattr(module, "HAS_TRITON", True)
    with patch.object(module.logger, "warning") as warning:
        yield
    assert not warning.called


def operands(rows: int, inner: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(rows + inner + width)
    left, weight, bias = (
        torch.randn(shape, generator=drawn) for shape in ((rows, inner), (width, inner), (width,))
    )
    return left.bfloat16(), (weight / inner**0.5).bfloat16(), bias.bfloat16()


def relative_error(found: Tensor, left: Tensor, weight: Tensor, bias: Tensor) -> float:
    exact = quick_gelu(F.linear(left.double(), weight.double(), bias.double()))
    return float((found.double() - exact).norm() / exact.norm())


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
    given = operands(rows, inner, width)
    found = quick_gelu_product(*given)
    assert found.shape == (rows, width)
    assert found.dtype == torch.bfloat16
    # The interpreter cuts numbers off where a device rounds them: up to 2^-8 of each.
    assert relative_error(found, *given) < 5e-3


@needs_the_interpreter
def test_columns_beyond_the_last_tile_of_the_bias_are_not_read() -> None:
    left, weight, _ = operands(5, 16, 264)
    longer = torch.cat([torch.zeros(264), torch.full([256], torch.inf)]).bfloat16()
    found = quick_gelu_product(left, weight, longer[:264])
    assert relative_error(found, left, weight, torch.zeros(264)) < 5e-3


@needs_the_interpreter
def test_matrices_that_do_not_lie_as_the_kernel_reads_them_are_copied() -> None:
    left, weight, bias = operands(9, 16, 8)
    shifted = torch.cat([left.new_zeros(1), left.flatten()])[1:].view(9, 16)
    assert shifted.data_ptr() % 16
    expected = quick_gelu_product(left, weight, bias)
    assert torch.equal(quick_gelu_product(shifted, weight, bias), expected)
    turned = weight.T.contiguous().T
    assert torch.equal(quick_gelu_product(left, turned, bias), expected)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_kernel_that_fails_is_left_out_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from eaglenet.encoders import quick_gelu_kernel

    def fail(*_: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(quick_gelu_kernel, "launch", fail)
    given = operands(9, 16, 8)
    with patch.object(module.logger, "warning") as warning:
        found = [quick_gelu_product(*given) for _ in range(2)]
    assert all(torch.equal(each, quick_gelu(F.linear(*given))) for each in found)
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
        found = layer._in_triton_product(tokens)
        expected = layer.float()(tokens.float())
    assert found.shape == tokens.shape
    assert float((found - expected).norm() / expected.norm()) < 1e-2


@needs_the_interpreter
@pytest.mark.filterwarnings("ignore:Guards may run slower")  # of Python 3.13.0
def test_compiling_takes_the_operation_as_it_is() -> None:
    given = operands(7, 16, 8)
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda *those: quick_gelu_product(*those) + 1, backend=keep)
    with torch.no_grad():
        assert torch.equal(compiled(*given), quick_gelu_product(*given) + 1)
    (graph,) = graphs
    assert "eaglenet.quick_gelu_product" in graph.code
    torch.compiler.reset()


@needs_the_interpreter
def test_the_operations_of_the_product_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from common import operations

    given = operands(7, 16, 8)
    with torch.inference_mode():
        assert operations(lambda: quick_gelu_product(*given)) == 2 * 7 * 16 * 8
        assert operations(lambda: F.linear(*given)) == 2 * 7 * 16 * 8


class Recorded(TorchDispatchMode):
    """The operations of a call."""

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
    """A described GPU, whose tensors have shapes and no numbers."""
    described = {"capability": HOPPER}

    def properties(device: torch.device) -> SimpleNamespace:
        major, minor = described["capability"]
        return SimpleNamespace(major=major, minor=minor)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    with FakeTensorMode():
        yield described


with_a_described_device = pytest.mark.usefixtures("device")


def is_taken(
    *shape: int,
    hidden: int = 256,
    activation: Activation = "quick_gelu",
    weights: torch.dtype = torch.bfloat16,
    dtype: torch.dtype = torch.bfloat16,
    on: str = "cuda",
    training: bool = False,
    gradients: bool = False,
) -> bool:
    """Whether a layer takes our product."""
    layer = FeedForward(shape[-1], hidden, activation).train(training)
    for part in (layer.up, layer.down):
        for name, value in list(part.named_parameters()):
            made = torch.empty(value.shape, device=on, dtype=weights)
            setattr(part, name, torch.nn.Parameter(made, requires_grad=False))
    tokens = torch.empty(shape, device=on, dtype=dtype)
    with torch.set_grad_enabled(gradients), Recorded() as recorded:
        assert layer(tokens).shape == shape
    return OURS in recorded.calls


@with_a_described_device
def test_a_layer_takes_it_in_inference_on_hopper() -> None:
    assert is_taken(MIN_ROWS, 64)
    assert is_taken(384, 50, 64)
    assert is_taken(384, 50, 64, hidden=264)


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
        {"hidden": 260},
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
