"""Frozen in Time: an image tower with attention over time, trained with a fixed temperature."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.types import Clips, Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.space_time import SpaceTime, TimeStart
from eaglenet.encoders.video_proxy import freeze_frame_embedding, unit_videos
from eaglenet.encoders.vision import TowerParts, VisionTower
from eaglenet.layers.masking import Padding, check_padding, visible
from eaglenet.losses.softmax import fixed_softmax_loss
from eaglenet.methods.base import (
    METHODS,
    Method,
    MethodSpec,
    adopt_logit_scale,
    frame_spec_for,
    need_tower_parts,
)


@dataclass(frozen=True)
class FrozenConfig:
    """Settings of Frozen in Time.

    num_frames: also the rows of the table of frame positions.
    time_start: ``identity``, or ``released``: the authors' start, whose queries and keys never
        learn (:class:`~eaglenet.encoders.space_time.TimeAttention`).
    padding: ``official`` counts padded frames as real, as the authors' code does.
    """

    num_frames: int = 4
    time_start: TimeStart = "identity"
    temperature: float = 0.05
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        check_padding(self.padding)


class VideoTowerMethod(Method):
    """``s(t, v) = cos(t, v)`` with ``v`` what the head of a tower over space and time reads.

    That is CLIP's class token; where an image tower pools its patches, all real ones.
    """

    encoder: TowerEncoder
    space_time: SpaceTime
    temperature: float

    @property
    def tower(self) -> TowerParts:
        """The encoder's image tower; one whose memory was released is restored."""
        return tower_of(self.encoder)

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = self.space_time.encode(self.tower, self.visible_frames(videos))
        return dataclasses.replace(features, mask=videos.mask.to(features.mask.device))

    def visible_frames(self, videos: Clips | VideoFeatures) -> Clips | VideoFeatures:
        """The same videos, with every frame marked as real for ``padding="official"``."""
        return dataclasses.replace(videos, mask=visible(videos.mask, self.config.padding))

    @property
    def score_tile(self) -> tuple[int, int]:
        return (4096, 1024)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return F.normalize(text.sentence, dim=-1) @ unit_videos(video).T

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Cross-entropy of rows plus that of columns, at a temperature that is not learnt."""
        scores = self.score(text, video)
        return Losses({"contrastive": fixed_softmax_loss(scores, positives, self.temperature)})

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, TextFeatures):
            return super().coarse_vectors(features)
        return unit_videos(features)


class Frozen(VideoTowerMethod):
    """Attention over time, then over space, in every block; a table of frame positions.

    Paper: starts from an ImageNet ViT and DistilBERT and is pre-trained on CC3M and WebVid-2M; here
    from the encoder's towers and projections, without that pre-training. Padded frames are masked
    by default. Whether the authors' checkpoint was trained from the ``released`` start is
    uncertain.
    """

    name = "frozen"
    config: FrozenConfig

    def __init__(self, encoder: TowerEncoder, config: FrozenConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config
        self.temperature = config.temperature
        self.space_time = SpaceTime(
            self.tower, time=config.time_start, num_positions=config.num_frames
        )


def tower_of(encoder: TowerEncoder) -> TowerParts:
    if not isinstance(encoder.vision, TowerParts):
        raise AssertionError("need_tower_parts lets no other encoder through")
    return encoder.vision


def prepare(encoder: Encoder, name: str) -> TowerEncoder:
    """An encoder whose image tower reads videos; what nothing reads then is frozen."""
    encoder = need_tower_parts(encoder, name)
    if isinstance(encoder.vision, VisionTower):
        freeze_frame_embedding(encoder.vision)
    adopt_logit_scale(encoder, None)
    return encoder


def build(config: FrozenConfig, encoder: Encoder) -> Frozen:
    """Time attention beside the vision tower's blocks, which it starts from."""
    return Frozen(prepare(encoder, Frozen.name), config)


METHODS.add(
    Frozen.name,
    MethodSpec(
        config_class=FrozenConfig,
        build=build,
        paper="Frozen in Time (Bain et al., ICCV 2021)",
        checked="golden",
    ),
)
