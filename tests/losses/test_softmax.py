"""The softmax loss equals cross-entropy, knows several positives, and bounds its scale."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch.testing import assert_close

from eaglenet.losses import SoftmaxLoss


def test_one_positive_each_is_plain_cross_entropy() -> None:
    loss = SoftmaxLoss()
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    target = torch.arange(5)
    expected = (F.cross_entropy(100 * scores, target) + F.cross_entropy(100 * scores.T, target)) / 2
    assert_close(loss(scores, torch.eye(5, dtype=torch.bool)), expected)


def test_several_positives_share_the_target() -> None:
    loss = SoftmaxLoss(logit_scale=0.0)
    scores = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    positives = torch.tensor([[True, False], [True, False], [False, True]])
    rows = scores.log_softmax(1)
    columns = scores.log_softmax(0)
    t2v = -(rows[0, 0] + rows[1, 0] + rows[2, 1]) / 3
    v2t = -((columns[0, 0] + columns[1, 0]) / 2 + columns[2, 1]) / 2
    assert_close(loss(scores, positives), (t2v + v2t) / 2)


def test_a_row_without_a_positive_does_not_count() -> None:
    loss = SoftmaxLoss(logit_scale=0.0)
    scores = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    positives = torch.tensor([[True, False], [False, True], [False, False]])
    rows, columns = scores.log_softmax(1), scores.log_softmax(0)
    t2v = -(rows[0, 0] + rows[1, 1]) / 2
    v2t = -(columns[0, 0] + columns[1, 1]) / 2
    assert_close(loss(scores, positives), (t2v + v2t) / 2)
    assert loss(scores, torch.zeros_like(positives)) == 0


def test_the_scale_is_bounded_and_comes_back() -> None:
    loss = SoftmaxLoss(logit_scale=7.0)
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    loss(scores, torch.eye(4, dtype=torch.bool)).backward()
    assert_close(loss.logit_scale.detach(), torch.tensor(math.log(100.0)))
    assert loss.logit_scale.grad is not None
    assert loss.logit_scale.grad.abs() > 0


def test_other_bounds_hold_on_both_sides() -> None:
    loss = SoftmaxLoss(logit_scale=7.0, bounds=(0.0, math.log(200.0)))
    assert_close(loss.scale().detach(), torch.tensor(200.0))
    loss.logit_scale.data.fill_(-3.0)
    loss.scale().backward()
    assert loss.logit_scale.item() == 0.0
    assert_close(loss.logit_scale.grad, torch.tensor(1.0))


def test_evaluation_leaves_the_parameter_alone() -> None:
    loss = SoftmaxLoss(logit_scale=7.0).eval()
    assert float(loss.scale().detach()) < 100.1
    assert float(loss.logit_scale.detach()) == 7.0


def test_extreme_scores_stay_finite() -> None:
    loss = SoftmaxLoss()
    scores = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], requires_grad=True)
    value = loss(scores, torch.eye(2, dtype=torch.bool))
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
