"""The forms of the feed-forward layer, and the choice of attention kernels."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from eaglenet.encoders.blocks import FeedForward, attention_kernel
from eaglenet.encoders.clip_config import Activation


@pytest.mark.parametrize("shape", [(3, 5, 16), (7, 16)])
def test_an_activation_inside_the_product_changes_nothing(shape: tuple[int, ...]) -> None:
    # On a CPU, the activation of this product is the exact GELU.
    layer = FeedForward(16, 64, "gelu").eval()
    tokens = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(layer._in_cublas_product(tokens), layer(tokens))


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.0, 4.0])
def test_gelu_by_tanh_is_nearer_to_gelu_than_its_rounding_to_bf16(deviation: float) -> None:
    samples = torch.randn(200_000, generator=torch.Generator().manual_seed(1)) * deviation
    exact = F.gelu(samples)
    rounding = (exact.bfloat16().float() - exact).square().mean().sqrt()
    other = (F.gelu(samples, approximate="tanh") - exact).square().mean().sqrt()
    assert other < rounding / 8


@pytest.mark.parametrize(
    ("activation", "dtype", "expected"),
    [
        ("gelu_tanh", torch.float32, True),
        ("gelu_tanh", torch.bfloat16, True),
        ("gelu", torch.bfloat16, True),
        ("gelu", torch.float16, False),
        ("gelu", torch.float32, False),
    ],
)
def test_the_product_is_taken_where_it_is_as_exact(
    activation: Activation, dtype: torch.dtype, expected: bool
) -> None:
    layer = FeedForward(8, 16, activation).to(dtype)
    assert layer._can_use_cublas(torch.zeros(2, 8, dtype=dtype)) is expected


def test_the_product_is_not_taken_where_autocast_would_choose_the_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, tokens = FeedForward(8, 16, "gelu_tanh"), torch.zeros(2, 8)
    assert layer._can_use_cublas(tokens)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert not layer._can_use_cublas(tokens)


def test_the_product_is_not_taken_for_tokens_of_another_type() -> None:
    assert not FeedForward(8, 16, "gelu_tanh").bfloat16()._can_use_cublas(torch.zeros(2, 8))


def test_the_kernel_of_short_sequences_leaves_the_choice_of_the_caller() -> None:
    order = torch._C._get_sdp_priority_order()
    with sdpa_kernel(SDPBackend.MATH):
        assert isinstance(attention_kernel(5), nullcontext)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]), attention_kernel(5):
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch._C._get_sdp_priority_order() == order
    assert torch.backends.cuda.flash_sdp_enabled()
