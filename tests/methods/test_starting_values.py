"""Settings and first weights of the compared methods, as their papers and code give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_towers import small_clip

from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.encoders.video_tower import VideoProxies
from eaglenet.layers.late_interaction import TokenWeights
from eaglenet.layers.token_selection import TokenSelection
from eaglenet.layers.transformer import CrossEncoder, TransformerStack
from eaglenet.methods import METHODS
from eaglenet.methods.tvproxynet import ProxyDecoder

DEFAULTS: dict[str, dict[str, Any]] = {
    "clip4clip": {"num_layers": 4, "num_positions": 77, "dropout": 0.1},
    "xpool": {"dropout": 0.3},
    "tmass": {
        "dropout": 0.3,
        "prior": "uniform",
        "noise_scale": 1.0,
        "num_candidates": 20,
        "support_weight": 0.8,
    },
    "ts2net": {
        "num_shifted_blocks": 2,
        "num_tokens": 3,
        "num_samples": 500,
        "sigma": 0.05,
        "hard_selection": True,
        "sharpness": 4.0,
        "num_layers": 4,
    },
    "clipvip": {"num_proxies": 4, "num_positions": 12},
    "tvproxynet": {
        "num_read": 4,
        "num_layers": 2,
        "dropout": 0.1,
        "proxy_weight": 0.5,
        "positive_weight": 0.25,
    },
    "video_colbert": {
        "num_query_tokens": 32,
        "num_expansion_tokens": 2,
        "num_layers": 4,
        "frame_weight": 1.0,
        "video_weight": 1.0,
    },
    "drl": {"num_layers": 4, "decorrelation": 0.001},
    "tempme": {"rank": 8, "frozen": True, "across": 0.3, "within": 0.1},
    "ucofia": {
        "num_words": 32,
        "num_tokens": 3,
        "num_shifted_blocks": 2,
        "temperature": 0.01,
        "num_layers": 4,
    },
    "prost": {
        "num_phrases": 28,
        "num_objects": 12,
        "num_events": 3,
        "num_layers": 2,
        "reach": 0.2,
        "num_shifted_blocks": 2,
    },
    "glscl": {
        "num_concepts": 8,
        "num_decoder_layers": 3,
        "feed_forward": 2048,
        "temperature": 3.0,
        "local_weight": 0.5,
        "local_at_inference": False,
        "consistency": 0.02,
        "diversity": 1e-4,
        "margin": 0.1,
    },
}


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_defaults_are_those_of_the_original(name: str) -> None:
    config = METHODS[name].config_class()
    assert config.num_frames == 12
    assert {key: getattr(config, key) for key in DEFAULTS[name]} == DEFAULTS[name]


def stack(dim: int) -> TransformerStack:
    return TransformerStack(dim, num_layers=2, num_heads=1, num_positions=77)


@pytest.mark.parametrize(
    "kind",
    [
        stack,
        lambda dim: CrossEncoder(stack(dim)),
        TokenSelection,
        TokenWeights,
    ],
)
def test_new_matrices_have_a_deviation_of_two_hundredths_and_biases_are_zero(
    kind: Any,
) -> None:
    torch.manual_seed(0)
    module = kind(64)
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            # The smallest has 32 numbers: its deviation is right to about an eighth.
            assert 0.01 < parameter.std().item() < 0.03, name
        elif name.endswith("bias"):
            assert not parameter.any(), name


def test_expansion_tokens_start_small_and_proxies_as_long_as_the_width() -> None:
    torch.manual_seed(0)
    encoder = FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=256))
    spec = METHODS["video_colbert"]
    method = spec.build(spec.config_class(num_layers=1), encoder)
    assert 0.015 < method.expansion.std().item() < 0.025  # type: ignore[union-attr,operator]
    proxies = VideoProxies(256)
    assert proxies.added.shape == (3, 256)
    assert 0.85 < proxies.added.std().item() < 1.15
    assert not proxies.frame_positions.any()


def test_the_dash_starts_between_nought_and_one() -> None:
    spec = METHODS["tvproxynet"]
    starts = []
    for seed in range(12):
        torch.manual_seed(seed)
        method = spec.build(spec.config_class(num_layers=1), small_clip())
        starts.append(method.theta.item())  # type: ignore[union-attr,operator]
    assert min(starts) >= 0
    assert max(starts) < 1
    assert max(starts) - min(starts) > 0.3
    assert method.proxy_projection.bias is None  # type: ignore[union-attr]
    assert len(ProxyDecoder(8, num_tokens=4).layers) == 2


def test_the_sigmoid_loss_starts_from_siglip_and_the_others_from_clip() -> None:
    encoder = FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=64))
    encoder.logit_scale.data.fill_(3.5)
    for name in ("clip4clip", "xpool", "tmass", "drl"):
        method = METHODS[name].build(METHODS[name].config_class(), encoder)
        assert method.loss.logit_scale.item() == 3.5  # type: ignore[union-attr]
    spec = METHODS["video_colbert"]
    loss: Any = spec.build(spec.config_class(), encoder).loss
    assert loss.temperature.item() == pytest.approx(4.77)
    assert loss.bias.item() == pytest.approx(-12.93)
