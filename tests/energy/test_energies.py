"""Energies against loops, their closed-form gradients against autograd, and the sampler's laws."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from eaglenet.energy.energies import ENERGIES, Energy
from eaglenet.energy.langevin import noise_deviation, sample
from reference import eaglenet_reference as reference

STEPS, TEXTS, VIDEOS, FRAMES, DIM = 2, 3, 4, 5, 6
KINDS = list(product(("cosine", "bilinear", "mlp"), ("mean", "max", "min"), (True, False)))


def build(kind: str, pooling: Any, bias: bool = True) -> Energy:
    torch.manual_seed(4)
    return ENERGIES[kind](DIM, pooling=pooling, bias=bias).double()


def inputs(pairs: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    count = VIDEOS if pairs else TEXTS
    text = torch.randn(count, DIM, dtype=torch.float64, generator=generator)
    frames = torch.randn(VIDEOS, FRAMES, DIM, dtype=torch.float64, generator=generator)
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    mask[2, 1:3] = False
    return text.requires_grad_(), frames.requires_grad_(), mask


@pytest.mark.parametrize(("kind", "pooling", "bias"), KINDS)
def test_energies_and_gradients_equal_the_loop(kind: str, pooling: Any, bias: bool) -> None:
    energy = build(kind, pooling, bias)
    text, frames, mask = inputs()
    ours = energy.all_pairs(text, frames, mask)
    loop = torch.stack(
        [
            torch.stack(
                [reference.video_energy(energy, text[t], frames[v], mask[v]) for v in range(VIDEOS)]
            )
            for t in range(TEXTS)
        ]
    )
    assert_close(ours, loop)
    inputs_and_weights = [text, frames, *energy.parameters()]
    gradients = torch.autograd.grad(ours.square().sum(), inputs_and_weights)
    expected = torch.autograd.grad(loop.square().sum(), inputs_and_weights)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(("kind", "pooling", "bias"), KINDS)
def test_matched_pairs_are_the_diagonal_of_all_pairs(kind: str, pooling: Any, bias: bool) -> None:
    energy = build(kind, pooling, bias)
    text, frames, _ = inputs(pairs=True)
    assert_close(energy(text, frames), energy.all_pairs(text, frames).diagonal())


@pytest.mark.parametrize(("kind", "pooling", "bias"), KINDS)
def test_closed_gradients_equal_autograd(kind: str, pooling: Any, bias: bool) -> None:
    energy = build(kind, pooling, bias)
    text, frames, _ = inputs(pairs=True)
    expected = torch.autograd.grad(energy(text, frames).sum(), (text, frames))
    for one, other in zip(energy.gradients(text, frames), expected, strict=True):
        assert_close(one, other)
        assert not one.requires_grad


@pytest.mark.parametrize(("kind", "pooling", "bias"), KINDS)
def test_chains_equal_those_of_autograd(kind: str, pooling: Any, bias: bool) -> None:
    energy = build(kind, pooling, bias)
    text, frames, _ = inputs(pairs=True)
    generator = torch.Generator().manual_seed(6)
    noise = (
        torch.randn(STEPS, *text.shape, dtype=torch.float64, generator=generator),
        torch.randn(STEPS, *frames.shape, dtype=torch.float64, generator=generator),
    )
    settings: dict[str, Any] = {"steps": STEPS, "step_size": 0.7, "deviation": 0.2}
    ours = sample(energy, text, frames, noise=noise, **settings)
    for pair in range(VIDEOS):
        own_noise = (noise[0][:, pair], noise[1][:, pair])
        loop = reference.langevin(energy, text[pair], frames[pair], noise=own_noise, **settings)
        assert_close(ours[0][pair], loop[0])
        assert_close(ours[1][pair], loop[1])


@pytest.mark.parametrize(("kind", "pooling", "bias"), KINDS)
def test_steps_without_noise_lower_the_energy(kind: str, pooling: Any, bias: bool) -> None:
    energy = build(kind, pooling, bias)
    text, frames, _ = inputs(pairs=True)
    last = energy(text, frames)
    for _ in range(5):
        text, frames = sample(energy, text, frames, steps=4, step_size=0.02)
        now = energy(text, frames)
        assert (now < last).all()
        last = now


def test_cosine_energy_lies_between_minus_one_and_one_and_learns_nothing() -> None:
    energy = build("cosine", "mean")
    text, frames, _ = inputs()
    values = energy.all_pairs(text, frames)
    assert values.abs().max() <= 1
    assert not list(energy.parameters())
    energy.eval()
    same = energy(text, text[:, None].expand(-1, FRAMES, -1))
    assert_close(same, -torch.ones(TEXTS, dtype=torch.float64))


def test_noise_is_a_variance_in_the_paper_and_a_deviation_in_the_released_code() -> None:
    assert noise_deviation(0.005, "variance") == pytest.approx(0.0707, abs=1e-4)
    assert noise_deviation(0.005, "std") == 0.005


def test_drawn_noise_comes_from_the_generator() -> None:
    energy = build("bilinear", "mean")
    text, frames, _ = inputs(pairs=True)

    def run() -> Tensor:
        generator = torch.Generator().manual_seed(8)
        return sample(energy, text, frames, deviation=0.1, generator=generator)[0]

    assert torch.equal(run(), run())


def test_a_blank_row_has_a_bounded_gradient() -> None:
    energy = build("bilinear", "mean")
    to_text, to_frames = energy.gradients(
        torch.zeros(1, DIM, dtype=torch.float64), torch.zeros(1, FRAMES, DIM, dtype=torch.float64)
    )
    assert to_text.abs().max() < 1e7
    assert to_frames.abs().max() < 1e7
