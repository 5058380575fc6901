"""TempMe: few weights train, and tokens that say the same in time become one."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Bool, Shaped
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips, Encoder, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.low_rank import add_low_rank, freeze_tower
from eaglenet.encoders.token_merging import TokenMerging, frame_groups, spread_frames
from eaglenet.layers.masking import Padding, check_padding, frame_weights
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec
from eaglenet.methods.tower_base import CosineMethod, build_on_towers

MERGED_FRACTION = 0.05


@dataclass(frozen=True)
class TempMeConfig:
    """Settings of TempMe.

    rank: of the low-rank changes of both towers. frozen: nothing else of the towers trains.
    groups: neighbouring clips that become one in each of the blocks before the last; their product
        divides ``num_frames``. None factors it: 12 frames 2, 2, 3 (the authors), 64 frames 4, 4, 4.
    merge_blocks: blocks (from 0) that join the groups; None takes those directly before the last.
    num_merged: patches of a frame that merge in each of the first blocks; None takes 5% (the
        authors: 2 of 49 for ViT-B/32; 10 of 196 for ViT-B/16 is our reading, uncertain).
    across, within: fractions of all tokens that merge between clips, and inside one.
    clip_positions: learned positions of the clips before each join.
    padding: ``masked`` spreads the real frames of a short video over all positions; ``official``
        runs padded frames through the tower and leaves them out of the last mean alone, as the
        authors' code does.
    """

    num_frames: int = 12
    rank: int = 8
    frozen: bool = True
    groups: tuple[int, ...] | None = None
    merge_blocks: tuple[int, ...] | None = None
    num_merged: int | None = None
    across: float = 0.3
    within: float = 0.1
    clip_positions: bool = True
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        check_padding(self.padding)


class TempMe(CosineMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the unit mean of the frames' class tokens.

    A video is one set of tokens at the end: class tokens never merge, patches do, first inside a
    frame, then between neighbouring ones (`encoders.token_merging`). ``VideoFeatures.video`` is
    that vector. The authors' RandAugment is ``training.augment=rand_augment``, which the
    protocol ``original`` sets.
    """

    name = "tempme"
    config: TempMeConfig

    def __init__(self, encoder: ClipEncoder, config: TempMeConfig) -> None:
        super().__init__(encoder, config)
        vision = encoder.vision.config
        groups = config.groups
        if groups is None:
            groups = frame_groups(config.num_frames, min(3, vision.layers - 1))
        num_merged = config.num_merged
        if num_merged is None:
            num_merged = max(1, round(MERGED_FRACTION * (vision.num_tokens - 1)))
        self.merging = TokenMerging(
            vision.width,
            vision.layers,
            groups,
            blocks=config.merge_blocks,
            num_frames=config.num_frames,
            num_merged=num_merged,
            across=config.across,
            within=config.within,
            positions=config.clip_positions,
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        if not isinstance(videos, Clips):
            raise UsageError(f"{self.name} reads Clips, got {type(videos).__name__}")
        mask = videos.mask.to(self.device)
        frames = videos.frames.to(self.device, non_blocking=True)
        if self.config.padding == "official":
            return self.encode_padded(frames, mask)
        sources, back = spread_frames(mask, self.config.num_frames)
        frames = frames.take_along_dim(sources[..., None, None, None], dim=1)
        classes, _ = self.merging(self.encoder.vision, frames)
        return VideoFeatures(
            frames=classes.take_along_dim(back[..., None], dim=1),
            mask=mask,
            video=F.normalize(classes, dim=-1).mean(dim=1),
        )

    def encode_padded(
        self,
        frames: Shaped[Tensor, "videos frames 3 rows columns"],
        mask: Bool[Tensor, "videos frames"],
    ) -> VideoFeatures:
        """Features as the authors' code has them: padding is left out of the last mean alone."""
        if frames.shape[1] != self.config.num_frames:
            raise UsageError(
                f"tempme with padding=official takes {self.config.num_frames} frames per video, "
                f"got {frames.shape[1]}; pad the videos, or set padding=masked"
            )
        classes, _ = self.merging(self.encoder.vision, frames)
        weights = frame_weights(mask, classes.dtype)[..., None]
        video = (F.normalize(classes, dim=-1) * weights).sum(dim=1)
        return VideoFeatures(frames=classes, mask=mask, video=video)


def build(config: TempMeConfig, encoder: Encoder) -> TempMe:
    """Low-rank changes in both towers; everything else of them frozen, the scale included."""

    def prepare(towers: ClipEncoder) -> None:
        if config.frozen:
            freeze_tower(towers)
        add_low_rank(towers, config.rank)

    method = build_on_towers(TempMe, config, encoder, prepare)
    method.loss.logit_scale.requires_grad_(not config.frozen)
    return method


METHODS.add(
    TempMe.name,
    MethodSpec(
        config_class=TempMeConfig,
        build=build,
        paper="TempMe (Shen et al., ICLR 2025)",
        checked="golden",
    ),
)
