"""Small EagleNets with every weight shaken, and features with masks, for the scoring tests."""

from __future__ import annotations

from typing import Any

import torch

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig

# No two axes share a size. The model has room for more frames than most videos bring.
TEXTS, VIDEOS, FRAMES, CANDIDATES, DIM = 3, 4, 5, 6, 32

RELEASED: dict[str, Any] = {
    "head_size": "split",
    "shared_residual": True,
    "edge_weights": "activated",
    "edge_direction": "frame_to_text",
    "prior": "uniform",
    "radius_bias": True,
    "mask_frames": False,
}
"""How the authors' code differs from the paper, as far as scores go."""


def model(*, seed: int = 0, **changes: Any) -> EagleNet:
    """An EagleNet whose identities and zeros are shaken: they would hide a wrong formula."""
    values = {
        "dim": DIM,
        "num_frames": FRAMES,
        "num_candidates": CANDIDATES,
        "num_heads": 2,
        "energy": None,
        **changes,
    }
    config = EagleNetConfig(**values)
    widths = FeatureConfig(text_dim=config.dim, frame_dim=config.dim, dim=config.dim, identity=True)
    torch.manual_seed(seed)
    method = EagleNet.build(config, FeatureEncoder(widths)).eval()
    with torch.no_grad():
        for parameter in method.parameters():
            scale = parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 3.0
            parameter += 0.3 * torch.randn(parameter.shape) / scale
    return method


def texts(count: int = TEXTS, *, dim: int = DIM, seed: int = 1) -> TextFeatures:
    generator = torch.Generator().manual_seed(seed)
    return TextFeatures(torch.randn(count, dim, generator=generator))


def videos(
    count: int = VIDEOS, *, frames: int = FRAMES, dim: int = DIM, seed: int = 2
) -> VideoFeatures:
    """Video ``i`` lacks its last ``i mod frames`` frames."""
    generator = torch.Generator().manual_seed(seed)
    missing = torch.arange(count) % frames
    mask = torch.arange(frames)[None] < (frames - missing)[:, None]
    return VideoFeatures(torch.randn(count, frames, dim, generator=generator), mask)


@torch.no_grad()
def largest_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    assert left.shape == right.shape
    return float((left.double() - right.double()).abs().max())
