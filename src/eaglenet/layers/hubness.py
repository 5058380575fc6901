"""Hubness offsets of videos that are close to all texts of a bank."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def soft_maximum(
    cosines: Float[Tensor, "bank videos"], scale: Float[Tensor, ""] | float
) -> Float[Tensor, "videos"]:
    r"""Return the soft maximum of the cosines of each video with the texts of a bank.

    .. math:: \frac{1}{a} \log \frac{1}{K} \sum_k \exp(a \, c_{kv})
    """
    return (torch.logsumexp(scale * cosines, dim=0) - math.log(len(cosines))) / scale


class HubnessLayer(nn.Module):
    r"""Hubness offset: the part of the score of a video that is due to its closeness to all texts.

    .. math:: h(v) = \frac{w}{a} \log \frac{1}{K} \sum_k \exp(a \, \hat b_k \cdot \hat v)

    over the K unit vectors b of the bank, with the logit scale a of the towers. For w = 1, a score
    minus h(v) is, up to constants, the logarithm of a softmax over texts: the inverted softmax of
    Smith et al. (2017), with texts that are known when a video is indexed. Training replaces the
    oldest vectors of the bank. The model stores the vectors of the texts, not the texts.
    """

    vectors: Tensor
    count: Tensor

    def __init__(self, size: int, dim: int, weight: float) -> None:
        super().__init__()
        self.size, self.weight = size, weight
        self.register_buffer("vectors", torch.zeros(size, dim))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def add(self, vectors: Float[Tensor, "texts dim"]) -> None:
        """Replace the oldest vectors of the bank by those of new texts."""
        unit = F.normalize(vectors.detach().to(self.vectors.dtype), dim=-1)[-self.size :]
        rows = (self.count + torch.arange(len(unit), device=unit.device)) % self.size
        self.vectors[rows] = unit
        self.count += len(unit)

    def stored_vectors(self) -> Float[Tensor, "texts dim"]:
        """Return the unit vectors of the texts stored so far."""
        return self.vectors[: min(int(self.count), self.size)]

    def forward(
        self, videos: Float[Tensor, "videos dim"], scale: Float[Tensor, ""]
    ) -> Float[Tensor, "videos"]:
        """Return the offsets of unit videos; zeros while the bank is empty."""
        texts = self.stored_vectors()
        if not len(texts):
            return videos.new_zeros(len(videos))
        wide = torch.promote_types(videos.dtype, torch.float32)
        scale = scale.detach().to(wide)
        cosines = texts.to(wide) @ videos.to(wide).T
        return (self.weight * soft_maximum(cosines, scale)).to(videos.dtype)
