"""A CLIP of a few thousand weights, for methods that change or read the towers."""

from __future__ import annotations

import torch

from eaglenet.core.types import Clips
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig


def small_clip(image_size: int = 16, width: int = 12, layers: int = 2) -> ClipEncoder:
    """Patches of 8 pixels: 2 x 2 of them in a frame of 16."""
    return ClipEncoder(
        ClipConfig(
            dim=8,
            vision=VisionConfig(
                image_size=image_size,
                patch_size=8,
                width=width,
                layers=layers,
                heads=2,
                mlp_width=20,
            ),
            text=TextConfig(
                vocabulary_size=60, context_length=40, width=8, layers=2, heads=2, mlp_width=32
            ),
        ),
        seed=1,
    )


def small_clips(videos: int, frames: int, size: int = 16, seed: int = 5) -> Clips:
    generator = torch.Generator().manual_seed(seed)
    return Clips(
        torch.randint(0, 256, (videos, frames, 3, size, size), generator=generator).byte(),
        torch.ones(videos, frames, dtype=torch.bool),
        torch.arange(frames).float().repeat(videos, 1),
    )
