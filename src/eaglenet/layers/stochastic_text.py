"""Stochastic text: random candidates around a text, with a radius that depends on the video."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import MIN_NORM

Prior = Literal["normal", "uniform"]
SupportMode = Literal["pair", "elementwise", "batch"]


def draw_noise(
    *shape: int,
    prior: Prior,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw noise: N(0, 1) (paper) or U[0, 1) (released code).

    Without a generator, the default generator of the device is used, which training seeds at each
    step.
    """
    draw = torch.randn if prior == "normal" else torch.rand
    return draw(shape, device=device, dtype=dtype, generator=generator)


def row_keys(values: Float[Tensor, "rows *rest"]) -> Int[Tensor, "rows"]:
    """Return a 64-bit key per row; rows of equal bits have equal keys."""
    bits = values.detach().float().flatten(1).contiguous().view(torch.int32).long()
    positions = torch.arange(bits.shape[1], device=bits.device)
    return _mix(_mix(bits) + positions).sum(dim=1)


def pair_noise(
    text_keys: Int[Tensor, "texts"],
    video_keys: Int[Tensor, "videos"],
    num_candidates: int,
    dim: int,
    *,
    prior: Prior,
    seed: int,
) -> Float[Tensor, "texts videos candidates dim"]:
    """Draw separate noise for each pair from its two keys and the seed.

    A counter-based generator: a pair has the same noise in any tile, order or process.
    """
    keys = _mix(text_keys[:, None] + _mix(video_keys[None, :] + seed))
    counters = torch.arange(num_candidates * dim, device=keys.device)
    bits = _mix(keys[..., None] + counters) >> 41 & 0x7FFFFF
    # The middle of each of 2^23 intervals, which float32 represents exactly.
    noise: Tensor = (bits.float() + 0.5) / (1 << 23)
    if prior == "normal":
        noise = math.sqrt(2.0) * torch.erfinv(2.0 * noise - 1.0)
    return noise.reshape(*keys.shape, num_candidates, dim)


def _mix(values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Apply the output function of SplitMix64 (wrapping products, logical shifts)."""
    values = values * -7046029254386353131
    values = (values ^ (values >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    values = (values ^ (values >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    return values ^ (values >> 31 & 0x1FFFFFFFF)


class StochasticText(nn.Module):
    """Radius and candidates of text-video pairs (paper appendix B.1).

    ``s_m = cos(f_m, t)``, ``r = exp(W s)``, ``t_i = t + r * eps_i``. ``W`` starts as a rectangular
    identity: dimension k depends on frame k, and dimensions beyond the frames have radius 1.

    bias: adds a bias, ``r = exp(W s + b)``. Paper: none; the released code has one.
    """

    def __init__(self, num_frames: int, dim: int, *, bias: bool = False) -> None:
        super().__init__()
        self.num_frames = num_frames
        self.log_radius = nn.Linear(num_frames, dim, bias=bias)
        nn.init.eye_(self.log_radius.weight)
        if bias:
            nn.init.zeros_(self.log_radius.bias)

    def radius(
        self,
        text: Float[Tensor, "texts dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "texts videos dim"]:
        """Return the radius of every pair; missing and padded frames have similarity 0."""
        unit_text = F.normalize(text, dim=-1, eps=MIN_NORM)
        unit_frames = F.normalize(frames, dim=-1, eps=MIN_NORM)
        similarity = torch.einsum("td,vfd->tvf", unit_text, unit_frames)
        if mask is not None:
            similarity = similarity.masked_fill(~mask, 0.0)
        weight = self.log_radius.weight[:, : frames.shape[1]]
        return F.linear(similarity, weight, self.log_radius.bias).exp()

    def candidates(
        self,
        text: Float[Tensor, "texts dim"],
        radius: Float[Tensor, "texts videos dim"],
        noise: Float[Tensor, "candidates dim"] | Float[Tensor, "texts videos candidates dim"],
    ) -> Float[Tensor, "texts videos candidates dim"]:
        """Return ``t + r * eps``; ``noise`` is shared by all pairs or separate for each."""
        return torch.addcmul(text[:, None, None], radius[:, :, None], noise)


def support_text(
    text: Float[Tensor, "texts dim"],
    pooled_videos: Float[Tensor, "texts videos dim"],
    radius: Float[Tensor, "texts videos dim"],
    *,
    mode: SupportMode = "pair",
) -> Float[Tensor, "texts videos dim"]:
    """Return the text moved towards the video by the radius, to the edge of the stochastic region.

    ``pair`` (paper, appendix B.2): ``t + ||r|| (v - t) / ||v - t||`` with the pooled video of the
    pair.
    ``elementwise``: ``t + r * (v - t) / ||v - t||``, as T-MASS does for the right video.
    ``batch`` (released code): the same towards ``m``, the mean of the unit pooled videos over the
    texts of the batch.

    Paper: a radius of 1 in each of d dimensions has ``||r|| = sqrt(d)``, the length of a pooled
    video after LayerNorm. So ``pair`` moves the text of *every* pair close to its video, and the
    sigmoid loss, which treats each pair separately, pushes all videos away from all texts (numbers
    in docs/lab/features.md). Recipes use ``elementwise``.
    """
    target = pooled_videos
    if mode == "batch":
        target = F.normalize(pooled_videos, dim=-1, eps=MIN_NORM).mean(dim=0)
    direction = F.normalize(target - text[:, None], dim=-1, eps=MIN_NORM)
    if mode == "pair":
        radius = torch.linalg.vector_norm(radius, dim=-1, keepdim=True)
    return torch.addcmul(text[:, None], radius, direction)
