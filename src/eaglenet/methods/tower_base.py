"""Bases of methods that work inside an image tower."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TowerEncoder, VideoSource
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.compact import CompactEncoder
from eaglenet.encoders.video_tower import SpaceTime
from eaglenet.encoders.vision import TowerParts, VisionTower
from eaglenet.layers.masking import effective_mask
from eaglenet.losses import SoftmaxLoss, fixed_softmax_loss
from eaglenet.methods.base import Method

PatchEncoder = ClipEncoder | CompactEncoder
"""Encoders whose image tower has a class token and returns patches."""
OnTowers = TypeVar("OnTowers", bound="TowerMethod")
OverFrames = TypeVar("OverFrames", bound="SpaceTimeMethod")


class TowerMethod(Method):
    """Method inside the towers, trained with one softmax loss over its scores."""

    needs_clip: ClassVar[bool] = True
    """The towers must be CLIP's; otherwise they may be those of a compact model too."""
    encoder: ClipEncoder
    loss: SoftmaxLoss

    @classmethod
    def build(cls: type[OnTowers], config: Any, encoder: Encoder) -> OnTowers:
        """Create the method; :meth:`prepare` changes the towers first."""
        cls.prepare(config, need_towers(encoder, cls.name, only_clip=cls.needs_clip))
        return super().build(config, encoder)

    @classmethod
    def prepare(cls, config: Any, encoder: Any) -> None:
        """Change the towers before the method is created; by default, do nothing."""

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        """Encode videos; with ``padding="official"``, tokens shift to padded frames too."""
        if getattr(self.config, "padding", "masked") != "official":
            return super()._encode_video(videos)
        all_real = dataclasses.replace(videos, mask=effective_mask(videos.mask, "official"))
        features = super()._encode_video(all_real)
        return dataclasses.replace(features, mask=videos.mask.to(features.mask.device))


class CosineMethod(Method):
    """``s(t, v) = cos(t, v)``: texts and videos are one vector each."""

    has_video_vector: ClassVar[bool] = True
    """``v`` is ``VideoFeatures.video``; otherwise it is the mean of unit frames."""
    score_tile = (4096, 1024)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return F.normalize(text.sentence, dim=-1) @ self.coarse_vectors(video).T

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, VideoFeatures) and self.has_video_vector:
            return unit_videos(features)
        return super().coarse_vectors(features)


class SpaceTimeMethod(CosineMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the output of an image tower's head over all frames.

    The head reads the class token, or pools the patches of all real frames.
    """

    encoder: TowerEncoder
    space_time: SpaceTime

    @classmethod
    def build(cls: type[OverFrames], config: Any, encoder: Encoder) -> OverFrames:
        """Create the method on any tower with blocks; freeze the parts that nothing reads."""
        if not isinstance(encoder, TowerEncoder) or not isinstance(encoder.vision, TowerParts):
            raise ConfigError(
                f"{cls.name} works inside an image tower and cannot run on "
                f"{ENCODERS[encoder.family].title}; use a CLIP, SigLIP, PE-Core or compact "
                "model"
            )
        freeze_frame_embedding(encoder.vision)
        return super().build(config, encoder)

    @property
    def tower(self) -> TowerParts:
        """The image tower of the encoder, which is loaded again if its memory was released."""
        return self.encoder.vision  # type: ignore[return-value]

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        """Encode videos; with ``padding="official"``, padded frames are read like real ones."""
        all_visible = dataclasses.replace(
            videos, mask=effective_mask(videos.mask, self.config.padding)
        )
        features = self.space_time.encode(self.tower, all_visible)
        return dataclasses.replace(features, mask=videos.mask.to(features.mask.device))

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the cross-entropy of rows plus that of columns, at a fixed temperature."""
        scores, temperature = self.score(text, video), self.config.temperature
        return Losses({"contrastive": fixed_softmax_loss(scores, positives, temperature)})


def need_towers(encoder: Encoder, name: str, *, only_clip: bool = True) -> Any:
    """Return a CLIP encoder (or else a compact one); raise ``ConfigError`` for any other."""
    if isinstance(encoder, ClipEncoder) or (isinstance(encoder, CompactEncoder) and not only_clip):
        return encoder
    tower = "CLIP's vision tower" if only_clip else "an image tower with patches"
    models = "a CLIP model" if only_clip else "a CLIP or compact model"
    raise ConfigError(
        f"{name} works inside {tower} and cannot run on {ENCODERS[encoder.family].title}; use "
        f"{models}, or choose clip4clip, xpool, tmass, video_colbert, drl, glscl or eaglenet"
    )


def unit_videos(features: VideoFeatures) -> Float[Tensor, "videos dim"]:
    """Return the vectors of whole videos, scaled to unit length."""
    if features.video is None:
        raise ConfigError(
            "the features have no video vector; encode the videos with encode_video of this method"
        )
    return F.normalize(features.video, dim=-1)


def shift_last_blocks(encoder: PatchEncoder, count: int) -> None:
    """Enable token shift in the last ``count`` blocks of the vision tower, as in TS2-Net."""
    num_blocks = encoder.num_blocks
    if count > num_blocks:
        raise ConfigError(
            f"num_shifted_blocks is {count}, but the vision tower has {num_blocks} blocks; "
            "choose at most that"
        )
    encoder.set_token_shift(tuple(range(num_blocks - count, num_blocks)))


def freeze_frame_embedding(tower: TowerParts) -> None:
    """Freeze the frame positions of a tower, which a video tower replaces with its own."""
    if isinstance(tower, VisionTower) and tower.frame_embedding is not None:
        tower.frame_embedding.requires_grad_(False)
