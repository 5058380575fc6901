"""Clips from files, arrays or tensors of frames, and images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.video.images import decode_image, square_image
from eaglenet.video.pixels import BLANK
from eaglenet.video.sampling import fill_frames

if TYPE_CHECKING:
    from PIL.Image import Image

Frames = np.ndarray[Any, np.dtype[np.uint8]] | Tensor
"""uint8 frames of one video, channels last or second; a fifth axis holds several videos."""
EXPECTED = (
    "a video is a file, or uint8 frames as an array [frames, height, width, 3] or a tensor "
    "[frames, 3, height, width]"
)


def clips_of(videos: Any, spec: FrameSpec) -> Clips:
    """Convert one or more videos, each a file or its frames, to clips.

    An array or tensor with five axes is several videos, as is a list of files, arrays or tensors.
    """
    if isinstance(videos, str | Path):
        return clips_of_video(videos, spec)
    if isinstance(videos, np.ndarray | Tensor):
        if videos.ndim == 5:
            return Clips.concatenate([clips_of_frames(video, spec) for video in videos])
        return clips_of_frames(videos, spec)
    if isinstance(videos, Sequence) and len(videos):
        return Clips.concatenate([clips_of(video, spec) for video in videos])
    raise UsageError(f"{type(videos).__name__} {videos!r:.60} is not a video; {EXPECTED}")


def clips_of_video(
    path: str | Path, spec: FrameSpec, window: tuple[float, float] | None = None
) -> Clips:
    """Decode a file, or a window of it, to one clip."""
    from eaglenet.video.decoding import decode

    video = decode(path, spec, window=window)
    return Clips(video.frames[None], video.mask[None], video.seconds[None].float())


def clips_of_image(image: str | Path | Image, spec: FrameSpec) -> Clips:
    """Convert an image to a clip that repeats it in every frame."""
    if isinstance(image, str | Path):
        frame = decode_image(Path(image), spec.size, spec.resize)
    else:
        frame = square_image(image, spec.size, spec.resize)
    frames = frame.expand(1, spec.num_frames, *frame.shape).contiguous()
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    return Clips(frames, mask, torch.zeros(1, spec.num_frames))


def clips_of_frames(frames: Frames, spec: FrameSpec) -> Clips:
    """Sample frames in memory to one clip, at the middles of equal segments like a file.

    Since their times are unknown, ``seconds`` counts frames.
    """
    from PIL import Image

    images = _channels_last(frames)
    count = len(images)
    if count >= spec.num_frames:
        sampled: list[int | None] = [
            (2 * index + 1) * count // (2 * spec.num_frames) for index in range(spec.num_frames)
        ]
        mask = [True] * spec.num_frames
    else:
        sampled, mask = fill_frames(count, spec.num_frames, spec.short)
    squares: dict[int | None, Tensor] = {
        None: torch.tensor(BLANK, dtype=torch.uint8)[:, None, None].expand(-1, spec.size, spec.size)
    }
    for number in {number for number in sampled if number is not None}:
        image = Image.fromarray(images[number])
        squares[number] = square_image(image, spec.size, spec.resize)
    return Clips(
        torch.stack([squares[number] for number in sampled])[None],
        torch.tensor(mask)[None],
        torch.tensor([[float(number or 0) for number in sampled]]),
    )


def _channels_last(frames: Frames) -> np.ndarray[Any, np.dtype[np.uint8]]:
    array = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or 3 not in (array.shape[-1], array.shape[1]):
        raise UsageError(f"{array.dtype} {list(array.shape)} is not a video; {EXPECTED}")
    if not len(array):
        raise UsageError(f"the video has no frames; {EXPECTED}")
    # If both axes have length 3, arrays are taken as channels last and tensors as channels second.
    is_last = array.shape[-1] == 3 and not (isinstance(frames, Tensor) and array.shape[1] == 3)
    return np.ascontiguousarray(array if is_last else array.transpose(0, 2, 3, 1))
