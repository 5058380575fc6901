"""CE against loops; experts that are missing; gating at once and one after the other."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from expert_inputs import (
    EXACT,
    VIDEOS,
    WIDTHS,
    build,
    experts_of,
    matrix,
    random,
    texts,
    videos,
    words_of,
)

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import ExpertConfig, ExpertEncoder
from eaglenet.layers.experts import Vlad
from eaglenet.methods import METHODS, Method
from reference import ce as reference
from reference.arithmetic import weights_of
from reference.experts import margin, mixture

CENTRES = {"colour": 2}


def expected(method: Method, text: TextFeatures, video: VideoFeatures) -> torch.Tensor:
    weights = weights_of(method)
    sides = [
        reference.video_side(experts, weights, CENTRES, sequential=method.config.sequential)
        for experts in experts_of(video)
    ]
    rows = []
    for words in words_of(text):
        heads, shares = reference.text_side(words, weights, len(WIDTHS))
        rows.append([mixture(heads, shares, side) for side in sides])
    return matrix(rows)


def ce(**changes: object) -> Method:
    return build("ce", text_centres=3, text_ghosts=1, centres=CENTRES, **changes)


@pytest.mark.parametrize("sequential", [False, True])
@torch.no_grad()
def test_the_score_equals_the_loops(sequential: bool) -> None:
    method, text, video = ce(sequential=sequential), texts(), videos()
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, expected(method, text, video), **EXACT)


@torch.no_grad()
def test_one_after_the_other_is_not_all_at_once() -> None:
    text, video = texts(), videos()
    scores = [
        method.score(method.encode_text(text), method.encode_video(video))
        for method in (ce(), ce(sequential=True))
    ]
    assert not torch.allclose(*scores, atol=1e-4)


@torch.no_grad()
def test_the_loss_is_the_mean_of_all_hinge_terms() -> None:
    method, text, video = ce(margin=0.3), texts(VIDEOS), videos()
    losses = method.losses(
        method.encode_text(text), method.encode_video(video), torch.eye(VIDEOS, dtype=torch.bool)
    )
    assert losses.total.item() == pytest.approx(
        margin(expected(method, text, video).numpy(), 0.3), abs=1e-9
    )


def test_a_missing_expert_teaches_nothing() -> None:
    """Its zeros reach neither a gradient nor a running statistic."""
    method = ce().train()
    assert method.encoder is not None
    video = videos()
    assert video.experts is not None
    expert = video.experts["sound"]
    missing = dataclasses.replace(expert, mask=torch.zeros_like(expert.mask))
    video = dataclasses.replace(video, experts={**video.experts, "sound": missing})
    before = {name: value.clone() for name, value in method.named_buffers()}
    text, video_features = method.encode_text(texts(VIDEOS)), method.encode_video(video)
    method.losses(text, video_features, torch.eye(VIDEOS, dtype=torch.bool)).total.backward()
    gradients = dict(method.named_parameters())
    for name in ("maps.sound.weight", "gate.maps.2.weight", "gate.own_norms.2.weight"):
        gradient = gradients[name].grad
        assert gradient is None or not gradient.any()
    place = "gate.own_norms.2.running_mean"
    assert torch.equal(dict(method.named_buffers())[place], before[place])
    assert gradients["maps.colour.weight"].grad.any()  # type: ignore[union-attr]


@torch.no_grad()
def test_the_product_of_two_vlads_is_the_mean_cosine_of_their_centres() -> None:
    layer = Vlad(6, 3, num_ghosts=1).double().eval()
    first, second = random(1, 4, 6, seed=1), random(1, 5, 6, seed=2)
    outputs = [
        layer(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool)) for tokens in (first, second)
    ]
    parts = [output.view(3, 6) for output in outputs]
    cosines = torch.nn.functional.cosine_similarity(*parts, dim=-1)
    torch.testing.assert_close((outputs[0] * outputs[1]).sum(), cosines.mean())


def test_centres_of_an_expert_that_is_not_there_are_an_error() -> None:
    encoder = ExpertEncoder(ExpertConfig(WIDTHS, "scene", text_dim=9, words_dim=10, dim=8))
    for name in ("smell", "scene"):
        with pytest.raises(ConfigError, match="expected experts among"):
            METHODS["ce"].build(METHODS["ce"].config_class(centres={name: 2}), encoder)
