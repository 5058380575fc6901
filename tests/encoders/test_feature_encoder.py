"""Adapters of stored features."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.settings import from_plain
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

TEXTS, WORDS, VIDEOS, FRAMES, TEXT_DIM, FRAME_DIM, DIM = 3, 5, 2, 7, 10, 12, 16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def texts() -> TextFeatures:
    """Return features of texts and tokens, some of them padding."""
    mask = torch.arange(WORDS)[None] < torch.tensor([[2], [5], [3]])
    return TextFeatures(random(TEXTS, TEXT_DIM), random(TEXTS, WORDS, TEXT_DIM), mask)


@pytest.fixture
def videos() -> VideoFeatures:
    """Return features of frames and patches; some frames are padding."""
    mask = torch.arange(FRAMES)[None] < torch.tensor([[7], [4]])
    return VideoFeatures(
        random(VIDEOS, FRAMES, FRAME_DIM), mask, patches=random(VIDEOS, FRAMES, 4, FRAME_DIM)
    )


@pytest.mark.parametrize("scaling", ["none", "unit", "layer_norm"])
def test_features_come_out_in_the_joint_width_with_their_masks(
    scaling: str, texts: TextFeatures, videos: VideoFeatures
) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, scaling=scaling))
    text = encoder.encode_text(texts, words=True)
    video = encoder.encode_video(videos, patches=True)
    assert (text.sentence.shape, text.words.shape) == ((TEXTS, DIM), (TEXTS, WORDS, DIM))
    assert video.frames.shape == (VIDEOS, FRAMES, DIM)
    assert video.patches.shape == (VIDEOS, FRAMES, 4, DIM)
    assert torch.equal(text.words_mask, texts.words_mask)
    assert torch.equal(video.mask, videos.mask)
    assert encoder.encode_video(VideoFeatures(videos.frames, videos.mask)).patches is None


def test_the_adapter_is_a_linear_map_with_a_bias(texts: TextFeatures) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM))
    linear = encoder.text.linear
    with torch.no_grad():
        linear.bias.copy_(random(DIM))
    expected = texts.sentence @ linear.weight.T + linear.bias
    torch.testing.assert_close(encoder.encode_text(texts).sentence, expected)


def test_equal_widths_start_as_the_identity_or_stay_it(videos: VideoFeatures) -> None:
    trainable = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, FRAME_DIM))
    identity = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, FRAME_DIM, identity=True))
    for encoder in (trainable, identity):
        features = encoder.encode_video(videos).frames
        torch.testing.assert_close(features[videos.mask], videos.frames[videos.mask])
    assert trainable.frames.linear is not None
    assert identity.frames.linear is None
    assert identity.text.linear is not None


def test_unit_scaling_forgets_the_length_of_a_feature(texts: TextFeatures) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, scaling="unit"))
    longer = TextFeatures(100 * texts.sentence)
    torch.testing.assert_close(
        encoder.encode_text(longer).sentence, encoder.encode_text(texts).sentence
    )


def test_dropout_works_in_training_only(texts: TextFeatures) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, dropout=0.5))
    torch.manual_seed(0)
    assert not torch.equal(encoder.encode_text(texts).sentence, encoder.encode_text(texts).sentence)
    encoder.eval()
    assert torch.equal(encoder.encode_text(texts).sentence, encoder.encode_text(texts).sentence)


def test_half_precision_features_are_taken_in_the_precision_of_the_weights(
    videos: VideoFeatures,
) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM))
    half_videos = videos.to("cpu", torch.float16)
    assert encoder.encode_video(half_videos).frames.dtype == torch.float32


def test_what_is_missing_or_of_another_width_is_named(
    texts: TextFeatures, videos: VideoFeatures
) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM))
    with pytest.raises(UsageError, match="word features"):
        encoder.encode_text(TextFeatures(texts.sentence), words=True)
    with pytest.raises(UsageError, match="patch features"):
        encoder.encode_video(VideoFeatures(videos.frames, videos.mask), patches=True)
    with pytest.raises(UsageError, match=r"9 wide.*takes 10"):
        encoder.encode_text(TextFeatures(texts.sentence[:, :9]))


def test_configs_survive_json_and_refuse_nonsense() -> None:
    config = FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, scaling="unit", dropout=0.25)
    assert from_plain(FeatureConfig, json.loads(json.dumps(asdict(config)))) == config
    with pytest.raises(ConfigError, match="width_"):
        from_plain(FeatureConfig, {"text_dim": 3, "frame_dim": 4, "width_": 5})
    with pytest.raises(ConfigError, match="positive"):
        FeatureConfig(0, FRAME_DIM)
    with pytest.raises(ConfigError, match="dropout"):
        FeatureConfig(TEXT_DIM, FRAME_DIM, dropout=1.0)


def test_a_hidden_layer_is_a_gelu_network(texts: TextFeatures) -> None:
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, hidden=20)).eval()
    first, second = encoder.text.raised, encoder.text.linear
    hidden_states = torch.nn.functional.gelu(texts.sentence @ first.weight.T + first.bias)
    expected = hidden_states @ second.weight.T + second.bias
    torch.testing.assert_close(encoder.encode_text(texts).sentence, expected)


def test_dropped_frames_are_real_ones_and_one_always_stays(videos: VideoFeatures) -> None:
    config = FeatureConfig(TEXT_DIM, FRAME_DIM, DIM, frame_dropout=0.9)
    encoder = FeatureEncoder(config)
    torch.manual_seed(0)
    masks = [encoder.encode_video(videos).mask for _ in range(20)]
    assert any(not torch.equal(mask, videos.mask) for mask in masks)
    for mask in masks:
        assert not (mask & ~videos.mask).any()
        assert mask.any(dim=1).all()
    assert torch.equal(encoder.eval().encode_video(videos).mask, videos.mask)
