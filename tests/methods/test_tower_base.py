"""Methods on CLIP's towers: built in one order, and compared as one vector each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod

TEXTS, VIDEOS, FRAMES, DIM = 3, 5, 4, 16


PREPARED: list[ClipEncoder] = []


class Plain(CosineMethod):
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
    with pytest.raises(ConfigError, match="without a video vector"):
        plain.score(text, VideoFeatures(frames, mask))
    terms = plain.losses(text, video, torch.eye(TEXTS, VIDEOS, dtype=torch.bool)).terms
    assert list(terms) == ["contrastive"]
