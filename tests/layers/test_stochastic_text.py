"""Radius, candidates and support text against loops; where noise comes from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from eaglenet.layers.stochastic_text import StochasticText, draw_noise, support_text
from reference import eaglenet_reference as reference

CANDIDATES, TEXTS, VIDEOS, FRAMES, DIM = 2, 3, 4, 5, 7


def build(bias: bool) -> StochasticText:
    stochastic = StochasticText(FRAMES, DIM, bias=bias).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in stochastic.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return stochastic


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    text = torch.randn(TEXTS, DIM, dtype=torch.float64, generator=generator)
    frames = torch.randn(VIDEOS, FRAMES, DIM, dtype=torch.float64, generator=generator)
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    mask[1, 3:] = False
    return text.requires_grad_(), frames.requires_grad_(), mask


@pytest.mark.parametrize("bias", [False, True])
def test_radius_and_gradients_equal_the_loop(bias: bool) -> None:
    stochastic = build(bias)
    text, frames, mask = inputs()
    ours = stochastic.radius(text, frames, mask)
    loop = torch.stack(
        [
            torch.stack(
                [reference.radius(stochastic, text[t], frames[v], mask[v]) for v in range(VIDEOS)]
            )
            for t in range(TEXTS)
        ]
    )
    assert_close(ours, loop)
    inputs_and_weights = [text, frames, *stochastic.parameters()]
    gradients = torch.autograd.grad(ours.square().sum(), inputs_and_weights)
    expected = torch.autograd.grad(loop.square().sum(), inputs_and_weights)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other)


def test_radius_starts_at_one_beyond_the_frames() -> None:
    text, frames, _ = inputs()
    start = StochasticText(FRAMES, DIM).double().radius(text, frames)
    assert_close(start[..., FRAMES:], torch.ones_like(start[..., FRAMES:]))
    cosine = torch.cosine_similarity(text[:, None, None], frames[None], dim=-1)
    assert_close(start[..., :FRAMES], cosine.exp())


def test_fewer_frames_are_the_same_as_padded_ones() -> None:
    stochastic = build(bias=True)
    text, frames, _ = inputs()
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    mask[:, 3:] = False
    assert_close(stochastic.radius(text, frames[:, :3]), stochastic.radius(text, frames, mask))


def test_candidates_are_the_text_moved_by_radius_times_noise() -> None:
    stochastic = build(bias=False)
    text, frames, _ = inputs()
    radius = stochastic.radius(text, frames)
    bank = torch.randn(CANDIDATES, DIM, dtype=torch.float64)
    candidates = stochastic.candidates(text, radius, bank)
    for t in range(TEXTS):
        for v in range(VIDEOS):
            for s in range(CANDIDATES):
                assert_close(candidates[t, v, s], text[t] + radius[t, v] * bank[s])
    for_each = bank.expand(TEXTS, VIDEOS, CANDIDATES, DIM)
    assert_close(stochastic.candidates(text, radius, for_each), candidates)


def test_support_text_of_the_paper_equals_the_loop() -> None:
    text, _, _ = inputs()
    generator = torch.Generator().manual_seed(3)
    videos = torch.randn(TEXTS, VIDEOS, DIM, dtype=torch.float64, generator=generator)
    radius = torch.rand(TEXTS, VIDEOS, DIM, dtype=torch.float64, generator=generator)
    ours = support_text(text, videos, radius, mode="pair")
    for t in range(TEXTS):
        for v in range(VIDEOS):
            loop = reference.support_text(text[t], videos[t, v], radius[t, v])
            assert_close(ours[t, v], loop)
            assert_close((ours[t, v] - text[t]).norm(), radius[t, v].norm())


def test_elementwise_support_text_points_to_the_pairs_own_video() -> None:
    text, _, _ = inputs()
    videos = torch.randn(TEXTS, VIDEOS, DIM, dtype=torch.float64)
    radius = torch.rand(TEXTS, VIDEOS, DIM, dtype=torch.float64)
    ours = support_text(text, videos, radius, mode="elementwise")
    for t in range(TEXTS):
        for v in range(VIDEOS):
            pointer = (videos[t, v] - text[t]) / (videos[t, v] - text[t]).norm()
            assert_close(ours[t, v], text[t] + pointer * radius[t, v])


@pytest.mark.parametrize(
    ("mode", "least", "most"), [("pair", 0.85, 1.0), ("elementwise", -0.2, 0.2)]
)
def test_the_papers_support_text_is_close_to_every_video_at_the_start(
    mode: str, least: float, most: float
) -> None:
    """Radius 1, a pooled video as LayerNorm leaves it: unrelated pairs, and a cosine near 1."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(4, 512, generator=generator)
    videos = torch.nn.functional.layer_norm(torch.randn(4, 5, 512, generator=generator), (512,))
    support = support_text(text, videos, torch.ones(4, 5, 512), mode=mode)
    cosine = torch.nn.functional.cosine_similarity(support, videos, dim=-1)
    assert cosine.min() > least
    assert cosine.max() < most


def test_support_text_of_the_released_code_averages_the_batch() -> None:
    text, _, _ = inputs()
    videos = torch.randn(TEXTS, VIDEOS, DIM, dtype=torch.float64)
    radius = torch.rand(TEXTS, VIDEOS, DIM, dtype=torch.float64)
    ours = support_text(text, videos, radius, mode="batch")
    for v in range(VIDEOS):
        mean = sum(videos[t, v] / videos[t, v].norm() for t in range(TEXTS)) / TEXTS
        for t in range(TEXTS):
            pointer = (mean - text[t]) / (mean - text[t]).norm()
            assert_close(ours[t, v], text[t] + pointer * radius[t, v])


def test_a_blank_frame_has_a_finite_radius_and_gradient() -> None:
    stochastic = build(bias=True)
    text, frames, _ = inputs()
    blank = frames.detach().clone()
    blank[0, 1] = 0
    blank.requires_grad_()
    radius = stochastic.radius(text, blank)
    radius.sum().backward()
    assert radius.isfinite().all()
    assert blank.grad is not None
    assert blank.grad.isfinite().all()


def test_noise_comes_from_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = draw_noise(CANDIDATES, DIM, prior="normal", generator=_generator())
    assert torch.equal(first, draw_noise(CANDIDATES, DIM, prior="normal", generator=_generator()))
    assert torch.equal(before, torch.get_rng_state())


def test_priors_have_the_moments_they_promise() -> None:
    normal = draw_noise(20000, prior="normal", generator=_generator())
    uniform = draw_noise(20000, prior="uniform", generator=_generator())
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    assert abs(uniform.mean() - 0.5) < 0.01
    assert uniform.min() >= 0
    assert uniform.max() < 1


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)
