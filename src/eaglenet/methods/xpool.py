"""X-Pool: each text pools the frames of a video by attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, Method, MethodSpec, builder, frame_spec_for


@dataclass(frozen=True)
class XPoolConfig:
    """Settings of X-Pool.

    num_heads: of the pooling's attention. dropout: of its last linear layer.
    """

    num_frames: int = 12
    num_heads: int = 1
    dropout: float = 0.3


class XPool(Method):
    """``s(t, v) = cos(t, pool(v | t))`` with the text as the query over the frames.

    Paper: padded frames are masked; the original always has all its frames.
    """

    name = "xpool"
    config: XPoolConfig

    def __init__(self, encoder: Encoder, config: XPoolConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config
        self.pooling = FramePooling(encoder.dim, dropout=config.dropout, num_heads=config.num_heads)
        self.loss = SoftmaxLoss()

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        pooled = self.pooling(text.sentence, video.frames, video.mask)
        return F.cosine_similarity(text.sentence[:, None], pooled, dim=-1)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        return Losses({"contrastive": self.loss(self.score(text, video), positives)})


METHODS.add(
    XPool.name,
    MethodSpec(
        config_class=XPoolConfig,
        build=builder(XPool),
        paper="X-Pool (Gorti et al., CVPR 2022)",
        checked="golden",
    ),
)
