"""Weights stored as int8: rounding is bounded, the rest comes back as it was."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core.errors import CheckpointError
from eaglenet.models.files import SCALES
from eaglenet.models.folder import from_int8, to_int8


def test_rows_come_back_within_half_a_step_of_their_largest_value() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(70, 90) * torch.logspace(-4, 2, 70)[:, None]
    weights = to_int8({"matrix": matrix, "norm": torch.ones(90), "ids": torch.arange(3)})
    assert weights["matrix"].dtype == torch.int8
    back = from_int8(weights)
    assert set(back) == {"matrix", "norm", "ids"}
    step = matrix.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((back["matrix"] - matrix).abs() <= 0.501 * step).all())
    torch.testing.assert_close(back["norm"], torch.ones(90))
    assert torch.equal(back["ids"], torch.arange(3))


def test_a_row_of_zeros_stays_zero() -> None:
    back = from_int8(to_int8({"matrix": torch.zeros(64, 65)}))
    assert not bool(back["matrix"].any())


def test_weights_that_were_not_packed_are_left_alone() -> None:
    half = {"matrix": torch.randn(4, 5).half()}
    assert from_int8(half)["matrix"].dtype == torch.float16


def test_scales_of_another_shape_are_refused() -> None:
    weights = {"w": torch.zeros(5, 7, dtype=torch.int8), "w" + SCALES: torch.ones(4, 1)}
    with pytest.raises(CheckpointError, match="one for each row"):
        from_int8(weights)
