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

    num_frames: also the rows of the table of frame positions.
    time_start: ``identity``, or ``released``: the authors' start, whose queries and keys never
        learn (:class:`~eaglenet.encoders.video_tower.TimeAttention`).
    padding: ``official`` counts padded frames as real, as the authors' code does.
    """

    num_frames: int = 4
    time_start: TimeStart = "identity"
    temperature: float = 0.05
    padding: Padding = "masked"


@register(FrozenConfig, paper="Frozen in Time (Bain et al., ICCV 2021)", checked="golden")
class Frozen(SpaceTimeMethod):
    """Attention over time, then over space, in every block; a table of frame positions.

    Paper: starts from an ImageNet ViT and DistilBERT and is pre-trained on CC3M and WebVid-2M; here
    from the encoder's towers and projections, without that pre-training. Padded frames are masked
    by default. Whether the authors' checkpoint was trained from the ``released`` start is
    uncertain.
    """

    name = "frozen"
    config: FrozenConfig
    score_tile = (4096, 1024)

    def __init__(self, encoder: TowerEncoder, config: FrozenConfig) -> None:
        super().__init__(encoder, config)
        self.space_time = SpaceTime(
            self.tower, time=config.time_start, num_positions=config.num_frames
        )
