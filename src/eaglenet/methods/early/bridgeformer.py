"""BridgeFormer: a video tower without new weights."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.video_tower import SpaceTime
from eaglenet.layers.masking import Padding
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import SpaceTimeMethod


@dataclass(frozen=True)
class BridgeFormerConfig(MethodConfig):
    """Settings of BridgeFormer.

    padding: ``official`` counts padded frames as real, as the code of the authors does.
    """

    num_frames: int = 4
    temperature: float = 0.05
    padding: Padding = "masked"


@register(BridgeFormerConfig, paper="BridgeFormer (Ge et al., CVPR 2022)", checked_by="golden")
class BridgeFormer(SpaceTimeMethod):
    """Blocks of the image tower over all frames, without attention over time or frame positions.

    Patches attend to their frame and the class token, which attends to everything. Without a class
    token (SigLIP), only the head combines frames.

    Paper: pre-trained on CC3M and WebVid-2M with a bridge, which is dropped afterwards; here it
    starts from the towers of the encoder, and there is no bridge. The fine-tuning of the authors
    was not released; recipes follow Frozen (uncertain).
    """

    name = "bridgeformer"
    config: BridgeFormerConfig

    def __init__(self, encoder: TowerEncoder, config: BridgeFormerConfig) -> None:
        super().__init__(encoder, config)
        self.space_time = SpaceTime(self.tower)
