"""Perturbed top-k: a hard choice forward, an estimate of its slope backward."""

from __future__ import annotations

import math

import pytest
import torch

from eaglenet.layers.token_selection import (
    SelectionGradient,
    TokenSelection,
    hard_top_k,
    perturbed_top_k,
)


def normal_cdf(value: float) -> float:
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def test_hard_top_k_is_ordered_by_position() -> None:
    choice = hard_top_k(torch.tensor([[0.1, 0.9, 0.3, 0.8]]), 2)
    assert choice.tolist() == [[[0, 1, 0, 0], [0, 0, 0, 1]]]


def test_small_noise_gives_the_hard_choice() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3, 0.8], [3.0, 2.0, 1.0, 0.0]])
    generator = torch.Generator().manual_seed(0)
    soft = perturbed_top_k(scores, 2, num_samples=5, sigma=1e-6, generator=generator)
    torch.testing.assert_close(soft, hard_top_k(scores, 2))


def test_every_slot_is_a_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    soft = perturbed_top_k(torch.randn(3, 7, generator=generator), 2, generator=generator)
    assert soft.shape == (3, 2, 7)
    torch.testing.assert_close(soft.sum(dim=-1), torch.ones(3, 2))


def test_choice_and_gradient_of_two_items_follow_the_normal_distribution() -> None:
    """Top 1 of two: the first wins with probability Phi((x1 - x2) / (sigma sqrt 2))."""
    sigma, gap = 0.5, 0.4
    scores = torch.tensor([[gap, 0.0]], dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    soft = perturbed_top_k(
        scores, 1, num_samples=400_000, sigma=sigma, generator=generator, gradient="jacobian"
    )
    deviation = sigma * math.sqrt(2)
    # 400,000 draws: a share is right to about 0.0008, the gradient to about 0.005.
    assert soft[0, 0, 0].item() == pytest.approx(normal_cdf(gap / deviation), abs=0.004)
    (gradient,) = torch.autograd.grad(soft[0, 0, 0], scores)
    density = math.exp(-0.5 * (gap / deviation) ** 2) / math.sqrt(2 * math.pi) / deviation
    assert gradient[0, 0].item() == pytest.approx(density, abs=0.02)
    assert gradient[0, 1].item() == pytest.approx(-density, abs=0.02)


def test_the_gradient_of_three_items_is_the_slope_of_the_expectation() -> None:
    """Against central differences of the mean choice under the same draws."""
    sigma, step, count = 0.3, 0.05, 200_000
    weights = torch.tensor([[[1.0, -2.0, 0.5], [0.3, 1.5, -1.0]]], dtype=torch.float64)
    start = torch.tensor([[0.2, 0.0, 0.1]], dtype=torch.float64)

    def value(scores: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        soft = perturbed_top_k(
            scores, 2, num_samples=count, sigma=sigma, generator=generator, gradient="jacobian"
        )
        return (soft * weights).sum()

    scores = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(scores), scores)
    for item in range(3):
        shift = torch.zeros_like(start)
        shift[0, item] = step
        slope = (value(start + shift) - value(start - shift)) / (2 * step)
        assert gradient[0, item].item() == pytest.approx(slope.item(), abs=0.08)


@pytest.mark.parametrize("kind", ["diagonal", "jacobian"])
def test_the_gradient_is_the_mean_of_indicator_times_noise(kind: SelectionGradient) -> None:
    """Written out over samples, slots and items, with the noise drawn again."""
    sigma, samples = 0.4, 6
    scores = torch.tensor([[0.3, -0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    upstream = torch.tensor([[[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]]], dtype=torch.float64)
    soft = perturbed_top_k(
        scores,
        2,
        num_samples=samples,
        sigma=sigma,
        generator=torch.Generator().manual_seed(2),
        gradient=kind,
    )
    (gradient,) = torch.autograd.grad(soft, scores, upstream)
    noise = torch.randn(
        1, samples, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    expected = [0.0, 0.0, 0.0]
    for sample in range(samples):
        noisy_scores = (scores[0] + sigma * noise[0, sample]).tolist()
        selection_of_row = sorted(sorted(range(3), key=lambda item: -noisy_scores[item])[:2])
        for slot, item in enumerate(selection_of_row):
            for into in [item] if kind == "diagonal" else range(3):
                part = upstream[0, slot, item] * noise[0, sample, into] / (samples * sigma)
                expected[into] += part.item()
    torch.testing.assert_close(gradient[0].tolist(), expected)


def test_all_rows_may_share_their_draws() -> None:
    """Two draws by hand: the first lifts item 0 over item 1, the second leaves the order."""
    noise = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    scores = torch.tensor([[0.0, 1.0, 0.5], [0.0, 9.0, 0.5]])
    soft = perturbed_top_k(scores, 1, sigma=1.0, noise=noise)
    assert soft.tolist() == [[[0.5, 0.5, 0.0]], [[0.0, 1.0, 0.0]]]


def test_the_class_token_is_always_kept_first() -> None:
    selection = TokenSelection(6, num_tokens=2).eval()
    tokens = torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(0))
    selection_of_row = selection(tokens)
    assert selection_of_row.shape == (4, 3, 6)
    assert torch.equal(selection_of_row[:, 0], tokens[:, 0])


def test_the_scorer_learns_through_the_choice() -> None:
    selection = TokenSelection(6, num_tokens=2, generator=torch.Generator().manual_seed(0)).train()
    selection(torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in selection.parameters())
