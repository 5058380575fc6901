"""Learning rates against hand-computed values."""

from __future__ import annotations

import math

import pytest

from eaglenet.core.errors import ConfigError
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.optimizer import rate_factor


def test_warmup_rises_linearly_to_the_peak() -> None:
    factors = [rate_factor(step, 40, warmup=0.1) for step in range(5)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0


def test_cosine_falls_to_zero_at_the_end() -> None:
    assert rate_factor(22, 40, warmup=0.1) == pytest.approx(0.5)
    assert rate_factor(40, 40, warmup=0.1) == pytest.approx(0.0)


def test_without_warmup_the_first_step_has_the_peak_rate() -> None:
    assert rate_factor(0, 40, warmup=0.0) == 1.0


def test_released_starts_at_zero_and_jumps_after_the_warmup() -> None:
    assert rate_factor(0, 100, schedule="released") == 0.0
    assert rate_factor(9, 100, schedule="released") == pytest.approx(0.9)
    after = 0.5 * (1 + math.cos(math.pi * 0.1))
    assert (
        rate_factor(10, 100, schedule="released")
        == pytest.approx(after)
        == pytest.approx(0.9755, abs=1e-4)
    )


def test_linear_falls_on_a_straight_line_after_the_warmup() -> None:
    factors = [rate_factor(step, 40, warmup=0.1, schedule="linear") for step in (3, 4, 22, 40)]
    assert factors == pytest.approx([1.0, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("epochs", [22, 49, 100])
def test_every_epoch_starts_at_its_own_rate(epochs: int) -> None:
    """15 / 22 * 22 is less than 15 in floating point."""
    factors = [
        rate_factor(7 * epoch, 7 * epochs, warmup=0.0, schedule="epochs", epochs=epochs, decay=0.9)
        for epoch in range(epochs)
    ]
    assert factors == pytest.approx([0.9**epoch for epoch in range(epochs)])


@pytest.mark.parametrize("beta", [-0.1, 1.0, math.nan])
def test_an_impossible_beta_is_refused_by_name(beta: float) -> None:
    with pytest.raises(ConfigError, match=f"training.second_beta is {beta}"):
        TrainingConfig(second_beta=beta)
