"""CLIP4Clip's four heads equal loops written from their formulas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from double_precision import (
    EXACT,
    VIDEOS,
    build,
    frames_of,
    matrix,
    sentences_of,
    shake,
    texts,
    videos,
)
from small_towers import small_clip, small_clips

import eaglenet
from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, TextFeatures, VideoFeatures
from eaglenet.layers.transformer import copy_text_tower
from eaglenet.methods import METHODS
from eaglenet.methods.clip4clip import CLIP4Clip, CLIP4ClipConfig
from eaglenet.research.training.optimizer import freeze_parameters, is_of_encoder
from reference import clip4clip as reference
from reference.arithmetic import contrastive, weights_of

TRANSFORMER = {"num_heads": 2, "num_layers": 2}


def test_the_mean_head_has_no_parameters_of_its_own() -> None:
    method = build("clip4clip")
    names = [name for name, _ in method.named_parameters() if not name.startswith("encoder.")]
    assert names == ["loss.logit_scale"]


def test_mean_pooling_of_two_frames_by_hand() -> None:
    method = build("clip4clip")
    sentence = torch.zeros(1, 8, dtype=torch.float64)
    sentence[0, 0] = 3.0
    frames = torch.zeros(1, 3, 8, dtype=torch.float64)
    frames[0, 0, 0], frames[0, 1, 1], frames[0, 2, 0] = 5.0, 0.1, -7.0
    mask = torch.tensor([[True, True, False]])
    score = method.score(TextFeatures(sentence), VideoFeatures(frames, mask))
    # unit((1, 1) / 2) against (1, 0); the frames' lengths do not matter, nor does the third.
    torch.testing.assert_close(score.item(), 0.5**0.5)


@pytest.mark.parametrize("head", ["mean", "lstm", "transformer", "tight"])
@torch.no_grad()
def test_the_score_equals_the_loops(head: str) -> None:
    method = build("clip4clip", head=head, **TRANSFORMER)
    text, video = texts(), videos()
    expected = []
    for sentence in sentences_of(text):
        row = []
        for frames in frames_of(video):
            if head == "mean":
                row.append(reference.loose_similarity(sentence, frames))
                continue
            weights = weights_of(method.head)  # type: ignore[arg-type]
            if head == "tight":
                row.append(reference.tight_similarity(sentence, frames, weights, **TRANSFORMER))
            elif head == "lstm":
                frames = reference.sequence_lstm(frames, weights)
                row.append(reference.loose_similarity(sentence, frames))
            else:
                frames = reference.sequence_transformer(frames, weights, **TRANSFORMER)
                row.append(reference.loose_similarity(sentence, frames))
        expected.append(row)
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)
    features = method.encode_video(video)
    torch.testing.assert_close(method.score(text, features), matrix(expected), **EXACT)


@pytest.mark.parametrize("head", ["mean", "lstm", "transformer", "tight"])
@torch.no_grad()
def test_the_loss_of_every_head_equals_the_loops(head: str) -> None:
    """The cross encoder's score is a logit already: its scale is 1."""
    method = build("clip4clip", head=head, **TRANSFORMER)
    text, video = texts(VIDEOS), videos()
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = 1.0 if head == "tight" else float(method.loss.scale())  # type: ignore[operator,union-attr]
    expected = contrastive(method.score(text, video).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


@torch.no_grad()
def test_the_number_of_pairs_at_once_changes_nothing() -> None:
    whole = build("clip4clip", head="tight", num_layers=1)
    parts = build("clip4clip", head="tight", num_layers=1, pairs_at_once=4)
    torch.testing.assert_close(
        whole.score(texts(), videos()), parts.score(texts(), videos()), **EXACT
    )


def test_temporal_blocks_start_from_the_text_tower() -> None:
    from small_towers import small_clip

    from eaglenet.methods import METHODS

    spec = METHODS["clip4clip"]
    encoder = small_clip()
    method = spec.build(spec.config_class(head="transformer", num_layers=2), encoder)
    assert isinstance(method, CLIP4Clip)
    block = method.head.stack.blocks[1]  # type: ignore[union-attr]
    source = encoder.text.blocks[1]
    assert torch.equal(block.in_projection.weight, source.attention.qkv.weight)
    assert torch.equal(block.contract.bias, source.mlp.down.bias)
    positions = method.head.stack.positions  # type: ignore[union-attr]
    assert torch.equal(positions[:40], encoder.text.positional_embedding)


def test_an_encoder_without_a_text_tower_leaves_the_stack_alone() -> None:
    method = build("clip4clip", head="transformer", num_layers=1)
    before = weights_of(method.head)  # type: ignore[arg-type]
    assert not copy_text_tower(method.encoder, method.head.stack)  # type: ignore[union-attr]
    after = weights_of(method.head)  # type: ignore[arg-type]
    assert all((before[name] == after[name]).all() for name in before)


def test_an_unknown_head_names_the_known_ones() -> None:
    config = CLIP4ClipConfig()
    # Past the shape checker of the tests, which refuses it first.
    object.__setattr__(config, "head", "max")
    with pytest.raises(ConfigError, match="'mean' or 'lstm' or 'transformer' or 'tight'"):
        config.__post_init__()


def test_more_frames_than_positions_are_refused() -> None:
    method = build("clip4clip", head="transformer", num_layers=1, num_positions=3)
    with pytest.raises(ConfigError, match="4 tokens, but only 3 positions"):
        method.encode_video(videos())


def with_stem(stem: str) -> CLIP4Clip:
    method = METHODS["clip4clip"].build(CLIP4ClipConfig(stem=stem), small_clip()).eval()  # type: ignore[arg-type]
    assert isinstance(method, CLIP4Clip)
    return method


@torch.no_grad()
def test_the_3d_stem_is_a_convolution_over_three_frames() -> None:
    """The kernel: 3 x patch x patch, stride 1 and padding 1 in time, CLIP's own in the middle."""
    vision = shake(with_stem("3d")).encoder.vision  # type: ignore[union-attr]
    stem, patches, side = vision.temporal_stem, vision.patch_embedding, 8
    maps = (stem.before, patches.projection, stem.after)
    kernel = torch.stack([one.weight.unflatten(1, (3, side, side)) for one in maps], dim=2)
    pixels = torch.randn(2, 5, 3, 16, 16, dtype=torch.float64)
    result = torch.nn.functional.conv3d(
        pixels.transpose(1, 2), kernel, stride=(1, side, side), padding=(1, 0, 0)
    )
    expected = result.permute(0, 2, 3, 4, 1).flatten(2, 3)
    cut = patches.cut(pixels.flatten(0, 1))
    ours = patches.projection(cut) + stem(cut, num_frames=5)
    torch.testing.assert_close(ours.unflatten(0, (2, 5)), expected, **EXACT)


@torch.no_grad()
def test_a_new_3d_stem_changes_nothing_and_a_trained_one_sees_the_neighbours(
    tmp_path: Path,
) -> None:
    plain, method, clips = with_stem("2d"), with_stem("3d"), small_clips(2, 4)
    still = plain.encode_video(clips).frames
    assert torch.equal(method.encode_video(clips).frames, still)
    stem = method.encoder.vision.temporal_stem  # type: ignore[union-attr]
    for weight in stem.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(1))
    first = method.encode_video(clips).frames
    other = clips.frames.clone()
    other[:, 3] = 255 - other[:, 3]
    second = method.encode_video(Clips(other, clips.mask, clips.seconds)).frames
    assert torch.equal(second[:, :2], first[:, :2])
    assert not torch.allclose(second[:, 2], first[:, 2])
    # What lies in a padded frame is no neighbour.
    mask = clips.mask.clone()
    mask[:, 3] = False
    short = [method.encode_video(Clips(one, mask, clips.seconds)) for one in (clips.frames, other)]
    torch.testing.assert_close(short[0].frames[:, :3], short[1].frames[:, :3])
    eaglenet.save(method, tmp_path / "model")
    again = eaglenet.load(tmp_path / "model")
    assert torch.equal(again.encode_video(clips).frames, first)


