"""Which of open_clip's models, and what has to be known of it without building it."""

from __future__ import annotations

from dataclasses import dataclass

from eaglenet.types import Resize


@dataclass(frozen=True)
class OpenClipConfig:
    """``name`` is open_clip's own (``ViT-B-32``); the rest is read from the model when loaded."""

    name: str
    dim: int
    image_size: int
    context_length: int
    pixel_mean: tuple[float, float, float]
    pixel_std: tuple[float, float, float]
    resize: Resize = "crop"
    pad_token: int = 0
