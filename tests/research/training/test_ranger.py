"""Ranger against a loop over single numbers, and rates that fall epoch by epoch."""

from __future__ import annotations

import math

import pytest
import torch

from eaglenet.research.training.optimizer import Ranger, build_optimizer, rate_factor


def test_ten_steps_equal_the_formulas() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.5], dtype=torch.float64))
    optimizer = Ranger([weight], lr=0.1, weight_decay=0.01)
    value, slow, first, second = 1.5, 1.5, 0.0, 0.0
    for count in range(1, 11):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
        gradient = 2 * value
        first = 0.95 * first + 0.05 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        value *= 1 - 0.1 * 0.01
        length = 1999 - 2 * count * 0.999**count / (1 - 0.999**count)
        if length > 5:
            r = (length - 4) / 1995 * (length - 2) / length * 1999 / 1997
            size = math.sqrt((1 - 0.999**count) * r) / (1 - 0.95**count)
            value -= 0.1 * size * first / (math.sqrt(second) + 1e-5)
        else:
            value -= 0.1 * first / (1 - 0.95**count)
        if count % 6 == 0:
            slow += 0.5 * (value - slow)
            value = slow
        assert weight.item() == pytest.approx(value, abs=1e-12)


def test_it_goes_on_where_it_was_saved() -> None:
    def run(steps: int, state: dict | None = None, start: float = 1.0) -> tuple[float, dict]:
        weight = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
        optimizer = build_optimizer([{"params": [weight], "lr": 0.1}], "ranger")
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range(steps):
            optimizer.zero_grad()
            (weight**3).sum().backward()
            optimizer.step()
        return weight.item(), optimizer.state_dict()

    halfway, state = run(5)
    assert run(4, state, halfway)[0] == run(9)[0]


def test_rates_fall_by_a_share_after_each_epoch() -> None:
    factors = [
        rate_factor(step, 40, warmup=0.0, schedule="epochs", epochs=4, decay=0.5)
        for step in (0, 9, 10, 25, 39)
    ]
    assert factors == [1.0, 1.0, 0.5, 0.25, 0.125]
