"""The runner of the Langevin chain: the pure sampler, or a CUDA graph of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from eaglenet.energy.energies import ENERGIES
from eaglenet.energy.langevin import ChainRunner, sample

PAIRS, FRAMES, DIM = 3, 5, 8
OPTIONS = {"steps": 4, "step_size": 0.5, "deviation": 0.01}


def start(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(PAIRS, DIM, generator=generator)
    return text.to(device), torch.randn(PAIRS, FRAMES, DIM, generator=generator).to(device)


def test_on_a_cpu_the_runner_is_the_sampler() -> None:
    energy = ENERGIES["bilinear"](DIM)
    torch.manual_seed(1)
    expected = sample(energy, *start(), **OPTIONS)
    torch.manual_seed(1)
    end = copy.deepcopy(ChainRunner())(energy, *start(), **OPTIONS)
    assert all(torch.equal(a, b) for a, b in zip(end, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cosine", "bilinear", "mlp"])
def test_a_replay_ends_where_the_calls_end_without_noise(kind: Any) -> None:
    energy = ENERGIES[kind](DIM).cuda()
    quiet = {**OPTIONS, "deviation": 0.0}
    runner = ChainRunner()
    for _ in range(2):
        torch.testing.assert_close(
            runner(energy, *start("cuda"), **quiet), sample(energy, *start("cuda"), **quiet)
        )


@pytest.mark.gpu
def test_a_replay_draws_new_noise_that_the_seed_decides() -> None:
    energy = ENERGIES["bilinear"](DIM).cuda()
    runner = ChainRunner()
    ends = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        ends.append(runner(energy, *start("cuda"), **OPTIONS)[0])
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[0], ends[1])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cosine", "bilinear", "mlp"])
def test_a_replay_and_the_calls_give_the_same_samples_for_one_seed(kind: Any) -> None:
    energy = ENERGIES[kind](DIM).cuda()
    runner = ChainRunner()
    for seed in (1, 2):
        torch.manual_seed(seed)
        end = runner(energy, *start("cuda"), **OPTIONS)
        torch.manual_seed(seed)
        torch.testing.assert_close(end, sample(energy, *start("cuda"), **OPTIONS))
