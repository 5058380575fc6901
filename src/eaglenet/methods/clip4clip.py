"""CLIP4Clip: the towers of CLIP with four heads that combine frames."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.masking import mean_pooling, real_first
from eaglenet.layers.transformer import CrossEncoder, TemporalTransformer, stack_on
from eaglenet.losses import SoftmaxLoss, cross_entropy
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import CLIP4ClipConfig
from eaglenet.methods.tower_base import need_towers


class TemporalLSTM(nn.Module):
    """``g = LSTM(f) + f`` over the real frames; padding keeps ``f`` (seqLSTM)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, dim, batch_first=True)

    def forward(
        self, frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        # An LSTM depends on earlier frames only, so padding after the real frames has no effect:
        # the result equals that of a packed sequence, without a device sync.
        order, back = real_first(mask)
        outputs, _ = self.lstm(frames.take_along_dim(order[..., None], dim=1))
        outputs = outputs.take_along_dim(back[..., None], dim=1)
        return frames + outputs * mask[..., None].to(outputs.dtype)  # type: ignore[no-any-return]


@register(CLIP4ClipConfig, paper="CLIP4Clip (Luo et al., Neurocomputing 2022)", checked_by="golden")
class CLIP4Clip(Method):
    r"""``s = cos(t, v)`` with ``v`` the unit mean of unit frames after a temporal head.

    The heads ``lstm`` and ``transformer`` depend on the video only, so ``encode_video`` stores
    their vector in ``VideoFeatures.video``; the frames stay those of the encoder. ``tight`` scores
    every pair with a cross-encoder; its score is a logit, not a cosine.
    """

    name = "clip4clip"
    config: CLIP4ClipConfig

    def __init__(self, encoder: Encoder, config: CLIP4ClipConfig) -> None:
        # A mean works for the vectors of any encoder.
        self.needs_frames = config.head != "mean"
        super().__init__(encoder, config)
        self.head: TemporalLSTM | TemporalTransformer | CrossEncoder | None
        if config.head == "mean":
            self.head = None
        elif config.head == "lstm":
            self.head = TemporalLSTM(encoder.dim)
        else:
            stack = stack_on(encoder, config)
            self.head = (
                TemporalTransformer(stack)
                if config.head == "transformer"
                else CrossEncoder(stack, dropout=config.dropout, score_bias=config.score_bias)
            )
        # The score of the cross-encoder is a logit already, without a temperature.
        self.loss = None if config.head == "tight" else SoftmaxLoss()

    @classmethod
    def build(cls, config: CLIP4ClipConfig, encoder: Encoder) -> CLIP4Clip:
        """Create the method; ``stem="3d"`` changes the vision tower of CLIP first."""
        if config.stem == "3d":
            need_towers(encoder, "clip4clip with stem=3d").vision.add_temporal_stem()
        return super().build(config, encoder)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), video=None)
        if isinstance(self.head, TemporalLSTM | TemporalTransformer):
            return dataclasses.replace(features, video=self._vector(features))
        return features

    def _vector(self, video: VideoFeatures) -> Float[Tensor, "videos dim"]:
        """Return one unit vector per video, stored or computed from the frames."""
        if video.video is not None:
            return F.normalize(video.video, dim=-1)
        frames = video.frames
        if isinstance(self.head, TemporalLSTM | TemporalTransformer):
            frames = self.head(frames, video.mask)
        return mean_pooling(frames, video.mask)

    @property
    def score_tile(self) -> tuple[int, int]:
        # With one vector per video, few passes over the videos are best.
        if not isinstance(self.head, CrossEncoder):
            return (4096, 64)
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        if isinstance(self.head, CrossEncoder):
            return self._cross_scores(self.head, text, video)
        return F.normalize(text.sentence, dim=-1) @ self._vector(video).T

    def _cross_scores(
        self, head: CrossEncoder, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos"]:
        num_videos = len(video)
        num_pairs = len(text) * num_videos
        chunks = []
        for start in range(0, num_pairs, self.config.pairs_at_once):
            stop = min(start + self.config.pairs_at_once, num_pairs)
            pairs = torch.arange(start, stop, device=video.mask.device)
            rows, columns = pairs // num_videos, pairs % num_videos
            chunks.append(head(text.sentence[rows], video.frames[columns], video.mask[columns]))
        return torch.cat(chunks).reshape(len(text), num_videos)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        if self.loss is not None:
            return super().losses(text, video, positives)
        scores = self.score(text, video)
        both = cross_entropy(scores, positives) + cross_entropy(scores.T, positives.T)
        return Losses({"contrastive": both / 2})

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, VideoFeatures):
            return self._vector(features)
        return super().coarse_vectors(features)
