"""TVMM: several prototypes per video, the best of which is compared with a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.video_tower import SpaceTime, require_clips
from eaglenet.layers.masking import mean_pooling
from eaglenet.losses import fixed_softmax_loss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import freeze_frame_embedding


@dataclass(frozen=True)
class TVMMConfig(MethodConfig):
    """Settings of TVMM. All numbers are our choice, without the code of the authors.

    num_prototypes: number of prototypes, besides the class token.
    spread_weight: weight of the loss that keeps prototypes apart.
    spread: standard deviation over prototypes, per channel, above which that loss is 0.
    """

    num_frames: int = 4
    num_prototypes: int = 4
    temperature: float = 0.05
    spread_weight: float = 0.05
    spread: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_prototypes")


class Prototypes(nn.Module):
    """Prototypes: sums of the tokens of a video, weighted by one mask per prototype.

    ``A = softmax_i(W2 relu(W1 x_i))`` over the real tokens.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.masks = nn.Linear(width, count, bias=False)  # The softmax would cancel a bias.

    def forward(
        self, tokens: Float[Tensor, "videos tokens width"], mask: Bool[Tensor, "videos tokens"]
    ) -> Float[Tensor, "videos prototypes width"]:
        logits = self.masks(F.relu(self.hidden(tokens)))
        logits = logits.masked_fill(~mask[..., None], torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=1).masked_fill(~mask[..., None], 0.0)
        return torch.einsum("vtp,vtd->vpd", weights, tokens)


def spread_loss(
    prototypes: Float[Tensor, "videos prototypes dim"], min_deviation: float
) -> Float[Tensor, ""]:
    """Return ``mean_c [min_deviation - sqrt(Var_k(p_kc) + 1e-4)]_+`` of unscaled prototypes."""
    deviation = (prototypes.var(dim=1, unbiased=False) + 1e-4).sqrt()
    return (min_deviation - deviation).clamp_min(0.0).mean()


@register(
    TVMMConfig, paper="TVMM (Lin et al., NeurIPS 2022)", checked_by="approximate from the abstract"
)
class TVMM(Method):
    """``s = max_k <t, p_k>`` over the class token and K masked sums of the last tokens.

    Paper: implemented from the abstract; softmax masks, K, and form and weight of the spread loss
    are our choice. There is no pre-training on CC3M and WebVid-2M. The tower is that of
    BridgeFormer with the weights of CLIP; with stored features, the frames are the tokens and their
    mean is the class token. ``VideoFeatures.tokens`` are the prototypes before scaling.
    """

    name = "tvmm"
    config: TVMMConfig
    score_tile = (1024, 1024)

    def __init__(self, encoder: Encoder, config: TVMMConfig) -> None:
        super().__init__(encoder, config)
        tower = encoder.vision if isinstance(encoder, ClipEncoder) else None
        self.space_time = SpaceTime(tower) if tower is not None else None
        width = tower.config.width if tower is not None else encoder.dim
        self.prototypes = Prototypes(width, config.num_prototypes)
        # Prototypes of a tower share the projection of its class token.
        self.map = nn.Linear(width, encoder.dim) if tower is None else None
        if self.map is not None:
            # The identity: with random weights, sums would never be the maximum and never learn.
            nn.init.eye_(self.map.weight)
            nn.init.zeros_(self.map.bias)

    @classmethod
    def build(cls, config: TVMMConfig, encoder: Encoder) -> TVMM:
        """Create the method on the vision tower of CLIP, or on the frames of another encoder."""
        if isinstance(encoder, ClipEncoder):
            freeze_frame_embedding(encoder.vision)
        return super().build(config, encoder)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        if self.space_time is None or not isinstance(self.encoder, ClipEncoder):
            video = self.encoder.encode_video(videos)
            tokens, mask, frames = video.frames, video.mask, video.frames
            first, frames_mask = mean_pooling(video.frames, video.mask), video.mask
            project: nn.Module | None = self.map
        else:
            clips = require_clips(videos, self.name)
            tower = self.encoder.vision
            frames_mask = clips.mask.to(self.device)
            frames = clips.frames.to(self.device, non_blocking=True)
            class_token, patches = self.space_time(tower, frames, frames_mask)
            tokens = tower.ln_post(torch.cat([class_token, patches.flatten(1, 2)], dim=1))
            patch_mask = frames_mask.repeat_interleave(patches.shape[2], dim=1)
            mask = torch.cat([patch_mask.new_ones(len(patch_mask), 1), patch_mask], dim=1)
            frames, first = tower.project(patches).mean(dim=2), tower.project(class_token[:, 0])
            project = tower.projection
        sums: Tensor = self.prototypes(tokens, mask)
        vectors = sums if project is None else project(sums)
        prototypes = torch.cat([first[:, None], vectors], dim=1)
        return VideoFeatures(frames=frames, mask=frames_mask, tokens=prototypes)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        prototypes = F.normalize(_prototypes(video), dim=-1)
        sentence = F.normalize(text.sentence, dim=-1)
        return torch.einsum("td,vpd->tvp", sentence, prototypes).amax(dim=-1)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        scores = self.score(text, video)
        prototype_loss = spread_loss(_prototypes(video)[:, 1:], self.config.spread)
        return Losses(
            {
                "contrastive": fixed_softmax_loss(scores, positives, self.config.temperature),
                "spread": prototype_loss,
            },
            {"spread": self.config.spread_weight},
        )

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """Return unit texts, or the mean of the unit prototypes."""
        if isinstance(features, TextFeatures):
            return super().coarse_vectors(features)
        mean = F.normalize(_prototypes(features), dim=-1).mean(dim=1)
        return F.normalize(mean, dim=-1)


def _prototypes(video: VideoFeatures) -> Float[Tensor, "videos prototypes dim"]:
    if video.tokens is None:
        raise UsageError("the videos have no prototypes; encode them with encode_video")
    return video.tokens
