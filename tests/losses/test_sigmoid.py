"""The sigmoid loss by hand, and at its extremes."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from eaglenet.losses import SigmoidLoss


def test_two_by_two_by_hand() -> None:
    loss = SigmoidLoss(temperature=0.0, bias=-1.0)
    scores = torch.tensor([[0.5, -0.25], [0.75, 1.0]])
    logits = [[-0.5, -1.25], [-0.25, 0.0]]
    signs = [[1, -1], [-1, 1]]
    expected = 0.0
    for i in range(2):
        for j in range(2):
            expected += math.log(1 + math.exp(-signs[i][j] * logits[i][j]))
    assert_close(loss(scores, torch.eye(2, dtype=torch.bool)), torch.tensor(expected / 2))


def test_temperature_and_bias_start_as_in_the_paper_and_learn() -> None:
    loss = SigmoidLoss()
    assert_close(loss.temperature.detach(), torch.tensor(4.77))
    assert_close(loss.bias.detach(), torch.tensor(-12.93))
    loss(torch.rand(3, 4), torch.rand(3, 4) > 0.5).backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())


def test_a_negative_pair_at_cosine_one_stays_finite() -> None:
    """log(sigmoid(x)) is -inf there: the logit is exp(4.77) - 12.93 = 105."""
    loss = SigmoidLoss()
    scores = torch.tensor([[1.0, 1.0, -1.0]], requires_grad=True)
    value = loss(scores, torch.tensor([[True, False, True]]))
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert value > 100


def test_two_captions_of_one_video_are_both_right() -> None:
    loss = SigmoidLoss(temperature=1.0, bias=0.0)
    scores = torch.full((2, 2), 0.9)
    both, one = torch.ones(2, 2, dtype=torch.bool), torch.eye(2, dtype=torch.bool)
    assert loss(scores, both) < loss(scores, one)


def test_the_sum_over_videos_is_averaged_over_texts() -> None:
    loss = SigmoidLoss()
    scores, positives = torch.rand(3, 5), torch.rand(3, 5) > 0.5
    twice = loss(torch.cat([scores, scores]), torch.cat([positives, positives]))
    assert_close(twice, loss(scores, positives))
