"""CLIP-ViP's proxy attention equals one dense attention under its mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from double_precision import EXACT, matrix, random, sentences_of, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.blocks import Attention
from eaglenet.encoders.video_tower import VideoProxies, grouped_attention
from eaglenet.methods import METHODS
from eaglenet.methods.clipvip import CLIPViP
from reference import clipvip as reference
from reference.arithmetic import contrastive, cosine, part, weights_of


def make(**changes: object) -> CLIPViP:
    torch.manual_seed(0)
    spec = METHODS["clipvip"]
    config = spec.config_class(**{"num_frames": 3, "num_positions": 3, "num_proxies": 2, **changes})
    method = shake(spec.build(config, small_clip()))
    assert isinstance(method, CLIPViP)
    return method


@torch.no_grad()
def test_the_score_equals_the_loops_over_a_dense_masked_sequence() -> None:
    method = make()
    text = TextFeatures(random(4, 8, seed=1))
    clips = small_clips(2, 3)
    weights = weights_of(method)
    vision = part(weights, "encoder.vision")
    patches = method.encoder.vision.patch_embedding(clips.frames.flatten(0, 1))
    vectors, frame_means = [], []
    for video in patches.unflatten(0, (2, 3)).numpy():
        frames = [list(frame) for frame in video]
        states = reference.tower(
            frames, vision, part(weights, "proxies"), num_heads=2, num_layers=2
        )
        vectors.append(reference.project(states[0], vision))
        projected = [reference.project(state, vision) for state in states[2:]]
        frame_means.append([sum(projected[row : row + 4]) / 4 for row in (0, 4, 8)])
    expected = [[cosine(sentence, vector) for vector in vectors] for sentence in sentences_of(text)]
    features = method.encode_video(clips)
    torch.testing.assert_close(method.score(text, features), matrix(expected), **EXACT)
    for video, means in enumerate(frame_means):
        for frame, mean in enumerate(means):
            torch.testing.assert_close(features.frames[video, frame], torch.tensor(mean), **EXACT)


@torch.no_grad()
def test_the_loss_sums_both_directions() -> None:
    """Cross-entropy of rows plus that of columns: twice their mean."""
    method = make()
    text, video = TextFeatures(random(2, 8, seed=1)), method.encode_video(small_clips(2, 3))
    losses = method.losses(text, video, torch.eye(2, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = 2 * contrastive(method.score(text, video).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


def test_who_sees_whom_for_two_frames_of_two_patches() -> None:
    assert reference.attention_mask(1, 2, 2).astype(int).tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 1],
        [1, 0, 0, 1, 1],
    ]


@torch.no_grad()
def test_two_attention_calls_equal_one_with_the_mask() -> None:
    attention = Attention(12, 3).double()
    proxies, patches = random(2, 4, 12, seed=1), random(2, 3, 5, 12, seed=2)
    frames_mask = torch.tensor([[True, True, True], [True, True, False]])
    dense = torch.tensor(reference.attention_mask(4, 3, 5))
    tokens = torch.cat([proxies, patches.flatten(1, 2)], dim=1)
    query, key, value = (
        row.unflatten(-1, (3, 4)).transpose(1, 2) for row in attention.qkv(tokens).chunk(3, dim=-1)
    )
    valid = torch.cat([torch.ones(2, 4).bool(), frames_mask.repeat_interleave(5, dim=1)], dim=1)
    outputs = F.scaled_dot_product_attention(
        query, key, value, attn_mask=dense & (valid[:, None, None, :] | ~valid[:, None, :, None])
    )
    expected = attention.out(outputs.transpose(1, 2).flatten(2))
    got_proxies, got_patches = grouped_attention(
        attention,
        proxies,
        patches,
        frames_mask[..., None].expand(-1, -1, patches.shape[2]),
        has_whole_groups=True,
    )
    torch.testing.assert_close(got_proxies, expected[:, :4], **EXACT)
    is_real = frames_mask[..., None, None]
    torch.testing.assert_close(
        got_patches * is_real, expected[:, 4:].unflatten(1, (3, 5)) * is_real, **EXACT
    )


@torch.no_grad()
def test_frame_positions_are_stretched_over_the_real_frames() -> None:
    proxies = VideoProxies(2, num_positions=4).double()
    proxies.frame_positions.copy_(torch.tensor([[0.0, 0], [1, 10], [2, 20], [3, 30]]))
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    places = proxies.frame_embedding(mask)[..., 0]
    assert places[0].tolist() == [0, 1, 2, 3]
    assert places[1, :2].tolist() == [0.5, 2.5]
    table = proxies.frame_positions.T[None]
    for count in (1, 3, 7):
        positions = F.interpolate(table, size=count, mode="linear")[0].T
        got = proxies.frame_embedding(torch.ones(1, count, dtype=torch.bool))[0]
        torch.testing.assert_close(got, positions)


def test_the_table_has_twelve_rows_of_zero_whatever_the_number_of_frames() -> None:
    spec = METHODS["clipvip"]
    method = spec.build(spec.config_class(num_frames=32), small_clip())
    assert isinstance(method, CLIPViP)
    assert method.proxies.frame_positions.shape == (12, 12)
    assert not method.proxies.frame_positions.any()
    assert method.proxies.added.shape == (3, 12)


def test_the_logit_scale_stays_between_one_and_two_hundred() -> None:
    method = make().train()
    for start, is_real in ((-1.0, 1.0), (4.6, 99.484), (7.0, 200.0)):
        method.loss.logit_scale.data.fill_(start)
        torch.testing.assert_close(method.loss.scale().item(), is_real, rtol=1e-4, atol=0.0)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_proxies is 0"):
        make(num_proxies=0)


def test_only_the_first_blocks_are_recomputed_where_a_number_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from eaglenet.encoders import video_tower

    calls = []

    def counting(function: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(function)
        return function(*arguments)

    monkeypatch.setattr(video_tower, "checkpoint", counting)
    method = make().train()
    method.encoder.set_gradient_checkpointing(1)
    method.encode_video(small_clips(2, 3))
    assert len(calls) == 1


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    gradients = []
    for is_on in (False, True):
        method = make().train()
        method.encoder.set_gradient_checkpointing(is_on)
        method.encode_video(small_clips(2, 3)).video.square().sum().backward()  # type: ignore[union-attr]
        gradients.append(method.encoder.vision.blocks[0].mlp.up.weight.grad)  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients, **EXACT)


def test_features_made_elsewhere_are_refused() -> None:
    method = make()
    foreign = VideoFeatures(random(2, 3, 8, seed=1), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="have no video vector"):
        method.score(TextFeatures(random(1, 8, seed=2)), foreign)
    with pytest.raises(UsageError, match="reads Clips"):
        method.encode_video(foreign)
