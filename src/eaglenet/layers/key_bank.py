"""A queue of keys from earlier steps: more negatives than a batch holds (MoCo)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

EMPTY = -1


class KeyBank(nn.Module):
    """The newest ``size`` keys and the videos they belong to; the oldest make room.

    A key of the same video is never a negative. Places that were never filled, and keys whose
    video is not known, are told apart: the former are masked, the latter are not.
    """

    keys: Tensor
    videos: Tensor
    filled: Tensor
    next_place: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("videos", torch.full((size,), EMPTY))
        self.register_buffer("filled", torch.zeros(size, dtype=torch.bool))
        self.register_buffer("next_place", torch.zeros((), dtype=torch.int64))

    def negatives(
        self, videos: Int[Tensor, "pairs"] | None, count: int
    ) -> Bool[Tensor, "pairs places"]:
        """Which kept keys are negatives of each of ``count`` pairs."""
        if videos is None:
            return self.filled.expand(count, -1)
        is_same = (videos[:, None] == self.videos) & (self.videos != EMPTY)
        return self.filled & ~is_same

    @torch.no_grad()
    def push(self, keys: Float[Tensor, "pairs dim"], videos: Int[Tensor, "pairs"] | None) -> None:
        """Keep these keys; of more than fit, the last ones."""
        size = len(self.keys)
        kept = keys.detach()[-size:]
        places = (self.next_place + torch.arange(len(kept), device=kept.device)) % size
        self.keys[places] = kept.to(self.keys.dtype)
        self.filled[places] = True
        self.videos[places] = EMPTY if videos is None else videos[-size:]
        self.next_place.copy_((self.next_place + len(kept)) % size)
