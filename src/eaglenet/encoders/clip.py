"""CLIP as an encoder of texts and videos."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.config import CLIP_LOGIT_SCALE, ClipConfig
from eaglenet.encoders.text import TextTower, take_positions
from eaglenet.encoders.vision import VisionTower
from eaglenet.errors import UsageError
from eaglenet.types import Clips, TextFeatures, Tokens, VideoFeatures

__all__ = ["ClipConfig", "ClipEncoder"]


class ClipEncoder(nn.Module):
    """Two towers into one space; features are projections, not normalised.

    Weights may be fp32, bf16 or fp16; training runs bf16 autocast over fp32 weights. A new encoder
    is random (``seed``); :func:`eaglenet.encoders.pretrained.load_clip` gives a trained one.
    """

    def __init__(self, config: ClipConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.vision = VisionTower(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        self.text = TextTower(config.text, config.dim)
        self.logit_scale = nn.Parameter(torch.tensor(CLIP_LOGIT_SCALE))
        if not self.logit_scale.is_meta:
            generator = torch.Generator().manual_seed(seed)
            self.vision.initialise(generator)
            self.text.initialise(generator)

    def encode_text(self, texts: Tokens, *, words: bool = False) -> TextFeatures:
        """Sentences at their end token; with ``words`` every position and which are real."""
        if not isinstance(texts, Tokens):
            raise UsageError(f"a CLIP encoder reads Tokens, got {type(texts).__name__}")
        texts = texts.to(self.device)
        features = self.text(texts.ids, words=words)
        if not words:
            return TextFeatures(sentence=features[:, 0])
        sentence = take_positions(features, self.text.end_positions(texts.ids))
        return TextFeatures(sentence=sentence, words=features, words_mask=texts.mask)

    def encode_video(self, videos: Clips, *, patches: bool = False) -> VideoFeatures:
        """The class token of every frame; with ``patches`` all tokens, the class token first.

        ``patches`` is [videos, frames, 1 + patches, dim], and ``patches[:, :, 0]`` is ``frames``.
        """
        if not isinstance(videos, Clips):
            raise UsageError(f"a CLIP encoder reads Clips, got {type(videos).__name__}")
        mask = videos.mask.to(self.device)
        tokens = self.encode_frames(videos.frames, mask, patches=patches)
        return VideoFeatures(
            frames=tokens[:, :, 0],
            mask=mask,
            patches=tokens if patches else None,
        )

    def encode_frames(
        self,
        frames: Shaped[Tensor, "videos frames 3 height width"],
        mask: Bool[Tensor, "videos frames"] | None = None,
        *,
        patches: bool = False,
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """All frames in one batch through the tower; uint8, or floats normalised already.

        ``mask`` says which frames are real; only token shift looks at it.
        """
        num_videos, num_frames = frames.shape[:2]
        pixels = frames.to(self.device, non_blocking=True).flatten(0, 1)
        tokens: Tensor = self.vision(
            pixels, num_frames=num_frames, frame_mask=mask, patches=patches
        )
        return tokens.reshape(num_videos, num_frames, *tokens.shape[1:])

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time inside these visual blocks (from 0), and in no other."""
        self.vision.set_token_shift(blocks)

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute blocks in the backward pass of training: less memory, up to a third slower.

        A number recomputes that many of the first visual blocks only, for memory in between.
        """
        if blocks is True or blocks is False:
            self.text.gradient_checkpointing = blocks
            blocks = len(self.vision.blocks) if blocks else 0
        self.vision.gradient_checkpointing = blocks

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile both towers in place, with ``torch.compile``'s arguments.

        Use the default mode: it fuses norms, activations and pixel normalisation between the
        matrix products, which makes ViT-B/16 about a third faster in bf16 on an H200
        (``benchmarks/encoding.py``). ``max-autotune`` searched for minutes there and kept the
        library's kernels for the large products; its speed was not measured. A new batch shape
        compiles again, so keep batches of one size. Names and weights do not change.
        """
        self.vision.compile(*args, **kwargs)
        self.text.compile(*args, **kwargs)

    @property
    def device(self) -> torch.device:
        return self.logit_scale.device
