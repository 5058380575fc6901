"""TS2-Net: shifted tokens, selected tokens and frame weights equal loops."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from double_precision import (
    DIM,
    EXACT,
    FRAMES,
    VIDEOS,
    frames_of,
    matrix,
    random,
    sentences_of,
    shake,
    texts,
    videos,
)
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.blocks import shift_tokens
from eaglenet.methods import METHODS
from eaglenet.methods.ts2net import TS2Net, frame_weighted_similarity
from reference import ts2net as reference
from reference.arithmetic import contrastive, part, weights_of

PATCHES = 10


def make(**changes: object) -> TS2Net:
    torch.manual_seed(0)
    spec = METHODS["ts2net"]
    # 24 pixels in patches of 8: 9 patches and the class token, enough for the shift.
    encoder = small_clip(image_size=24, layers=3)
    method = shake(spec.build(spec.config_class(num_layers=2, num_heads=2, **changes), encoder))
    assert isinstance(method, TS2Net)
    return method


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method = make(num_tokens=2)
    text = texts()
    patches = random(VIDEOS, FRAMES, PATCHES, DIM, seed=6)
    video = dataclasses.replace(videos(), frames=patches[:, :, 0], patches=patches)
    weights = weights_of(method)
    tokens = [
        reference.frame_tokens(list(frames), weights, count=2, num_heads=2, num_layers=2)
        for frames in frames_of(video, "patches")
    ]
    expected = [
        [reference.similarity(sentence, frames) for frames in tokens]
        for sentence in sentences_of(text)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_the_scores_of_the_patches_equal_the_loops() -> None:
    """Down to the last tanh, which keeps every order and so hides in the choice of the best."""
    method = make()
    patches = random(FRAMES, PATCHES, DIM, seed=6)
    weights = part(weights_of(method), "selection")
    expected = [reference.token_scores(list(frame.numpy()), weights) for frame in patches]
    torch.testing.assert_close(method.selection.scores(patches), matrix(expected), **EXACT)


@torch.no_grad()
def test_the_loss_is_that_of_the_scores_in_both_directions() -> None:
    method = make(num_tokens=2)
    patches = random(VIDEOS, FRAMES, PATCHES, DIM, seed=6)
    video = dataclasses.replace(videos(), frames=patches[:, :, 0], patches=patches)
    text = texts(VIDEOS)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = contrastive(method.score(text, video).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


def test_frame_weights_by_hand() -> None:
    sentence = torch.tensor([[1.0, 0.0]])
    frames = torch.tensor([[[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]]])
    mask = torch.tensor([[True, True, False]])
    score = frame_weighted_similarity(sentence, frames, mask, sharpness=4.0)
    # cosines .6 and .8 have length 1; weights are e^2.4 and e^3.2 over their sum.
    weight = 1 / (1 + torch.tensor(0.8).exp())
    torch.testing.assert_close(score[0, 0], weight * 0.6 + (1 - weight) * 0.8)


def test_shifted_positions_of_a_vit_b32_frame() -> None:
    """7 x 7 patches: column 0 of every row looks back, column 3 looks ahead, nothing else moves."""
    tokens = torch.arange(3.0)[:, None, None].expand(3, 50, 2).contiguous()
    shifted_tokens = shift_tokens(tokens, 3)
    grid = shifted_tokens[:, 1:, 0].reshape(3, 7, 7)
    assert (shifted_tokens[:, 0, 0] == torch.arange(3.0)).all()
    assert grid[:, 0, 0].tolist() == [0, 0, 1]
    assert grid[:, 0, 3].tolist() == [1, 2, 2]
    assert (grid[:, :, 0] == grid[:, :1, 0]).all()
    assert (grid[:, :, 3] == grid[:, :1, 3]).all()
    for column in (1, 2, 4, 5, 6):
        assert (grid[:, :, column] == torch.arange(3.0)[:, None]).all()


def test_nothing_is_shifted_between_a_real_and_a_padded_frame() -> None:
    tokens = torch.arange(4.0)[:, None, None].expand(4, 50, 2).contiguous()
    mask = torch.tensor([[True, True, False, False]])
    masked_tokens = shift_tokens(tokens, 4, mask)[:2]
    assert torch.equal(masked_tokens, shift_tokens(tokens[:2], 2))


def test_only_the_last_two_blocks_are_shifted() -> None:
    method = make()
    assert [block.token_shift for block in method.encoder.vision.blocks] == [  # type: ignore[attr-defined]
        False,
        True,
        True,
    ]


@torch.no_grad()
def test_selection_is_hard_and_repeatable_in_evaluation() -> None:
    method = make().float()
    clips = small_clips(2, 3, size=24)
    assert torch.equal(method.encode_video(clips).tokens, method.encode_video(clips).tokens)  # type: ignore[arg-type]


@torch.no_grad()
def test_sampled_selection_in_evaluation_draws_what_its_seed_says() -> None:
    settings = {"hard_selection": False, "sigma": 0.5, "num_samples": 7}
    clips = small_clips(2, 3, size=24)
    sampling_method, other = make(**settings).float(), make(noise_seed=1, **settings).float()
    first = sampling_method.encode_video(clips).tokens
    assert torch.equal(sampling_method.encode_video(clips).tokens, first)  # type: ignore[arg-type]
    torch.testing.assert_close(sampling_method.encode_video(clips[1]).tokens, first[1:])  # type: ignore[index]
    assert not torch.equal(other.encode_video(clips).tokens, first)  # type: ignore[arg-type]
    sampling_method.train()
    assert not torch.equal(
        sampling_method.encode_video(clips).tokens, sampling_method.encode_video(clips).tokens
    )  # type: ignore[arg-type]


def test_features_without_tokens_and_patches_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs tokens or patches"):
        make().score(texts(), videos())


def test_more_shifted_blocks_than_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="the vision tower has 3 blocks"):
        make(num_shifted_blocks=4)


def test_keeping_more_patches_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="a frame has 9 patches; choose 1 to 9"):
        make(num_tokens=10)


def test_long_videos_get_positions_for_every_selected_token() -> None:
    assert len(make(num_frames=64).temporal.stack.positions) == 256
