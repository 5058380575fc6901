"""X-Pool: each text pools the frames of a video by attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.types import Encoder, TextFeatures, VideoFeatures
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class XPoolConfig(MethodConfig):
    """Settings of X-Pool.

    num_heads: attention heads of the pooling. dropout: dropout of its last linear layer.
    """

    num_heads: int = 1
    dropout: float = 0.3


@register(XPoolConfig, paper="X-Pool (Gorti et al., CVPR 2022)", checked_by="golden")
class XPool(Method):
    """``s(t, v) = cos(t, pool(v | t))`` with the text as the query over the frames.

    Paper: padded frames are masked; the original code always has all frames.
    """

    name = "xpool"
    config: XPoolConfig

    def __init__(self, encoder: Encoder, config: XPoolConfig) -> None:
        super().__init__(encoder, config)
        self.pooling = FramePooling(encoder.dim, dropout=config.dropout, num_heads=config.num_heads)
        self.loss = SoftmaxLoss()

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        videos = self.pooling(text.sentence, video.frames, video.mask)
        return F.cosine_similarity(text.sentence[:, None], videos, dim=-1)
