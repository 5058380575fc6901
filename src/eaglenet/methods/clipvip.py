"""CLIP-ViP: proxy tokens carry what happens between frames through the vision tower."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.core.types import Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.video_tower import VideoProxies
from eaglenet.layers.masking import Padding
from eaglenet.losses import PROXY_BOUNDS, SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod, freeze_frame_embedding


@dataclass(frozen=True)
class CLIPViPConfig(MethodConfig):
    """Settings of CLIP-ViP.

    num_proxies: proxy tokens in all; the first is CLIP's class token.
    num_positions: rows of the table of frame positions, stretched where a video has more or fewer
        frames.
    padding: ``official`` counts padded frames as real, as the authors' code does.
    """

    num_proxies: int = 4
    num_positions: int = 12
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_proxies", "num_positions")


@register(CLIPViPConfig, paper="CLIP-ViP (Xue et al., ICLR 2023)", checked="golden")
class CLIPViP(CosineMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the class token that saw the whole video.

    ``VideoFeatures.video`` is that vector. A frame of its own has no class token here, so
    ``frames`` are the means of their projected patches: they show moments and take no part in the
    score.

    Paper: starts from plain CLIP (the authors start from a checkpoint trained on 100 million
    videos). The scale of the logits may grow to 200.
    """

    name = "clipvip"
    config: CLIPViPConfig

    def __init__(self, encoder: ClipEncoder, config: CLIPViPConfig) -> None:
        super().__init__(encoder, config)
        self.proxies = VideoProxies(
            encoder.vision.config.width,
            num_added=config.num_proxies - 1,
            num_positions=config.num_positions,
        )
        self.loss = SoftmaxLoss(bounds=PROXY_BOUNDS)

    @classmethod
    def prepare(cls, config: CLIPViPConfig, encoder: ClipEncoder) -> None:
        freeze_frame_embedding(encoder.vision)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        all_frames = self.config.padding == "official"
        return self.proxies.encode(self.encoder.vision, videos, all_frames=all_frames).features

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """The authors sum the two directions; the loss here is their mean, hence the weight."""
        scores = self.score(text, video)
        return Losses({"contrastive": self.loss(scores, positives)}, {"contrastive": 2.0})
