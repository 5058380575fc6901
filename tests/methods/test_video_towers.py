"""Frozen, BridgeFormer and TVMM against loops; still pictures; who learns to attend over time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from double_precision import EXACT, matrix, random, sentences_of, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS, Method
from eaglenet.methods.early.tvmm import spread_loss
from reference import space_time as reference
from reference.arithmetic import Vector, Weights, cosine, linear, part, softmax, weights_of

FRAMES = 3
TOWERS = ("frozen", "bridgeformer")


def make(name: str, **changes: Any) -> Method:
    torch.manual_seed(0)
    spec = METHODS[name]
    return spec.build(spec.config_class(**{"num_frames": FRAMES, **changes}), small_clip())


def states_of(method: Method, weights: Weights, clips: Any) -> list[list[Vector]]:
    """Hidden states of every video's tokens, by the loops."""
    vision = part(weights, "encoder.vision")
    tokens = method.encoder.vision.patch_embedding(clips.frames.flatten(0, 1))  # type: ignore[union-attr]
    videos = tokens.unflatten(0, clips.frames.shape[:2]).numpy()
    return [
        reference.tower(
            [list(frame) for frame, real in zip(video, mask, strict=True) if real],
            vision,
            part(weights, "space_time"),
            num_heads=2,
            num_layers=2,
        )
        for video, mask in zip(videos, clips.mask.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", TOWERS)
@torch.no_grad()
def test_the_score_equals_the_loops_over_a_dense_masked_sequence(name: str) -> None:
    method = shake(make(name))
    text, clips = TextFeatures(random(4, 8, seed=1)), small_clips(2, FRAMES)
    clips.mask[1, 2] = False
    weights = weights_of(method)
    vision = part(weights, "encoder.vision")
    vectors = [reference.project(states[0], vision) for states in states_of(method, weights, clips)]
    rows = [[cosine(sentence, vector) for vector in vectors] for sentence in sentences_of(text)]
    scores = method.score(text, method.encode_video(clips))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


@pytest.mark.parametrize("name", [*TOWERS, "tvmm"])
@torch.no_grad()
def test_a_new_tower_sees_a_still_picture_as_the_image_tower_does(name: str) -> None:
    method = make(name).eval()
    clips = small_clips(5, 1)
    video = method.encode_video(clips)
    pictures = method.encoder.encode_video(clips).frames[:, 0]
    vectors = video.video if video.video is not None else video.tokens[:, 0]  # type: ignore[index]
    torch.testing.assert_close(vectors, pictures, rtol=1e-4, atol=1e-5)


def gradients_of_time(start: str, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of queries and keys, and of values, of a Frozen after some steps."""
    method = make("frozen", time_start=start).train()
    text, clips = TextFeatures(random(4, 8, seed=1).float()), small_clips(4, FRAMES)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = method.losses(text, method.encode_video(clips), torch.eye(4, dtype=torch.bool))
        loss.total.backward()
        gradient = dict(method.named_parameters())["space_time.time.0.attention.qkv.weight"].grad
        assert gradient is not None
        optimizer.step()
    width = gradient.shape[0] // 3
    return gradient[: 2 * width], gradient[2 * width :]


def test_time_attention_learns_after_the_first_step_and_the_released_one_never_does() -> None:
    assert not gradients_of_time("identity", 0)[0].any()
    assert gradients_of_time("identity", 1)[0].any()
    for steps in (0, 3):
        attending, values = gradients_of_time("released", steps)
        assert not attending.any()
        assert values.any()


def test_the_loss_is_the_sum_of_both_directions_at_a_fixed_temperature() -> None:
    method = shake(make("frozen", temperature=0.2))
    text, video = TextFeatures(random(2, 8, seed=1)), method.encode_video(small_clips(2, FRAMES))
    scores = method.score(text, video).detach().numpy() / 0.2
    expected = 0.0
    for rows in (scores, scores.T):
        expected -= sum(np.log(softmax(list(row))[i]) for i, row in enumerate(rows)) / 2
    losses = method.losses(text, video, torch.eye(2, dtype=torch.bool))
    assert losses.total.item() == pytest.approx(expected, abs=1e-9)


@torch.no_grad()
def test_the_best_prototype_is_the_score_of_tvmm() -> None:
    method = shake(make("tvmm", num_prototypes=2))
    text, clips = TextFeatures(random(4, 8, seed=1)), small_clips(2, FRAMES)
    clips.mask[1, 2] = False
    weights = weights_of(method)
    vision = part(weights, "encoder.vision")
    rows: list[list[float]] = [[] for _ in range(4)]
    for states in states_of(method, weights, clips):
        tokens = [reference.layer_norm(state, part(vision, "ln_post")) for state in states]
        logits = [
            linear(
                np.maximum(linear(token, part(weights, "prototypes.hidden")), 0),
                part(weights, "prototypes.masks"),
            )
            for token in tokens
        ]
        result = [reference.project(states[0], vision)]
        for prototype in range(2):
            shares = softmax([float(row[prototype]) for row in logits])
            mean_token = np.sum(
                [s * token for s, token in zip(shares, tokens, strict=True)], axis=0
            )
            result.append(linear(mean_token, part(vision, "projection")))
        for row, sentence in zip(rows, sentences_of(text), strict=True):
            row.append(max(cosine(sentence, prototype) for prototype in result))
    scores = method.score(text, method.encode_video(clips))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


def test_equal_prototypes_cost_and_distant_ones_do_not() -> None:
    same = torch.ones(2, 3, 4)
    assert spread_loss(same, 1.0).item() == pytest.approx(1 - 0.01)
    apart = torch.tensor([[[3.0], [-3.0]]])
    assert spread_loss(apart, 1.0).item() == 0.0


@torch.no_grad()
def test_more_frames_than_the_table_has_are_an_error() -> None:
    with pytest.raises(ConfigError, match="num_frames"):
        make("frozen").encode_video(small_clips(1, FRAMES + 1))
    # BridgeFormer has no table: any number will do.
    assert make("bridgeformer").encode_video(small_clips(1, FRAMES + 4)).video is not None


def test_a_prototype_is_needed() -> None:
    with pytest.raises(ConfigError, match="num_prototypes"):
        dataclasses.replace(METHODS["tvmm"].config_class(), num_prototypes=0)


def test_on_stored_features_every_prototype_of_tvmm_has_a_share_in_the_score() -> None:
    """A text that is one of its video's frames is nearer to a mixture than to the mean."""
    torch.manual_seed(0)
    spec, encoder = METHODS["tvmm"], FeatureEncoder(FeatureConfig(8, 8, 8, identity=True))
    method = spec.build(spec.config_class(num_frames=FRAMES, num_prototypes=4), encoder)
    frames = (random(40, 1, 8, seed=1) + 0.5 * random(40, FRAMES, 8, seed=2)).float()
    video = method.encode_video(VideoFeatures(frames, torch.ones(40, FRAMES, dtype=torch.bool)))
    assert video.tokens is not None
    unit = torch.nn.functional.normalize
    result = unit(frames, dim=-1) @ unit(video.tokens, dim=-1).mT  # video, frame, prototype
    assert sorted(result.argmax(dim=-1).unique().tolist()) == [0, 1, 2, 3, 4]
