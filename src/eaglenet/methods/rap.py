"""RAP, approximate: a frozen CLIP with low-rank modulation and asynchronous attention."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips, Encoder, VideoFeatures
from eaglenet.encoders.asynchronous import AsynchronousTower, real_first
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.low_rank import freeze_tower
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec
from eaglenet.methods.tower_base import CosineMethod, build_on_towers


@dataclass(frozen=True)
class RAPConfig:
    """Settings of our reading of RAP.

    frozen: nothing of the towers trains. rank: of the modulation over time; num_kept: patches of a
    frame that attend askew; num_asynchronous: in how many of the last blocks but one.
    """

    num_frames: int = 12
    frozen: bool = True
    rank: int = 4
    num_kept: int = 8
    num_asynchronous: int = 4


class RAP(CosineMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the unit mean of unit frames of the adapted tower.

    Approximate: no code was released with what we could read. The abstract chooses patches by the
    text; so that videos can be encoded without one, they are chosen here by their frame's class
    token. The text tower is CLIP's, frozen.
    """

    name = "rap"
    has_video_vector = False
    config: RAPConfig

    def __init__(self, encoder: ClipEncoder, config: RAPConfig) -> None:
        super().__init__(encoder, config)
        self.tower = AsynchronousTower(
            encoder.vision,
            num_frames=config.num_frames,
            rank=config.rank,
            num_kept=config.num_kept,
            num_asynchronous=config.num_asynchronous,
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        if not isinstance(videos, Clips):
            raise UsageError(f"{self.name} reads Clips, got {type(videos).__name__}")
        mask = videos.mask.to(self.device)
        order, back = real_first(mask)
        frames = videos.frames.to(self.device, non_blocking=True)
        frames = frames.take_along_dim(order[..., None, None, None], dim=1)
        features = self.tower(self.encoder.vision, frames, mask.take_along_dim(order, dim=1))
        return VideoFeatures(features.take_along_dim(back[..., None], dim=1), mask)


def build(config: RAPConfig, encoder: Encoder) -> RAP:
    """The tower's blocks stay CLIP's; what is added stands beside them."""
    return build_on_towers(RAP, config, encoder, freeze_tower if config.frozen else None)


METHODS.add(
    RAP.name,
    MethodSpec(
        config_class=RAPConfig,
        build=build,
        paper="RAP (Cao et al., Findings of ACL 2024)",
        checked="approximate from the abstract",
    ),
)
