"""Batches of frames from files, arrays and images. Does not import torch."""

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
from eaglenet.video.images import decode_image, repeat_frame, square_array
from eaglenet.video.pixels import BLANK, Pixels
from eaglenet.video.sampling import counted_positions, fill_frames

if TYPE_CHECKING:
    from PIL.Image import Image

    from eaglenet.video.windows import DecodedVideo

EXPECTED = (
    "a video is a file, or uint8 frames as an array [frames, height, width, 3] or a tensor "
    "[frames, 3, height, width]"
)


@dataclass(frozen=True)
class FrameBatch:
    """Frames ``[videos, frames, 3, height, width]``, a mask of the real ones, and their times.

    :class:`eaglenet.core.types.Clips` has the same fields as tensors.
    """

    frames: NDArray[np.uint8]
    mask: NDArray[np.bool_]
    seconds: NDArray[np.float32]

    @classmethod
    def of(cls, video: DecodedVideo) -> FrameBatch:
        """Return a batch of one video."""
        return cls(video.pixels[None], video.is_real[None], video.times[None])

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
        from eaglenet.video.decoding import decode

        return FrameBatch.of(decode(videos, spec))
    if isinstance(videos, np.ndarray) or _is_tensor(videos):
        if videos.ndim == 5:
            return FrameBatch.concatenate([clips_of_frames(video, spec) for video in videos])
        return clips_of_frames(videos, spec)
    if isinstance(videos, Sequence) and not isinstance(videos, bytes):
        if not len(videos):
            raise UsageError("the list of videos is empty; pass at least one")
        return FrameBatch.concatenate([clips_of(video, spec) for video in videos])
    raise UsageError(f"{type(videos).__name__} {videos!r:.60} is not a video; {EXPECTED}")


def clips_of_image(image: str | Path | Image, spec: FrameSpec) -> FrameBatch:
    """Convert an image to a clip that repeats it in every frame."""
    if isinstance(image, str | Path):
        frame = decode_image(Path(image), spec.size, spec.resize)
    else:
        frame = square_array(image, spec.size, spec.resize)
    return FrameBatch.of(repeat_frame(frame, spec.num_frames))


def clips_of_frames(frames: Any, spec: FrameSpec) -> FrameBatch:
    """Sample a clip from frames in memory.

    ``frames`` is an array or a tensor, with channels last or second. The times are unknown, so
    sampling per second takes the middles of equal segments, and ``seconds`` are frame numbers.
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
    # Importing torch takes seconds; before it is imported, nothing is a tensor.
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
