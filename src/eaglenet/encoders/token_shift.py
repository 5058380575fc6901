"""Token shift: some patches of a frame look at the previous or the next frame (TS2-Net)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from eaglenet.errors import ConfigError


def shift_stride(num_tokens: int) -> int:
    """g = floor(n / 7), the distance between shifted tokens; n counts the class token."""
    stride = num_tokens // 7
    if stride == 0:
        raise ConfigError(
            f"token shift needs at least 7 tokens a frame, got {num_tokens}; "
            "use a smaller patch or switch token shift off"
        )
    return stride


def shift_tokens(
    tokens: Float[Tensor, "images tokens width"], num_frames: int
) -> Float[Tensor, "images tokens width"]:
    """Replace whole tokens by their neighbours in time; images are videos times frames in order.

    Tokens 1, 1 + g, 1 + 2g, ... come from the previous frame and 4, 4 + g, ... from the next one;
    the first and the last frame keep their own. The class token (0) never moves. Padded frames
    take part like any other, so videos of one batch must have their frames filled alike.
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
    shifted[:, 1:, 1::stride] = videos[:, :-1, 1::stride]
    # From `videos`, not from `shifted`: a token moves by one frame at most.
    shifted[:, :-1, 4::stride] = videos[:, 1:, 4::stride]
    return shifted.flatten(0, 1)
