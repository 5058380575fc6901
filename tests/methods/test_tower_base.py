"""Methods on CLIP's towers: built in one order, and compared as one vector each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods import METHODS
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod, TowerMethod

TEXTS, VIDEOS, FRAMES, DIM = 3, 5, 4, 16


PREPARED: list[ClipEncoder] = []


class Plain(CosineMethod, TowerMethod):
    name = "plain"

    def __init__(self, encoder: ClipEncoder, config: Any) -> None:
        super().__init__(encoder, config)
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: Any, encoder: ClipEncoder) -> None:
        PREPARED.append(encoder)


class MeanFrames(Plain):
    has_video_vector = False


def towers() -> ClipEncoder:
    vision = VisionConfig(image_size=16, patch_size=8, width=12, layers=1, heads=2, mlp_width=20)
    text = TextConfig(
        vocabulary_size=50, context_length=9, width=18, layers=1, heads=2, mlp_width=28
    )
    return ClipEncoder(ClipConfig(dim=DIM, vision=vision, text=text))


def test_towers_are_prepared_first_and_the_loss_takes_their_scale() -> None:
    encoder = towers()
    encoder.logit_scale.data.fill_(2.5)
    method = Plain.build(MethodConfig(FRAMES), encoder)
    assert PREPARED.pop() is encoder
    assert method.frame_spec.num_frames == FRAMES
    assert method.loss.logit_scale.item() == 2.5
    assert not encoder.logit_scale.requires_grad


def test_other_encoders_are_refused_by_the_name_of_the_method() -> None:
    encoder = FeatureEncoder(FeatureConfig(text_dim=9, frame_dim=11, dim=DIM))
    with pytest.raises(ConfigError, match="plain works inside CLIP's vision tower"):
        Plain.build(MethodConfig(FRAMES), encoder)


def test_scores_are_cosines_of_the_video_vector_or_of_the_mean_frame() -> None:
    generator = torch.Generator().manual_seed(0)
    text = TextFeatures(torch.randn(TEXTS, DIM, generator=generator))
    frames = torch.randn(VIDEOS, FRAMES, DIM, generator=generator)
    vectors = torch.randn(VIDEOS, DIM, generator=generator)
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    mask[1, 2:] = False
    video = VideoFeatures(frames, mask, video=vectors)
    cosines = F.cosine_similarity(text.sentence[:, None], vectors[None], dim=-1)
    plain = Plain.build(MethodConfig(FRAMES), towers())
    torch.testing.assert_close(plain.score(text, video), cosines)
    mean = MeanFrames.build(MethodConfig(FRAMES), towers())
    for row in range(VIDEOS):
        real = F.normalize(frames[row, mask[row]], dim=-1).mean(dim=0)
        expected = F.cosine_similarity(text.sentence, real[None], dim=-1)
        torch.testing.assert_close(mean.score(text, video)[:, row], expected)
    with pytest.raises(ConfigError, match="have no video vector"):
        plain.score(text, VideoFeatures(frames, mask))
    terms = plain.losses(text, video, torch.eye(TEXTS, VIDEOS, dtype=torch.bool)).terms
    assert list(terms) == ["contrastive"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ts2net", {"num_tokens": 2}),
        ("ucofia", {"num_tokens": 2, "num_words": 5}),
        ("prost", {"num_phrases": 3, "num_objects": 3, "num_events": 2}),
    ],
)
def test_padded_frames_are_blank_with_official_padding(name: str, settings: dict[str, Any]) -> None:
    """The code of the authors pads with zeros, videos are read with repeated frames."""
    encoder = small_clip(image_size=24)
    clips = small_clips(2, 4, 24)
    clips.mask[1, 2:] = False
    blank = torch.tensor([round(255 * channel) for channel in encoder.config.pixel_mean])
    filled_clips = dataclasses.replace(clips, frames=clips.frames.clone())
    filled_clips.frames[1, 2:] = blank.byte()[:, None, None]
    texts = Tokens(torch.tensor([[1, 4, 9, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]]).bool())
    config = METHODS[name].config_class(num_frames=4, padding="official", **settings)
    method = METHODS[name].build(config, encoder).eval()
    with torch.no_grad():
        text = method.encode_text(texts)
        scores, expected = (
            method.score(text, method.encode_video(each)) for each in (clips, filled_clips)
        )
        scores_again = method.score(text, method._encode_video(clips))
    torch.testing.assert_close(scores, expected)
    assert (scores_again - expected)[:, 1].abs().max() > 1e-5  # padded frames do count
