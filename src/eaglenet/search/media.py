"""Files to search with: a video, or a picture as a video of one frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglenet.errors import VideoDecodeError
from eaglenet.types import Clips, FrameSpec


def clips_of_video(path: Path, spec: FrameSpec, window: tuple[float, float] | None = None) -> Clips:
    """A file as one clip."""
    from eaglenet.data.decoding import decode

    video = decode(path, spec, window=window)
    return Clips(video.frames[None], video.mask[None], video.seconds[None].float())


def clips_of_image(path: Path, spec: FrameSpec) -> Clips:
    """A picture, scaled as frames are; the number of frames is the model's, all but one padding."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError:
        raise VideoDecodeError(path, "no such file") from None
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise VideoDecodeError(path, f"not a picture that can be read ({error})") from error
    frame = _to_frame(picture, spec)
    # The same picture in every place: models that look at time see a still, as from a video.
    frames = frame.expand(1, spec.num_frames, *frame.shape).contiguous()
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    return Clips(frames, mask, torch.zeros(1, spec.num_frames))


def _to_frame(picture: object, spec: FrameSpec) -> Tensor:
    from PIL import Image

    assert isinstance(picture, Image.Image)
    width, height = picture.size
    size = spec.size
    if spec.resize == "stretch":
        scaled = picture.resize((size, size), Image.Resampling.BICUBIC)
    else:
        factor = size / min(width, height)
        wide, high = max(size, round(width * factor)), max(size, round(height * factor))
        scaled = picture.resize((wide, high), Image.Resampling.BICUBIC)
        left, top = (wide - size) // 2, (high - size) // 2
        scaled = scaled.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(scaled, np.uint8)).permute(2, 0, 1).contiguous()