@torch.no_grad()
def test_a_frame_that_is_shown_again_has_its_own_neighbours_under_a_3d_stem() -> None:
    method, clips = with_stem("3d"), small_clips(2, 4)
    for weight in method.encoder.vision.temporal_stem.parameters():  # type: ignore[union-attr]
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(1))
    frames = clips.frames.clone()
    frames[:, 2] = frames[:, 1]
    first = method.encode_video(Clips(frames, clips.mask, clips.seconds)).frames
    expected = method.encoder.encode_frames(frames, clips.mask)[:, :, 0]  # type: ignore[union-attr]
    assert torch.equal(first, expected)
    assert not torch.allclose(first[:, 1], first[:, 2])


def test_the_3d_stem_has_clips_rate_and_is_not_frozen_with_embeddings() -> None:
    method = with_stem("3d")
    freeze_parameters(method, "embeddings")
    names = [name for name, _ in method.named_parameters() if "temporal_stem" in name]
    assert len(names) == 2
    assert all(is_of_encoder(name) for name in names)
    assert all(method.get_parameter(name).requires_grad for name in names)


def test_the_3d_stem_needs_a_tower_and_an_unknown_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="stem=3d works inside CLIP's vision tower"):
        build("clip4clip", stem="3d")
    config = CLIP4ClipConfig()
    object.__setattr__(config, "stem", "4d")
    with pytest.raises(ConfigError, match="stem is '4d'; expected '2d' or '3d'"):
        config.__post_init__()
