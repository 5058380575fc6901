"""CLIP4Clip's stem over three frames: a patch is seen with the frame before and the frame after."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class TemporalStem(nn.Module):
    """The outer slices of a convolution of three frames, whose middle is the tower's own patch map.

    Both start at zero, so a new stem changes nothing. A frame has no neighbour beyond the ends of
    its video, nor in a padded frame: zeros stand there, CLIP's mean colour.
    """

    def __init__(self, middle: nn.Linear) -> None:
        super().__init__()
        self.before, self.after = _silent_copy(middle), _silent_copy(middle)

    def forward(
        self,
        patches: Float[Tensor, "images patches pixels"],
        num_frames: int,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "images patches channels"]:
        """What the neighbours add to each projected patch; pixels are normalised already."""
        videos = patches.reshape(-1, num_frames, *patches.shape[1:])
        if frame_mask is not None:
            videos = videos.masked_fill(~frame_mask.to(videos.device)[..., None, None], 0.0)
        from_before = F.pad(self.before(videos[:, :-1]), (0, 0, 0, 0, 1, 0))
        from_after = F.pad(self.after(videos[:, 1:]), (0, 0, 0, 0, 0, 1))
        return (from_before + from_after).flatten(0, 1)


def _silent_copy(linear: nn.Linear) -> nn.Linear:
    """A map of the same shape, place and precision, all zeros."""
    copy = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
    copy.weight = nn.Parameter(linear.weight.detach().new_zeros(linear.weight.shape))
    return copy
