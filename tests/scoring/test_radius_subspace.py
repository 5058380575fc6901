"""Projections of candidates through a small subspace of radii."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.scoring import choose
from eaglenet.scoring.eaglenet import factorised
from eaglenet.scoring.eaglenet.factorised import RadiusSubspace, candidates, project_texts
from eaglenet.scoring.eaglenet.plan import Plan, plan_of

DIM, FRAMES, VIDEOS, TEXTS, CANDIDATES = 96, 5, 11, 3, 7


def make(released: bool = True) -> EagleNet:
    torch.manual_seed(0)
    shape = {"dim": DIM, "num_frames": FRAMES, "num_candidates": CANDIDATES, "num_heads": 2}
    maker = EagleNetConfig.for_script if released else EagleNetConfig
    encoder = FeatureEncoder(FeatureConfig(text_dim=DIM, frame_dim=DIM, dim=DIM))
    options = {"token_shift": False} if released else {}
    return EagleNet.build(maker(**shape, **options), encoder).eval()


def radii_of(plan: Plan, videos: int, scale: float = 1.0) -> Tensor:
    cosines = 0.3 + 0.1 * torch.randn(videos, TEXTS, FRAMES)
    return (scale * cosines @ plan.radius + (plan.radius_bias if scale == 1.0 else 0.0)).exp()


@pytest.mark.parametrize("released", [True, False])
def test_scores_are_those_of_the_method(released: bool) -> None:
    """Videos that were met before and new ones, several texts at once."""
    method = make(released)
    scorer = choose(method, VideoFeatures(torch.randn(1, FRAMES, DIM), torch.ones(1, FRAMES) > 0))
    scorer.allow_shortcuts()
    for _ in range(4):
        video = VideoFeatures(torch.randn(VIDEOS, FRAMES, DIM), torch.rand(VIDEOS, FRAMES) > 0.2)
        text = TextFeatures(torch.randn(TEXTS, DIM))
        with torch.no_grad():
            scores = scorer.score(text, scorer.prepare(video))
            expected = method.score(text, video)
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    size = scorer.subspace.size  # type: ignore[attr-defined]
    assert size is not None
    assert 0 < size < DIM // 2


def test_the_projection_is_that_of_the_candidates() -> None:
    plan = plan_of(make())
    assert plan is not None
    space = RadiusSubspace(plan)
    sentence = torch.randn(TEXTS, DIM)
    for videos in (2, VIDEOS, 6):
        radii = radii_of(plan, videos)
        projections = space.project(sentence, radii)
        assert projections is not None
        expected = project_texts(plan.graph.layers[0], candidates(plan, sentence, radii))
        assert projections.shape == expected.shape
        # The part that is left out is 1e-3 of a radius at most.
        assert (projections - expected).norm() <= 1e-3 * expected.norm()
    size = space.size
    space.project(sentence, radii)
    assert space.size == size, "radii that were met need no new vectors"


def test_radii_of_no_small_subspace_are_left_to_the_whole_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(make())
    assert plan is not None
    monkeypatch.setattr(factorised, "MAX_VECTORS", 4)
    space = RadiusSubspace(plan)
    sentence = torch.randn(TEXTS, DIM)
    assert space.project(sentence, torch.rand(VIDEOS, TEXTS, DIM)) is None
    assert space.size is None
    assert space.project(sentence, radii_of(plan, 2)) is None
