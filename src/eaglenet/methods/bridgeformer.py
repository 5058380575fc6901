"""BridgeFormer: a video tower without new weights; questions about words as a side task."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.space_time import SpaceTime
from eaglenet.encoders.video_proxy import freeze_frame_embedding
from eaglenet.methods.base import (
    METHODS,
    MethodSpec,
    adopt_logit_scale,
    frame_spec_for,
    need_tower,
)
from eaglenet.methods.frozen import VideoTowerMethod
from eaglenet.types import Encoder


@dataclass(frozen=True)
class BridgeFormerConfig:
    """Settings of BridgeFormer's VideoFormer."""

    num_frames: int = 4
    temperature: float = 0.05


class BridgeFormer(VideoTowerMethod):
    """The image tower's own blocks over all frames: no attention over time, no frame positions.

    Patches see their frame and the class token, which sees everything.

    Paper: pre-trained on CC3M and WebVid-2M; here from CLIP's towers. How the authors fine-tune was
    never released: Frozen's recipe (uncertain).
    """

    name = "bridgeformer"
    config: BridgeFormerConfig

    def __init__(self, encoder: ClipEncoder, config: BridgeFormerConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config
        self.temperature = config.temperature
        self.space_time = SpaceTime(encoder.vision)


def build(config: BridgeFormerConfig, encoder: Encoder) -> BridgeFormer:
    """The vision tower read as a video tower."""
    encoder = need_tower(encoder, "bridgeformer")
    freeze_frame_embedding(encoder.vision)
    adopt_logit_scale(encoder, None)
    return BridgeFormer(encoder, config)


METHODS.add(
    "bridgeformer",
    MethodSpec(
        name="bridgeformer",
        config_class=BridgeFormerConfig,
        build=build,
        paper="BridgeFormer (Ge et al., CVPR 2022)",
        checked="reference loop",
    ),
)
