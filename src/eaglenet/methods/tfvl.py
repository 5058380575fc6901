"""TFVL, approximate: a frozen CLIP whose own towers look at time."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from eaglenet.core.errors import UsageError, too_many_frames
from eaglenet.core.types import Clips, Encoder, VideoFeatures
from eaglenet.encoders.asynchronous import real_first
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.frames_as_words import FramesAsPicture, FramesAsWords
from eaglenet.encoders.low_rank import freeze_tower
from eaglenet.layers.masking import mean_pooling
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec
from eaglenet.methods.tower_base import CosineMethod, build_on_towers


@dataclass(frozen=True)
class TFVLConfig:
    """Settings of our reading of TFVL.

    frozen: nothing of the towers trains. num_joint: last visual blocks that see all frames at once;
    num_prompts: learned tokens beside them in each; num_word_prompts: before the frames' sentence.
    """

    num_frames: int = 12
    frozen: bool = True
    num_joint: int = 2
    num_prompts: int = 4
    num_word_prompts: int = 4


class TFVL(CosineMethod):
    """``s(t, v) = cos(t, v)``, ``v`` the mean frame plus what the text tower reads of the frames.

    Approximate: no code was released with what we could read. ``VideoFeatures.video`` is the sum.
    """

    name = "tfvl"
    config: TFVLConfig

    def __init__(self, encoder: ClipEncoder, config: TFVLConfig) -> None:
        super().__init__(encoder, config)
        self.picture = FramesAsPicture(
            encoder.vision, num_joint=config.num_joint, num_prompts=config.num_prompts
        )
        self.sentence = FramesAsWords(
            encoder.text,
            encoder.dim,
            num_frames=config.num_frames,
            num_prompts=config.num_word_prompts,
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        if not isinstance(videos, Clips):
            raise UsageError(f"{self.name} reads Clips, got {type(videos).__name__}")
        mask = videos.mask.to(self.device)
        if mask.shape[1] > self.config.num_frames:
            raise too_many_frames(mask.shape[1], self.config.num_frames)
        order, back = real_first(mask)
        first = mask.take_along_dim(order, dim=1)
        frames = videos.frames.to(self.device, non_blocking=True)
        frames = frames.take_along_dim(order[..., None, None, None], dim=1)
        features = self.picture(self.encoder.vision, frames, first)
        sentence_vector = self.sentence(self.encoder.text, features, first)
        return VideoFeatures(
            features.take_along_dim(back[..., None], dim=1),
            mask,
            video=mean_pooling(features, first) + F.normalize(sentence_vector, dim=-1),
        )


def build(config: TFVLConfig, encoder: Encoder) -> TFVL:
    """Prompts and one projection beside the frozen towers."""
    return build_on_towers(TFVL, config, encoder, freeze_tower if config.frozen else None)


METHODS.add(
    TFVL.name,
    MethodSpec(
        config_class=TFVLConfig,
        build=build,
        paper="TFVL (Shen et al., TNNLS 2025)",
        checked="approximate from the abstract",
    ),
)
