"""What changes around a frame, from the vectors of its neighbours."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class FrameChanges(nn.Module):
    r"""A linear map of the next frame minus the one before, zero at the start.

    .. math:: c_m = D\,(f_{m+1} - f_{m-1})

    At both ends of a video the end stands in for its missing neighbour. A clip that is played
    backwards has the same frames and the opposite changes: this is the shortest way by which a word
    such as "left" or "grows" can find what it means. Where a video is padded, nothing changes.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(
        self, frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
        after = torch.cat([frames[:, 1:], frames[:, -1:]], dim=1)
        has_after = torch.cat([mask[:, 1:], mask[:, -1:]], dim=1)[..., None]
        after = torch.where(has_after, after, frames)
        return self.map(after - before) * mask[..., None]  # type: ignore[no-any-return]
