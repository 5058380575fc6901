"""Gradients in fp8: the loss of bf16, nearly its gradients, and where they do not apply."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import quick_gelu
from eaglenet.encoders import fp8_gradients
from eaglenet.encoders.blocks import ResidualBlock
from eaglenet.encoders.clip_config import VisionConfig
from eaglenet.encoders.fp8_gradients import GRADIENT, VALUE, Fp8Linear, use_fp8_gradients
from eaglenet.encoders.low_rank import LowRankLinear
from eaglenet.research.training.config import TrainingConfig

CPU = torch.device("cpu")
ROWS = 272
"""Of the tests below: 16 frames of 17 tokens."""


@pytest.fixture
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_gradients, "MIN_ROWS", ROWS)


def make_block(activation: str = "quick_gelu") -> nn.ModuleList:
    torch.manual_seed(0)
    config = VisionConfig(
        image_size=32, patch_size=8, width=64, layers=1, heads=2, mlp_width=128,
        activation=activation,
    )  # fmt: skip
    return nn.ModuleList([ResidualBlock(config)]).train()


def gradients(blocks: nn.ModuleList, num_frames: int = 16) -> tuple[Tensor, dict[str, Tensor]]:
    tokens = torch.randn(num_frames, 17, 64, generator=torch.Generator().manual_seed(1))
    tokens.requires_grad_()
    blocks.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        output = blocks[0](tokens)
    (output.float() ** 3).mean().backward()
    assert tokens.grad is not None
    named = {name: value.grad for name, value in blocks.named_parameters()}
    return output.detach(), {
        "tokens": tokens.grad,
        **{name: value for name, value in named.items() if value is not None},
    }


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_outputs_are_those_of_bf16_and_gradients_nearly(activation: str) -> None:
    blocks = make_block(activation)
    expected_output, expected = gradients(blocks)
    names = list(blocks.state_dict())
    assert use_fp8_gradients(blocks, CPU) == 4
    output, computed = gradients(blocks)
    assert list(blocks.state_dict()) == names
    assert torch.equal(output, expected_output)
    assert computed.keys() == expected.keys()
    is_changed = []
    for name, value in expected.items():
        cosine = torch.cosine_similarity(computed[name].flatten(), value.flatten(), dim=0)
        assert cosine > 0.995, name
        assert computed[name].norm() / value.norm() == pytest.approx(1.0, abs=0.02), name
        is_changed.append(not torch.equal(computed[name], value))
    assert any(is_changed)


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("case", ["few rows", "uneven rows", "evaluation", "frozen"])
def test_where_fp8_does_not_apply_gradients_are_those_of_bf16(case: str) -> None:
    blocks = make_block()
    num_frames = {"few rows": 15, "uneven rows": 17}.get(case, 16)
    if case == "evaluation":
        blocks.eval()
    if case == "frozen":
        for name, parameter in blocks.named_parameters():
            parameter.requires_grad_("ln" in name)
    expected_output, expected = gradients(blocks, num_frames)
    use_fp8_gradients(blocks, CPU)
    output, computed = gradients(blocks, num_frames)
    assert torch.equal(output, expected_output)
    assert all(torch.equal(computed[name], value) for name, value in expected.items())


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_large_gradients_of_a_few_frames_are_not_clipped(activation: str) -> None:
    """In the last block only first tokens have gradients, which are tiny except for hard pairs."""

    def compute(blocks: nn.ModuleList) -> dict[str, Tensor]:
        tokens = torch.randn(16, 17, 64, generator=torch.Generator().manual_seed(1))
        with torch.autocast("cpu", torch.bfloat16):
            output = blocks[0](tokens)
        gradient = torch.zeros_like(output)
        gradient[:, 0] = 1e-6
        gradient[3, 0] = torch.randn(64, generator=torch.Generator().manual_seed(2))
        blocks.zero_grad()
        output.backward(gradient)
        named = {name: value.grad for name, value in blocks.named_parameters()}
        return {name: value for name, value in named.items() if value is not None}

    blocks = make_block(activation)
    expected = compute(blocks)
    use_fp8_gradients(blocks, CPU)
    computed = compute(blocks)
    for name, value in expected.items():
        assert computed[name].norm() / value.norm() == pytest.approx(1.0, abs=0.05), name


def test_layers_with_low_rank_changes_stay() -> None:
    blocks = make_block()
    attention = blocks[0].attention
    attention.qkv = LowRankLinear(attention.qkv, 4)
    assert use_fp8_gradients(blocks, CPU) == 3
    assert type(attention.qkv) is LowRankLinear
    assert type(attention.out) is Fp8Linear


@pytest.mark.parametrize("dtype", [GRADIENT, VALUE])
def test_a_scale_leaves_room_above_the_rows_that_it_reads(dtype: torch.dtype) -> None:
    rows = torch.ones(200, 16)
    rows[1] = 3.0  # A row that is not read, within the room.
    rows[2] = 100.0  # One beyond it is clipped.
    scale = fp8_gradients._sampled_scale(rows, dtype, 200)
    restored = fp8_gradients._rounded(rows, scale, dtype).float() * scale
    assert restored[0, 0] == pytest.approx(1.0, rel=0.13)
    assert restored[1, 0] == pytest.approx(3.0, rel=0.13)
    assert restored[2, 0] == pytest.approx(fp8_gradients.ROOM)


def test_zeros_stay_zeros() -> None:
    zeros = torch.zeros(64, 16)
    scale = fp8_gradients._sampled_scale(zeros, GRADIENT, 16)
    rows, columns, sums = fp8_gradients.fp8_layouts(zeros, scale)
    for part in (rows, columns, sums):
        assert not part.float().any()


def test_an_encoder_without_such_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no towers"):
        use_fp8_gradients(nn.Linear(4, 4), CPU)


def test_a_device_without_fp8_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match="Ada, Hopper"):
        use_fp8_gradients(make_block(), torch.device("cuda"))


@pytest.mark.parametrize("others", [{"lora_rank": 4}, {"shard": True}])
def test_settings_that_cannot_be_combined_are_refused(others: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="fp8_gradients"):
        TrainingConfig(precision="fp8_gradients", **others)  # type: ignore[arg-type]


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("shape", [(200, 80), (256, 64), (48, 144)])
def test_the_kernel_agrees_with_the_plain_operations(shape: tuple[int, int]) -> None:
    """Into fp32: Triton's interpreter loses the carry of a number that is rounded up to fp8."""
    from eaglenet.encoders.fp8_kernel import launch

    generator = torch.Generator().manual_seed(0)
    gradient, inputs = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    scale, output_scale = torch.tensor(0.3), torch.tensor(0.7)
    rows, columns, outputs = (torch.empty(size) for size in (shape, shape[::-1], shape[::-1]))
    sums = launch(gradient, scale, columns, rows, inputs, output_scale, outputs)
    to_inputs = gradient.float() * fp8_gradients.slope(inputs.float())
    torch.testing.assert_close(rows, to_inputs / scale)
    torch.testing.assert_close(columns, rows.T)
    torch.testing.assert_close(sums, to_inputs.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs, quick_gelu(inputs.float()).T / output_scale)
    sums = launch(gradient, scale, columns, rows)
    torch.testing.assert_close(rows, gradient.float() / scale)
    torch.testing.assert_close(columns, rows.T)
    torch.testing.assert_close(sums, gradient.float().sum(0), rtol=1e-4, atol=1e-4)
    launch(inputs, output_scale, outputs)
    torch.testing.assert_close(outputs, inputs.float().T / output_scale)


def test_the_slope_is_the_derivative_of_quick_gelu() -> None:
    values = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(quick_gelu(values).sum(), values)
    torch.testing.assert_close(fp8_gradients.slope(values.detach()), expected)


@pytest.mark.gpu
def test_the_kernel_on_a_device_equals_the_plain_operations() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with fp8 products")
    here = Path(__file__).parent
    settings = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join([str(here.parents[1] / "src"), *sys.path]),
    }
    process = subprocess.run(
        [sys.executable, str(here / "fp8_on_device.py")],
        env=settings, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
