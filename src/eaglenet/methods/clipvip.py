"""CLIP-ViP: proxy tokens exchange information between frames in the vision tower."""

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
from eaglenet.methods.tower_base import CosineMethod, TowerMethod, freeze_frame_embedding


@dataclass(frozen=True)
class CLIPViPConfig(MethodConfig):
    """Settings of CLIP-ViP.

    num_proxies: number of proxy tokens; the first is the class token of CLIP.
    num_positions: number of frame positions, interpolated for videos with more or fewer frames.
    padding: ``official`` counts padded frames as real, as the code of the authors does.
    """

    num_proxies: int = 4
    num_positions: int = 12
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_proxies", "num_positions")


@register(CLIPViPConfig, paper="CLIP-ViP (Xue et al., ICLR 2023)", checked_by="golden")
class CLIPViP(CosineMethod, TowerMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the class token, which attends to the whole video.

    ``VideoFeatures.video`` is that vector. Single frames have no class token, so ``frames`` are the
    means of their projected patches, which are used for moments but not in the score.

    Paper: starts from plain CLIP (the authors start from a checkpoint trained on 100 million
    videos). The logit scale may grow to 200.
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
        """Return the loss with weight 2: the authors add both directions, averaged here."""
        scores = self.score(text, video)
        return Losses({"contrastive": self.loss(scores, positives)}, {"contrastive": 2.0})
