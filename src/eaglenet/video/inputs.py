"""Frames of files, of arrays and of images, as one batch of arrays. Does not import torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.images import decode_image, square_array
from eaglenet.video.pixels import BLANK, Pixels
from eaglenet.video.sampling import counted_positions, fill_frames

if TYPE_CHECKING:
    from PIL.Image import Image

EXPECTED = (
    "a video is a file, or uint8 frames as an array [frames, height, width, 3] or a tensor "
    "[frames, 3, height, width]"
)


@dataclass(frozen=True)
class FrameBatch:
    """Decoded frames ``[videos, frames, 3, height, width]``, a mask of the real ones, their times.

    :class:`eaglenet.core.types.Clips` is the same in tensors.
    """

    frames: NDArray[np.uint8]
    mask: NDArray[np.bool_]
    seconds: NDArray[np.float32]

    @classmethod
    def concatenate(cls, batches: Sequence[FrameBatch]) -> FrameBatch:
        return cls(
            np.concatenate([batch.frames for batch in batches]),
            np.concatenate([batch.mask for batch in batches]),
            np.concatenate([batch.seconds for batch in batches]),
        )


def clips_of(videos: Any, spec: FrameSpec) -> FrameBatch:
    """Convert one or more videos, each a file or its frames, to clips.

    An array or tensor with five axes is several videos, as is a list of files, arrays or tensors.
    """
    if isinstance(videos, str | Path):
        return clips_of_video(videos, spec)
    if isinstance(videos, np.ndarray) or _is_tensor(videos):
        if videos.ndim == 5:
            return FrameBatch.concatenate([clips_of_frames(video, spec) for video in videos])
        return clips_of_frames(videos, spec)
    if isinstance(videos, Sequence) and len(videos):
        return FrameBatch.concatenate([clips_of(video, spec) for video in videos])
    raise UsageError(f"{type(videos).__name__} {videos!r:.60} is not a video; {EXPECTED}")


def clips_of_video(
    path: str | Path, spec: FrameSpec, window: tuple[float, float] | None = None
) -> FrameBatch:
    """Decode a file, or a window of it, to one clip."""
    from eaglenet.video.decoding import decode

    video = decode(path, spec, window=window)
    return FrameBatch(
        video.pixels[None], video.is_real[None], video.times[None].astype(np.float32, copy=False)
    )


def clips_of_image(image: str | Path | Image, spec: FrameSpec) -> FrameBatch:
    """Convert an image to a clip that repeats it in every frame."""
    if isinstance(image, str | Path):
        frame = decode_image(Path(image), spec.size, spec.resize)
    else:
        frame = square_array(image, spec.size, spec.resize)
    frames = np.repeat(frame[None, None], spec.num_frames, axis=1)
    shape = (1, spec.num_frames)
    return FrameBatch(frames, np.ones(shape, np.bool_), np.zeros(shape, np.float32))


def clips_of_frames(frames: Any, spec: FrameSpec) -> FrameBatch:
    """Sample frames in memory to one clip.

    ``frames`` is an array or a tensor, channels last or second. Their times are unknown: sampling
    that counts seconds takes the middles of equal segments, and ``seconds`` counts frames.
    """
    from PIL import Image

    images = _channels_last(frames)
    positions = counted_positions(len(images), spec)
    order, mask = fill_frames(len(positions), spec.num_frames, spec.short)
    indices = [None if number is None else positions[number] for number in order]
    blank = np.asarray(BLANK, np.uint8)[:, None, None]
    squares: dict[int | None, Pixels] = {
        None: np.broadcast_to(blank, (len(BLANK), spec.size, spec.size))
    }
    for number in {number for number in indices if number is not None}:
        squares[number] = square_array(Image.fromarray(images[number]), spec.size, spec.resize)
    return FrameBatch(
        np.stack([squares[number] for number in indices])[None],
        np.array(mask)[None],
        np.array([[float(number or 0) for number in indices]], np.float32),
    )


def _is_tensor(value: Any) -> bool:
    # Without torch imported nothing is a tensor; importing it takes seconds.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _channels_last(frames: Any) -> NDArray[np.uint8]:
    is_tensor = _is_tensor(frames)
    array = frames.detach().cpu().numpy() if is_tensor else np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or 3 not in (array.shape[-1], array.shape[1]):
        raise UsageError(f"{array.dtype} {list(array.shape)} is not a video; {EXPECTED}")
    if not len(array):
        raise UsageError(f"the video has no frames; {EXPECTED}")
    # If both axes have length 3, arrays are taken as channels last and tensors as channels second.
    is_last = array.shape[-1] == 3 and not (is_tensor and array.shape[1] == 3)
    return np.ascontiguousarray(array if is_last else array.transpose(0, 2, 3, 1))
