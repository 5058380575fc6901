"""What people have at hand, as clips: files, arrays or tensors of frames, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.video.images import decode_image, to_square_picture
from eaglenet.video.pixels import BLANK
from eaglenet.video.sampling import fill_up

if TYPE_CHECKING:
    from PIL.Image import Image

Frames = np.ndarray[Any, np.dtype[np.uint8]] | Tensor
"""Frames of one video (uint8, channels last or second), or of several along a fifth axis."""
EXPECTED = (
    "a video is a file, or uint8 frames as an array [frames, height, width, 3] or a tensor "
    "[frames, 3, height, width]"
)


def clips_of(videos: Any, spec: FrameSpec) -> Clips:
    """One video or several, each a file or its frames, as ``spec`` takes them.

    An array or tensor of five axes is several videos; so is a list of files, arrays or tensors.
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
    """A file as one clip."""
    from eaglenet.video.decoding import decode

    video = decode(path, spec, window=window)
    return Clips(video.frames[None], video.mask[None], video.seconds[None].float())


def clips_of_image(image: str | Path | Image, spec: FrameSpec) -> Clips:
    """A picture, prepared as frames are, in every place: what a still in a video looks like."""
    if isinstance(image, str | Path):
        frame = decode_image(Path(image), spec.size, spec.resize)
    else:
        frame = to_square_picture(image, spec.size, spec.resize)
    frames = frame.expand(1, spec.num_frames, *frame.shape).contiguous()
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    return Clips(frames, mask, torch.zeros(1, spec.num_frames))


def clips_of_frames(frames: Frames, spec: FrameSpec) -> Clips:
    """Frames in memory as one clip: the middles of equal segments, as of a file.

    Their times are not known: ``seconds`` counts frames.
    """
    from PIL import Image

    pictures = _channels_last(frames)
    count = len(pictures)
    if count >= spec.num_frames:
        chosen: list[int | None] = [
            (2 * place + 1) * count // (2 * spec.num_frames) for place in range(spec.num_frames)
        ]
        mask = [True] * spec.num_frames
    else:
        chosen, mask = fill_up(count, spec.num_frames, spec.short)
    squares: dict[int | None, Tensor] = {
        None: torch.tensor(BLANK, dtype=torch.uint8)[:, None, None].expand(-1, spec.size, spec.size)
    }
    for number in {number for number in chosen if number is not None}:
        image = Image.fromarray(pictures[number])
        squares[number] = to_square_picture(image, spec.size, spec.resize)
    return Clips(
        torch.stack([squares[number] for number in chosen])[None],
        torch.tensor(mask)[None],
        torch.tensor([[float(number or 0) for number in chosen]]),
    )


def _channels_last(frames: Frames) -> np.ndarray[Any, np.dtype[np.uint8]]:
    array = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or 3 not in (array.shape[-1], array.shape[1]):
        raise UsageError(f"{array.dtype} {list(array.shape)} is not a video; {EXPECTED}")
    if not len(array):
        raise UsageError(f"the video has no frames; {EXPECTED}")
    # Three pixels high or wide could be read both ways; arrays have colours last by habit.
    is_last = array.shape[-1] == 3 and not (isinstance(frames, Tensor) and array.shape[1] == 3)
    return np.ascontiguousarray(array if is_last else array.transpose(0, 2, 3, 1))
