"""Frozen in Time: an image tower with attention over time, trained with a fixed temperature."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.video_tower import SpaceTime, TimeStart
from eaglenet.layers.masking import Padding
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import SpaceTimeMethod


@dataclass(frozen=True)
class FrozenConfig(MethodConfig):
    """Settings of Frozen in Time.

    num_frames: frames per video, and number of frame positions.
    time_start: initial attention over time: ``identity``, or ``released`` as by the authors, whose
        queries and keys never learn (:class:`~eaglenet.encoders.video_tower.TimeAttention`).
    padding: ``official`` counts padded frames as real, as the code of the authors does.
    """

    num_frames: int = 4
    time_start: TimeStart = "identity"
    temperature: float = 0.05
    padding: Padding = "masked"


@register(FrozenConfig, paper="Frozen in Time (Bain et al., ICCV 2021)", checked_by="golden")
class Frozen(SpaceTimeMethod):
    """Attention over time, then over space, in every block, with frame positions.

    Paper: starts from an ImageNet ViT and DistilBERT, pre-trained on CC3M and WebVid-2M; here it
    starts from the towers and projections of the encoder, without that pre-training. Padded frames
    are masked by default. It is uncertain whether the checkpoint of the authors was trained from
    the ``released`` start.
    """

    name = "frozen"
    config: FrozenConfig

    def __init__(self, encoder: TowerEncoder, config: FrozenConfig) -> None:
        super().__init__(encoder, config)
        self.space_time = SpaceTime(
            self.tower, time=config.time_start, num_positions=config.num_frames
        )
