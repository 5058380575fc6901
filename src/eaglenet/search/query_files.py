"""Files to search with: a video, or a picture as a video that stands still."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.types import Clips, FrameSpec


def clips_of_video(path: Path, spec: FrameSpec, window: tuple[float, float] | None = None) -> Clips:
    """A file as one clip."""
    from eaglenet.video.decoding import decode

    video = decode(path, spec, window=window)
    return Clips(video.frames[None], video.mask[None], video.seconds[None].float())


def clips_of_image(path: Path, spec: FrameSpec) -> Clips:
    """A picture, prepared as frames are, in every place: what a still in a video looks like."""
    from eaglenet.video.decoding import decode_image

    frame = decode_image(path, spec.size, spec.resize)
    frames = frame.expand(1, spec.num_frames, *frame.shape).contiguous()
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    return Clips(frames, mask, torch.zeros(1, spec.num_frames))
