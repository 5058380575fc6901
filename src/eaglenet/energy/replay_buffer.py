"""Replay buffer: ends of earlier chains, where new chains start."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

ChainStart = Literal["independent", "joint"]
FreshRows = Literal["symmetric", "released"]


class ReplayBuffer(nn.Module):
    """Buffer of the newest ``size`` samples, which are part of the state dict.

    A chain starts at a stored row with probability ``1 - fresh_fraction``, else at fresh noise.
    With ``fresh="released"``, a fixed number of chains per batch starts at fresh noise:
    ``B - floor(0.95 B)``. ``written`` (a name in stored models) counts the rows with a sample; an
    empty buffer returns fresh noise only. Everything stays on the device, without synchronisation.

    rows: ``independent`` draws text and frames separately (paper algorithm 1); ``joint`` takes both
        from the same row, and no row twice if there are enough (released code).

    fresh: ``symmetric`` always draws from U[-1, 1); ``released`` does so only while the buffer is
        empty, and draws from U[0, 1) later.

    Paper: the released code fills the buffer with zeros and draws them; there is no option for it.
    """

    texts: Tensor
    frames: Tensor
    written: Tensor
    position: Tensor

    def __init__(
        self,
        size: int,
        num_frames: int,
        dim: int,
        *,
        fresh_fraction: float = 0.05,
        rows: ChainStart = "independent",
        fresh: FreshRows = "symmetric",
    ) -> None:
        super().__init__()
        self.fresh = fresh
        self.size = size
        self.fresh_fraction = fresh_fraction
        self.rows = rows
        self.register_buffer("texts", torch.zeros(size, dim))
        self.register_buffer("frames", torch.zeros(size, num_frames, dim))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def draw(
        self, num_pairs: int, *, generator: torch.Generator | None = None
    ) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs frames dim"]]:
        """Return the starts of ``num_pairs`` chains: texts and frames."""
        text_rows, text_fresh = self._choose(num_pairs, generator)
        frame_rows, frame_fresh = (
            (text_rows, text_fresh) if self.rows == "joint" else self._choose(num_pairs, generator)
        )
        texts = self._fresh(self.texts, num_pairs, generator)
        frames = self._fresh(self.frames, num_pairs, generator)
        texts = torch.where(text_fresh[:, None], texts, self.texts[text_rows])
        frames = torch.where(frame_fresh[:, None, None], frames, self.frames[frame_rows])
        return texts, frames

    @torch.no_grad()
    def write(
        self, texts: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> None:
        """Replace the oldest samples by new ones."""
        texts, frames = texts[-self.size :], frames[-self.size :]
        count = texts.shape[0]
        rows = (self.position + torch.arange(count, device=self.texts.device)) % self.size
        self.texts[rows] = texts.to(self.texts.dtype)
        self.frames[rows] = frames.to(self.frames.dtype)
        self.position.add_(count).remainder_(self.size)
        self.written.add_(count).clamp_(max=self.size)

    def _choose(self, num_pairs: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return a stored row per chain, and a mask of chains that start from fresh noise."""
        device = self.texts.device
        if self.fresh == "released":
            num_stored = math.floor((1 - self.fresh_fraction) * num_pairs)
            is_fresh = torch.arange(num_pairs, device=device) >= num_stored
        else:
            chance = torch.rand(num_pairs, device=device, generator=generator)
            is_fresh = chance < self.fresh_fraction
        is_fresh = is_fresh | (self.written == 0)
        if self.rows == "joint":
            return self._different_rows(num_pairs, generator), is_fresh
        uniform = torch.rand(num_pairs, device=device, generator=generator)
        # Clamped because rounding may give exactly 1.0 * written. Row 0 of an empty buffer is not
        # used.
        rows = (uniform * self.written).long().clamp(min=0)
        rows = torch.minimum(rows, (self.written - 1).clamp_min(0))
        return rows, is_fresh

    def _different_rows(self, num_pairs: int, generator: torch.Generator | None) -> Tensor:
        """Return stored rows in random order, repeated if there are too few."""
        device = self.texts.device
        order = torch.rand(self.size, device=device, generator=generator)
        # Empty rows come last, where no index reaches them.
        order = torch.where(torch.arange(self.size, device=device) < self.written, order, 2.0)
        indices = torch.arange(num_pairs, device=device) % self.written.clamp(min=1)
        return order.argsort()[indices]

    def _fresh(self, rows: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        shape = (count, *rows.shape[1:])
        unit = torch.rand(shape, device=rows.device, dtype=rows.dtype, generator=generator)
        if self.fresh == "symmetric":
            return 2 * unit - 1
        return torch.where(self.written == 0, 2 * unit - 1, unit)
