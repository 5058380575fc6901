"""Langevin sampling of text-video pairs from an energy."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from eaglenet.energy.energies import Energy

NoiseScale = Literal["variance", "std"]


def noise_deviation(value: float, scale: NoiseScale) -> float:
    """Standard deviation of the chain noise, where ``value`` is the variance or the std itself.

    Paper: sigma^2 = 0.005 is a variance (std 0.0707); the released code uses 0.005 as the std.
    """
    return math.sqrt(value) if scale == "variance" else value


@torch.no_grad()
def sample(
    energy: Energy,
    text: Float[Tensor, "pairs dim"],
    frames: Float[Tensor, "pairs frames dim"],
    *,
    steps: int = 20,
    step_size: float = 1.0,
    deviation: float = 0.0,
    noise: tuple[Float[Tensor, "steps pairs dim"], Float[Tensor, "steps pairs frames dim"]]
    | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs frames dim"]]:
    """Run a K-step chain (paper eq. 16) and return its end; text and frames move together.

    ``x <- x - eta dE/dx + deviation * N(0, 1)``. No gradient flows through the samples.

    Args:
        noise: standard normal noise of every step for text and frames, instead of drawn noise;
            scaled by ``deviation`` like drawn noise.
    """
    for step in range(steps):
        to_text, to_frames = energy.gradients(text, frames)
        text = text.add(to_text, alpha=-step_size)
        frames = frames.add(to_frames, alpha=-step_size)
        if deviation == 0.0:
            continue
        if noise is not None:
            text_noise, frame_noise = noise[0][step], noise[1][step]
        else:
            text_noise = _standard_normal(text, generator)
            frame_noise = _standard_normal(frames, generator)
        text = text.add(text_noise, alpha=deviation)
        frames = frames.add(frame_noise, alpha=deviation)
    return text, frames


def _standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, device=like.device, dtype=like.dtype, generator=generator)
