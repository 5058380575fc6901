"""Base of methods that work inside CLIP's towers: building, loss and cosine scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.types import Clips, Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.video_proxy import unit_videos
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import Method, adopt_logit_scale, frame_spec_for, need_tower

Built = TypeVar("Built", bound="TowerMethod")


class TowerMethod(Method):
    """A method on CLIP's towers, trained with one softmax loss over its scores."""

    encoder: ClipEncoder
    loss: SoftmaxLoss

    def __init__(self, encoder: Encoder, config: Any) -> None:
        """``config``: a frozen dataclass that has ``num_frames``."""
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        """Features of the towers; with ``padding="official"`` tokens shift to padded frames too."""
        if getattr(self.config, "padding", "masked") != "official":
            return super()._encode_video(videos)
        every = torch.ones_like(videos.mask)
        features = super()._encode_video(dataclasses.replace(videos, mask=every))
        return dataclasses.replace(features, mask=videos.mask.to(features.mask.device))

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        return Losses({"contrastive": self.loss(self.score(text, video), positives)})


class CosineMethod(TowerMethod):
    """``s(t, v) = cos(t, v)``: texts and videos are one vector each."""

    has_video_vector: ClassVar[bool] = True
    """``v`` is ``VideoFeatures.video``; otherwise it is the mean of unit frames."""

    @property
    def score_tile(self) -> tuple[int, int]:
        return (4096, 1024)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return F.normalize(text.sentence, dim=-1) @ self.coarse_vectors(video).T

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, VideoFeatures) and self.has_video_vector:
            return unit_videos(features)
        return super().coarse_vectors(features)


def build_on_towers(
    method_class: type[Built],
    config: Any,
    encoder: Encoder,
    prepare: Callable[[ClipEncoder], None] | None = None,
) -> Built:
    """The method on CLIP's towers, its loss starting from their scale.

    ``prepare`` changes the towers before the method is made (frozen, shifted, more weights).
    """
    tower = need_tower(encoder, method_class.name)
    if prepare is not None:
        prepare(tower)
    method = method_class(tower, config)
    adopt_logit_scale(tower, method.loss)
    return method
