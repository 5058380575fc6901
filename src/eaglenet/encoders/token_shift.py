"""Token shift: some patches of a frame look at the previous or the next frame (TS2-Net)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.errors import ConfigError


def shift_stride(num_tokens: int) -> int:
    """g = floor(n / 7), the distance between shifted tokens; n counts the class token."""
    stride = num_tokens // 7
    if stride == 0:
        raise ConfigError(
            f"token shift needs at least 7 tokens per frame, got {num_tokens}; "
            "use a smaller patch or switch token shift off"
        )
    return stride


def shift_tokens(
    tokens: Float[Tensor, "images tokens width"],
    num_frames: int,
    frame_mask: Bool[Tensor, "videos frames"] | None = None,
) -> Float[Tensor, "images tokens width"]:
    """Replace whole tokens by their neighbours in time; images are videos times frames in order.

    Tokens 1, 1 + g, 1 + 2g, ... come from the previous frame and 4, 4 + g, ... from the next one;
    the first and the last frame keep their own. The class token (0) never moves. With
    ``frame_mask`` nothing moves between a real and a padded frame; without it all count as real.
    Where both lists name a token (g = 1 or 3), the next frame wins.
    """
    if tokens.shape[0] % num_frames:
        raise ConfigError(
            f"{tokens.shape[0]} images cannot be whole videos of {num_frames} frames; "
            "pass the number of frames of a video"
        )
    stride = shift_stride(tokens.shape[1])
    videos = tokens.reshape(
        len(tokens) // num_frames, num_frames, *tokens.shape[1:]
    )  # [videos, frames, tokens, width]
    shifted = videos.clone()
    earlier, later = videos[:, :-1], videos[:, 1:]
    # From `videos`, not from `shifted`: a token moves by one frame at most.
    if frame_mask is None:
        shifted[:, 1:, 1::stride] = earlier[:, :, 1::stride]
        shifted[:, :-1, 4::stride] = later[:, :, 4::stride]
        return shifted.flatten(0, 1)
    linked = (frame_mask[:, :-1] & frame_mask[:, 1:])[..., None, None]
    shifted[:, 1:, 1::stride] = torch.where(linked, earlier, later)[:, :, 1::stride]
    # The frame may hold tokens of the previous one already: those stay where nothing moves.
    shifted[:, :-1, 4::stride] = torch.where(linked, later, shifted[:, :-1])[:, :, 4::stride]
    return shifted.flatten(0, 1)
