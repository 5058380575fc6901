"""TV-ProxyNet: proxies of the text towards each video, and its three losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from double_precision import EXACT, matrix, random, sentences_of, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods import METHODS
from eaglenet.methods.tvproxynet import TVProxyNet, TVProxyNetConfig
from reference import tvproxynet as reference
from reference.arithmetic import contrastive, cosine, weights_of


def make(**changes: object) -> TVProxyNet:
    torch.manual_seed(0)
    spec = METHODS["tvproxynet"]
    method = shake(spec.build(spec.config_class(**{"num_frames": 5, **changes}), small_clip()))
    assert isinstance(method, TVProxyNet)
    return method


def features(videos: int, read: int) -> VideoFeatures:
    return VideoFeatures(
        frames=random(videos, 5, 8, seed=1),
        mask=torch.ones(videos, 5, dtype=torch.bool),
        video=random(videos, 8, seed=2),
        tokens=random(videos, read, 8, seed=3),
    )


def proxies_of(method: TVProxyNet, text: TextFeatures, video: VideoFeatures) -> Any:
    config = method.config
    return [
        [
            reference.text_proxy(
                sentence,
                [token.numpy() for token in tokens],
                weights_of(method),
                num_layers=config.num_layers,
                num_read=config.num_read,
                text_sign=config.text_sign,
                leader_sign=config.leader_sign,
            )
            for tokens in video.tokens  # type: ignore[union-attr]
        ]
        for sentence in sentences_of(text)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_read": 2},
        {"dash": "linear", "num_read": 3, "text_sign": -1.0, "leader_sign": -1.0},
    ],
    ids=["theta", "two read", "linear"],
)
@torch.no_grad()
def test_the_score_equals_the_loops(changes: dict[str, Any]) -> None:
    method = make(**changes)
    text, video = TextFeatures(random(2, 8, seed=4)), features(3, method.config.num_proxies)
    proxies = proxies_of(method, text, video)
    vectors = video.video.numpy()  # type: ignore[union-attr]
    expected = [
        [
            cosine(sentence, vectors[column]) + 0.5 * cosine(proxies[row][column], vectors[column])
            for column in range(3)
        ]
        for row, sentence in enumerate(sentences_of(text))
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_the_three_losses_equal_the_loops() -> None:
    method = make()
    text, video = TextFeatures(random(3, 8, seed=4)), features(3, 4)
    proxies = proxies_of(method, text, video)
    vectors = video.video.numpy()  # type: ignore[union-attr]
    scale = float(method.loss.scale())
    scores = {
        "plain": [[cosine(row, vector) for vector in vectors] for row in sentences_of(text)],
        "proxy": [
            [cosine(proxies[row][column], vectors[column]) for column in range(3)]
            for row in range(3)
        ],
        "positive_proxy": [
            [cosine(proxies[row][row], vectors[column]) for column in range(3)] for row in range(3)
        ],
    }
    losses = method.losses(text, video, torch.eye(3, dtype=torch.bool))
    for name, values in scores.items():
        expected = contrastive(matrix(values).numpy(), scale)
        torch.testing.assert_close(losses.terms[name].item(), expected)
    assert losses.weights == {"plain": 2.0, "proxy": 1.0, "positive_proxy": 0.5}


@torch.no_grad()
def test_the_text_reads_projected_proxies_of_the_last_block() -> None:
    method = make(num_read=2)
    features = method.encode_video(small_clips(3, 5))
    proxies, _ = method.proxies(
        method.encoder.vision, small_clips(3, 5).frames, torch.ones(3, 5, dtype=torch.bool)
    )
    torch.testing.assert_close(features.tokens, method.proxy_projection(proxies), **EXACT)
    torch.testing.assert_close(
        features.video, method.encoder.vision.project(proxies[:, 0]), **EXACT
    )


def test_the_fusion_weight_is_a_setting_and_nothing_searches_it() -> None:
    assert make().config.fusion == 0.5


def test_reading_more_proxies_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are 4 proxies"):
        make(num_read=5)


def test_an_unknown_dash_names_the_known_ones() -> None:
    config = TVProxyNetConfig()
    # Past the shape checker of the tests, which refuses it first.
    object.__setattr__(config, "dash", "long")
    with pytest.raises(ConfigError, match="'theta' or 'linear'"):
        config.__post_init__()
