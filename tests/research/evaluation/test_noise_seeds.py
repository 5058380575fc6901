"""Methods with evaluation noise: their own bank is the seed in their config, others give spread."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.research.evaluation.evaluate import evaluate
from eaglenet.research.evaluation.metrics import EvaluationOptions


def build(name: str) -> Method:
    spec = METHODS[name]
    encoder = FeatureEncoder(FeatureConfig(text_dim=10, frame_dim=12, dim=16))
    width = {"dim": 16} if "dim" in spec.config_class.__dataclass_fields__ else {}
    return spec.build(spec.config_class(num_frames=7, **width), encoder).eval()


@pytest.mark.parametrize("name", ["eaglenet", "tmass"])
def test_the_seed_of_the_config_gives_the_models_own_noise(name: str) -> None:
    method = build(name)
    own = method.noise.clone()
    method.reseed(5)
    assert not torch.equal(method.noise, own)
    method.reseed(method.config.noise_seed)
    assert torch.equal(method.noise, own)


@pytest.mark.parametrize("name", ["eaglenet", "tmass"])
def test_evaluation_over_seeds_leaves_the_noise_as_it_was(name: str) -> None:
    method = build(name)
    own = method.noise.clone()
    generator = torch.Generator().manual_seed(1)
    texts = TextFeatures(torch.randn(9, 10, generator=generator))
    frames = torch.randn(5, 7, 12, generator=generator)
    videos = VideoFeatures(frames, torch.ones(5, 7, dtype=torch.bool))
    owners = torch.tensor([0, 1, 2, 3, 4, 4, 0, 1, 2])
    result = evaluate(method, texts, videos, owners, "toy", EvaluationOptions(noise_seeds=(1, 2)))
    assert torch.equal(method.noise, own)
    assert result.noise is not None
    assert result.noise.seeds == (1, 2)
