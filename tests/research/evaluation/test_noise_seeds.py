"""Methods with evaluation noise: their own bank is the seed in their config, others give spread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.layers import stochastic_text
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.research.evaluation.evaluate import evaluate
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.scoring import score_all


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


def toy_features(num_texts: int = 9, num_videos: int = 5) -> tuple[TextFeatures, VideoFeatures]:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(num_videos, 7, 16, generator=generator)
    mask = torch.ones(num_videos, 7, dtype=torch.bool)
    return TextFeatures(torch.randn(num_texts, 16, generator=generator)), VideoFeatures(
        frames, mask
    )


def test_the_noise_of_pairs_is_mixed_as_split_mix_does() -> None:
    # The first three numbers of SplitMix64 from the state 0, by its reference implementation.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    mixed = stochastic_text._mix(torch.arange(1, 4))
    assert [value % 2**64 for value in mixed.tolist()] == expected


@pytest.mark.parametrize(
    ("prior", "mean", "deviation"), [("normal", 0, 1), ("uniform", 0.5, 0.2887)]
)
def test_the_noise_of_pairs_follows_the_prior(
    prior: stochastic_text.Prior, mean: float, deviation: float
) -> None:
    keys = torch.arange(20), torch.arange(30)
    noise = stochastic_text.pair_noise(*keys, 5, 64, prior=prior, seed=3)
    assert noise.shape == (20, 30, 5, 64)
    assert noise.mean().item() == pytest.approx(mean, abs=0.01)
    assert noise.std().item() == pytest.approx(deviation, abs=0.01)
    # No two pairs, candidates or dimensions go together.
    flat = noise.flatten(0, 1).flatten(1)
    correlation = torch.corrcoef(flat[:200])
    assert correlation.fill_diagonal_(0).abs().max() < 0.25  # 320 numbers each: 4.5 deviations
    other = stochastic_text.pair_noise(*keys, 5, 64, prior=prior, seed=4)
    assert (noise == other).float().mean() < 1e-4


@pytest.mark.parametrize("name", ["eaglenet", "tmass"])
def test_noise_of_its_own_depends_on_the_pair_alone(name: str) -> None:
    method = build(name)
    text, video = toy_features()
    whole = score_all(method, text, video, pair_noise=0)
    tiles = score_all(method, text, video, pair_noise=0, tile_texts=2, tile_videos=3)
    torch.testing.assert_close(tiles, whole)
    alone = score_all(method, text[4:5], video[2:3], pair_noise=0)
    torch.testing.assert_close(alone, whole[4:5, 2:3])
    assert (score_all(method, text, video, pair_noise=1) != whole).all()
    assert (score_all(method, text, video) != whole).all()
    noise = method.pair_noise(text, video, 0)
    torch.testing.assert_close(method.score(text, video, noise), whole)
    assert not torch.allclose(noise[0, 0], noise[0, 1])
    assert not torch.allclose(noise[0, 0], noise[1, 0])


def test_an_evaluation_with_noise_of_each_pair_says_so() -> None:
    method = build("eaglenet")
    generator = torch.Generator().manual_seed(1)
    texts = TextFeatures(torch.randn(5, 10, generator=generator))
    frames = torch.randn(5, 7, 12, generator=generator)
    videos = VideoFeatures(frames, torch.ones(5, 7, dtype=torch.bool))
    options = EvaluationOptions(noise_seeds=(0, 1, 2), pair_noise=True)
    result = evaluate(method, texts, videos, torch.arange(5), "toy", options)
    assert "each pair has its own candidate noise" in str(result)
    assert result.noise is not None
    assert result.noise.metrics[0] == result.metrics


@pytest.mark.parametrize(
    "options", [EvaluationOptions(noise_seeds=(0, 1)), EvaluationOptions(sinkhorn=5)]
)
def test_what_a_method_lacks_is_refused_before_anything_is_encoded(
    options: EvaluationOptions,
) -> None:
    def texts() -> Iterator[TextFeatures]:
        raise AssertionError("encoding has begun")
        yield

    with pytest.raises(UsageError, match="xpool has no"):
        evaluate(build("xpool"), texts(), texts(), torch.arange(2), "toy", options)


def test_noise_of_each_pair_is_refused_where_there_is_none() -> None:
    text, video = toy_features()
    with pytest.raises(UsageError, match="xpool has no evaluation noise"):
        score_all(build("xpool"), text, video, pair_noise=0)
    with pytest.raises(UsageError, match="reference back end in fp32"):
        score_all(build("eaglenet"), text, video, pair_noise=0, precision="bf16")
