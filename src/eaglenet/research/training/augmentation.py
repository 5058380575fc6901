"""Random augmentation of training batches, as in the original code of the compared methods."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, PairBatch

Frames = UInt8[Tensor, "frames 3 height width"]
Matrix = tuple[tuple[float, float], tuple[float, float]]
Operation = Callable[[Tensor, float, float], Tensor]
"""Changes the frames of one video with a strength from 0 to 1 and a direction of -1 or 1."""

NUM_CHANGES, PROBABILITY = 4, 0.5
STRENGTH, DEVIATION = 0.7, 0.05
MAX_DEGREES, MAX_SHEAR, MAX_SHIFT, MAX_FACTOR, MAX_ADDED = 30.0, 0.3, 0.45, 0.9, 110
FILL = 128
GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in luminance, times 65,536."""


def rand_augment(
    frames: UInt8[Tensor, "videos frames 3 height width"],
) -> UInt8[Tensor, "videos frames 3 height width"]:
    """Apply RandAugment as in TempMe: up to four random operations per video, equal in all frames.

    Paper: it is not known whether the authors augment whole frames or their centre squares; here it
    is the centre squares.
    """
    return torch.stack([_augment_video(video) for video in frames])


def _augment_video(frames: Frames) -> Frames:
    operations = list(OPERATIONS.values())
    indices = torch.randint(len(operations), (NUM_CHANGES,)).tolist()
    is_applied = (torch.rand(NUM_CHANGES) < PROBABILITY).tolist()
    strengths = (STRENGTH + DEVIATION * torch.randn(NUM_CHANGES)).clamp(0, 1).tolist()
    directions = (2.0 * torch.randint(2, (NUM_CHANGES,)) - 1).tolist()
    for index, is_active, strength, direction in zip(
        indices, is_applied, strengths, directions, strict=True
    ):
        if is_active:
            frames = operations[index](frames, strength, direction)
    return frames


def auto_contrast(frames: Frames, strength: float, direction: float) -> Frames:
    """Stretch each channel of each frame to the full range of values."""
    values = frames.flatten(2).double()
    low, high = values.amin(dim=2, keepdim=True), values.amax(dim=2, keepdim=True)
    scale = 255 / (high - low).clamp(min=1)
    result = (values * scale - low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, result, frames.flatten(2)).reshape(frames.shape)


