"""The compact towers as an encoder of texts and videos."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.compact.config import CompactConfig
from eaglenet.encoders.compact.text import CompactText, mean_of_words
from eaglenet.encoders.compact.vision import CompactVision
from eaglenet.errors import UsageError
from eaglenet.types import Clips, TextFeatures, Tokens, VideoFeatures

LOGIT_SCALE = 3.0
"""Natural logarithm of the temperature's inverse that a new pair of towers starts with."""


class CompactEncoder(nn.Module):
    """Two towers into one space; features are projections, not normalised.

    A new encoder is random (``seed``); ``eaglenet train small`` makes one of the real world.
    """

    def __init__(self, config: CompactConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.vision = CompactVision(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        self.text = CompactText(config.text, config.dim)
        self.logit_scale = nn.Parameter(torch.tensor(LOGIT_SCALE))
        if not self.logit_scale.is_meta:
            generator = torch.Generator().manual_seed(seed)
            self.vision.initialise(generator)
            self.text.initialise(generator)

    def encode_text(self, texts: Tokens, *, words: bool = False) -> TextFeatures:
        """Sentences as the mean of their words; with ``words`` these too."""
        if not isinstance(texts, Tokens):
            raise UsageError(f"a compact encoder reads Tokens, got {type(texts).__name__}")
        texts = texts.to(self.device)
        vectors = self.text(texts.ids, texts.mask)
        sentence = mean_of_words(vectors, texts.mask)
        if not words:
            return TextFeatures(sentence=sentence)
        return TextFeatures(sentence=sentence, words=vectors, words_mask=texts.mask)

    def encode_video(self, videos: Clips, *, patches: bool = False) -> VideoFeatures:
        """One vector a frame; with ``patches`` the frame first, then its places."""
        if not isinstance(videos, Clips):
            raise UsageError(f"a compact encoder reads Clips, got {type(videos).__name__}")
        mask = videos.mask.to(self.device)
        tokens = self.encode_frames(videos.frames, mask, patches=patches)
        return VideoFeatures(
            frames=tokens[:, :, 0], mask=mask, patches=tokens if patches else None
        )

    def encode_frames(
        self,
        frames: Shaped[Tensor, "videos frames 3 height width"],
        mask: Bool[Tensor, "videos frames"] | None = None,
        *,
        patches: bool = False,
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """All frames in one batch through the tower; uint8, or floats normalised already."""
        pixels = frames.to(self.device, non_blocking=True).flatten(0, 1)
        tokens: Tensor = self.vision(pixels, patches=patches)
        return tokens.reshape(*frames.shape[:2], *tokens.shape[1:])

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute blocks in the backward pass of training; a number: the first visual ones."""
        if blocks is True or blocks is False:
            self.text.gradient_checkpointing = blocks
            blocks = len(self.vision.blocks) if blocks else 0
        self.vision.gradient_checkpointing = blocks

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile both towers in place, with ``torch.compile``'s arguments."""
        self.vision.compile(*args, **kwargs)
        self.text.compile(*args, **kwargs)

    @property
    def device(self) -> torch.device:
        return self.logit_scale.device