def equalize(frames: Frames, strength: float, direction: float) -> Frames:
    """Equalise the histogram of each channel of each frame."""
    values = frames.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=values.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(dim=2, keepdim=True))
    step = (values.shape[2] - last) // 255
    below = counts.cumsum(dim=2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    result = torch.where(step > 0, table.gather(2, values), values)
    return result.to(torch.uint8).reshape(frames.shape)


def solarize_add(frames: Frames, strength: float, direction: float) -> Frames:
    """Brighten pixels whose values are below the middle of the range."""
    result = (frames.int() + int(strength * MAX_ADDED)).clamp(max=255).to(torch.uint8)
    return torch.where(frames < FILL, result, frames)


def contrast(frames: Frames, strength: float, direction: float) -> Frames:
    mean = grey(frames).float().mean(dim=(1, 2, 3), keepdim=True)
    return _blend((mean + 0.5).floor(), frames, strength, direction)


def sharpness(frames: Frames, strength: float, direction: float) -> Frames:
    values = frames.float()
    kernel = torch.ones(3, 3, device=frames.device)
    kernel[1, 1] = 5
    kernel = (kernel / kernel.sum()).expand(3, 1, 3, 3)
    smooth = values.clone()  # The border does not change.
    smooth[..., 1:-1, 1:-1] = F.conv2d(values, kernel, groups=3).add(0.5).floor().clamp(0, 255)
    return _blend(smooth, frames, strength, direction)


def grey(frames: Frames) -> UInt8[Tensor, "frames 1 height width"]:
    """Return the luminance, rounded as PIL does."""
    weights = torch.tensor(GREY, device=frames.device).view(3, 1, 1)
    return ((frames.int() * weights).sum(dim=1, keepdim=True) + 2**15 >> 16).to(torch.uint8)


def _blend(
    plain: Float[Tensor, "frames channels rows columns"],
    frames: Frames,
    strength: float,
    direction: float,
) -> Frames:
    """Move the frames towards a plain image (direction -1) or away from it (1)."""
    factor = 1 + direction * MAX_FACTOR * strength
    return (plain + factor * (frames.float() - plain)).clamp(0, 255).to(torch.uint8)


def rotate(frames: Frames, strength: float, direction: float) -> Frames:
    angle = math.radians(direction * MAX_DEGREES * strength)
    cosine, sine = math.cos(angle), math.sin(angle)
    return _warp(frames, ((cosine, -sine), (sine, cosine)), (0.0, 0.0))


def _shear(frames: Frames, x: float, y: float) -> Frames:
    height, width = frames.shape[2:]
    return _warp(frames, ((1.0, x), (y, 1.0)), (x * height / 2, y * width / 2))


def _warp(frames: Frames, matrix: Matrix, shift: tuple[float, float]) -> Frames:
    """Sample pixel x at ``matrix x + shift``, in pixels from the centre; grey outside."""
    height, width = frames.shape[2:]
    (xx, xy), (yx, yy) = matrix
    # In coordinates of the sampling grid, from -1 to 1.
    row_x = [xx, xy * height / width, 2 * shift[0] / width]
    row_y = [yx * width / height, yy, 2 * shift[1] / height]
    view = torch.tensor([[row_x, row_y]], device=frames.device)
    grid = F.affine_grid(view, [1, 3, height, width], align_corners=False)
    values = F.grid_sample(
        frames.float().flatten(0, 1)[None], grid, mode="bicubic", padding_mode="border",
        align_corners=False,
    )  # fmt: skip
    is_inside = ((grid >= -1) & (grid < 1)).all(dim=-1)[:, None]
    result = torch.where(is_inside, values.round().clamp(0, 255), float(FILL))
    return result.to(torch.uint8).reshape(frames.shape)


IDENTITY = ((1.0, 0.0), (0.0, 1.0))
OPERATIONS: dict[str, Operation] = {
    "auto_contrast": auto_contrast,
    "equalize": equalize,
    "invert": lambda frames, strength, sign: frames ^ 255,
    "rotate": rotate,
    # Keep at most the four highest bits.
    "posterize": lambda frames, strength, sign: frames & (256 - (1 << 4 + int(strength * 4))),
    # Invert values above a threshold.
    "solarize": lambda frames, strength, sign: torch.where(
        frames < 256 - int(strength * 256), frames, 255 - frames
    ),
    "solarize_add": solarize_add,
    "color": lambda frames, strength, sign: _blend(grey(frames).float(), frames, strength, sign),
    "contrast": contrast,
    "brightness": lambda frames, strength, sign: _blend(
        torch.zeros_like(frames, dtype=torch.float32), frames, strength, sign
    ),
    "sharpness": sharpness,
    "shear_x": lambda frames, strength, sign: _shear(frames, sign * MAX_SHEAR * strength, 0.0),
    "shear_y": lambda frames, strength, sign: _shear(frames, 0.0, sign * MAX_SHEAR * strength),
    "translate_x": lambda frames, strength, sign: _warp(
        frames, IDENTITY, (sign * MAX_SHIFT * strength * frames.shape[3], 0.0)
    ),
    "translate_y": lambda frames, strength, sign: _warp(
        frames, IDENTITY, (0.0, sign * MAX_SHIFT * strength * frames.shape[2])
    ),
}


Augmentation = Literal["none", "crop_flip", "rand_augment"]
CROP_AREA = (0.5, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)


def augment(batch: PairBatch, augmentation: Augmentation, num_frames: int | None) -> PairBatch:
    """Choose ``num_frames`` frames per video if more were decoded, and augment them.

    Uses the default random generator, which each step seeds.
    """
    videos = batch.videos
    if not isinstance(videos, Clips):
        if augmentation != "none":
            raise ConfigError(
                f"training.augment={augmentation} needs frames, and stored features have none: "
                "--set training.augment=none"
            )
        return batch
    if num_frames is not None and videos.mask.shape[1] > num_frames:
        num_videos, num_decoded = videos.mask.shape
        indices = jittered_indices(num_videos, num_decoded, num_frames)
        rows = torch.arange(num_videos)[:, None]
        frames, mask, seconds = (
            value[rows.to(value.device), indices.to(value.device)]
            for value in (videos.frames, videos.mask, videos.seconds)
        )
        videos = Clips(frames, mask, seconds)
    if augmentation == "crop_flip":
        videos = dataclasses.replace(videos, frames=crop_and_flip(videos.frames))
    elif augmentation == "rand_augment":
        videos = dataclasses.replace(videos, frames=rand_augment(videos.frames))
    return dataclasses.replace(batch, videos=videos)


def jittered_indices(
    num_videos: int, num_decoded: int, num_frames: int
) -> Int[Tensor, "videos frames"]:
    """Space indices evenly between random frames of the first and last interval (CLIP-ViP)."""
    interval = max(num_decoded // num_frames, 1)
    first = torch.randint(0, interval, (num_videos, 1))
    last = num_decoded - 1 - torch.randint(0, interval, (num_videos, 1))
    steps = torch.linspace(0, 1, num_frames)
    return (first + steps * (last - first)).round().long()


def crop_and_flip(
    frames: UInt8[Tensor, "videos frames 3 height width"],
) -> UInt8[Tensor, "videos frames 3 height width"]:
    """Crop a random 50% to 100% of the area and mirror half of the videos, as in X-Pool.

    All frames of a video change in the same way. Paper: X-Pool crops whole frames; here it is their
    centre squares.
    """
    num_videos, num_frames, channels, height, width = frames.shape
    area = torch.empty(num_videos).uniform_(*CROP_AREA)
    low, high = (torch.tensor(value).log().item() for value in CROP_ASPECT)
    aspect = torch.empty(num_videos).uniform_(low, high).exp()
    crop_width = (area * aspect).sqrt().clamp(max=1.0)
    crop_height = (area / aspect).sqrt().clamp(max=1.0)
    # In coordinates of the sampling grid, from -1 to 1.
    middle_x = (torch.rand(num_videos) * 2 - 1) * (1 - crop_width)
    middle_y = (torch.rand(num_videos) * 2 - 1) * (1 - crop_height)
    sign = torch.where(torch.rand(num_videos) < 0.5, -1.0, 1.0)
    zero = torch.zeros(num_videos)
    row_x = torch.stack([crop_width * sign, zero, middle_x])
    row_y = torch.stack([zero, crop_height, middle_y])
    views = torch.stack([row_x, row_y]).permute(2, 0, 1).to(frames.device)
    size = [num_videos, num_frames * channels, height, width]
    grid = F.affine_grid(views, size, align_corners=False)
    crops = F.grid_sample(
        frames.flatten(1, 2).float(), grid, mode="bicubic", padding_mode="reflection",
        align_corners=False,
    )  # fmt: skip
    return crops.round().clamp(0, 255).to(torch.uint8).reshape(frames.shape)
