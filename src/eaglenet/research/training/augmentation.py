"""Random views of a training batch, as the compared methods' originals draw them."""

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
"""Frames of one video, strength from 0 to 1, direction -1 or 1 -> frames."""

NUM_CHANGES, CHANCE = 4, 0.5
STRENGTH, DEVIATION = 0.7, 0.05
MOST_DEGREES, MOST_SHEAR, MOST_SHIFT, MOST_FACTOR, MOST_ADDED = 30.0, 0.3, 0.45, 0.9, 110
FILL = 128
GREY = (19595, 38470, 7471)
"""Shares of red, green and blue in grey, of 65,536."""


def rand_augment(
    frames: UInt8[Tensor, "videos frames 3 height width"],
) -> UInt8[Tensor, "videos frames 3 height width"]:
    """RandAugment as in TempMe: four random changes per video, the same in all its frames.

    Paper: whether the authors change the whole picture or its centre square is not known; frames
    here are the centre square already.
    """
    return torch.stack([_augment_video(video) for video in frames])


def _augment_video(frames: Frames) -> Frames:
    operations = list(OPERATIONS.values())
    indices = torch.randint(len(operations), (NUM_CHANGES,)).tolist()
    is_done = (torch.rand(NUM_CHANGES) < CHANCE).tolist()
    strengths = (STRENGTH + DEVIATION * torch.randn(NUM_CHANGES)).clamp(0, 1).tolist()
    directions = (2.0 * torch.randint(2, (NUM_CHANGES,)) - 1).tolist()
    for index, done, strength, direction in zip(
        indices, is_done, strengths, directions, strict=True
    ):
        if done:
            frames = operations[index](frames, strength, direction)
    return frames


def auto_contrast(frames: Frames, strength: float, direction: float) -> Frames:
    """Each channel of each frame stretched from its darkest to its lightest value."""
    values = frames.flatten(2).double()
    low, high = values.amin(dim=2, keepdim=True), values.amax(dim=2, keepdim=True)
    scale = 255 / (high - low).clamp(min=1)
    stretched = (values * scale - low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, frames.flatten(2)).reshape(frames.shape)


def equalize(frames: Frames, strength: float, direction: float) -> Frames:
    """Each channel of each frame with about as many pixels of every value."""
    values = frames.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=values.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(dim=2, keepdim=True))
    step = (values.shape[2] - last) // 255
    below = counts.cumsum(dim=2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    equalized = torch.where(step > 0, table.gather(2, values), values)
    return equalized.to(torch.uint8).reshape(frames.shape)


def solarize_add(frames: Frames, strength: float, direction: float) -> Frames:
    """Values of the dark half raised."""
    raised = (frames.int() + int(strength * MOST_ADDED)).clamp(max=255).to(torch.uint8)
    return torch.where(frames < FILL, raised, frames)


def contrast(frames: Frames, strength: float, direction: float) -> Frames:
    mean = grey(frames).float().mean(dim=(1, 2, 3), keepdim=True)
    return _blend((mean + 0.5).floor(), frames, strength, direction)


def sharpness(frames: Frames, strength: float, direction: float) -> Frames:
    values = frames.float()
    kernel = torch.ones(3, 3, device=frames.device)
    kernel[1, 1] = 5
    kernel = (kernel / kernel.sum()).expand(3, 1, 3, 3)
    smooth = values.clone()  # the border stays as it is
    smooth[..., 1:-1, 1:-1] = F.conv2d(values, kernel, groups=3).add(0.5).floor().clamp(0, 255)
    return _blend(smooth, frames, strength, direction)


def grey(frames: Frames) -> UInt8[Tensor, "frames 1 height width"]:
    """Luminance, as PIL rounds it."""
    shares = torch.tensor(GREY, device=frames.device).view(3, 1, 1)
    return ((frames.int() * shares).sum(dim=1, keepdim=True) + 2**15 >> 16).to(torch.uint8)


def _blend(
    plain: Float[Tensor, "frames channels rows columns"],
    frames: Frames,
    strength: float,
    direction: float,
) -> Frames:
    """Blend with a plain image: move the frames towards it, or away from it."""
    factor = 1 + direction * MOST_FACTOR * strength
    return (plain + factor * (frames.float() - plain)).clamp(0, 255).to(torch.uint8)


def rotate(frames: Frames, strength: float, direction: float) -> Frames:
    angle = math.radians(direction * MOST_DEGREES * strength)
    cosine, sine = math.cos(angle), math.sin(angle)
    return _warp(frames, ((cosine, -sine), (sine, cosine)), (0.0, 0.0))


def _shear(frames: Frames, x: float, y: float) -> Frames:
    height, width = frames.shape[2:]
    return _warp(frames, ((1.0, x), (y, 1.0)), (x * height / 2, y * width / 2))


def _warp(frames: Frames, matrix: Matrix, shift: tuple[float, float]) -> Frames:
    """Sample each pixel x at ``matrix x + shift``, in pixels from the centre; grey outside."""
    height, width = frames.shape[2:]
    (xx, xy), (yx, yy) = matrix
    # In the -1 .. 1 of the sampling grid, whose units are half a side.
    row_x = [xx, xy * height / width, 2 * shift[0] / width]
    row_y = [yx * width / height, yy, 2 * shift[1] / height]
    view = torch.tensor([[row_x, row_y]], device=frames.device)
    grid = F.affine_grid(view, [1, 3, height, width], align_corners=False)
    values = F.grid_sample(
        frames.float().flatten(0, 1)[None], grid, mode="bicubic", padding_mode="border",
        align_corners=False,
    )  # fmt: skip
    is_inside = ((grid >= -1) & (grid < 1)).all(dim=-1)[:, None]
    filled = torch.where(is_inside, values.round().clamp(0, 255), float(FILL))
    return filled.to(torch.uint8).reshape(frames.shape)


UNCHANGED = ((1.0, 0.0), (0.0, 1.0))
OPERATIONS: dict[str, Operation] = {
    "auto_contrast": auto_contrast,
    "equalize": equalize,
    "invert": lambda frames, strength, sign: frames ^ 255,
    "rotate": rotate,
    # Only the highest bits of every value, at most four.
    "posterize": lambda frames, strength, sign: frames & (256 - (1 << 4 + int(strength * 4))),
    # Values from a threshold on inverted.
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
    # Rows move by their distance from the top, columns by their distance from the left.
    "shear_x": lambda frames, strength, sign: _shear(frames, sign * MOST_SHEAR * strength, 0.0),
    "shear_y": lambda frames, strength, sign: _shear(frames, 0.0, sign * MOST_SHEAR * strength),
    "translate_x": lambda frames, strength, sign: _warp(
        frames, UNCHANGED, (sign * MOST_SHIFT * strength * frames.shape[3], 0.0)
    ),
    "translate_y": lambda frames, strength, sign: _warp(
        frames, UNCHANGED, (0.0, sign * MOST_SHIFT * strength * frames.shape[2])
    ),
}


Augmentation = Literal["none", "crop_flip", "rand_augment"]
CROP_AREA = (0.5, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)


def augment(batch: PairBatch, augmentation: Augmentation, num_frames: int | None) -> PairBatch:
    """Take ``num_frames`` frames per video, and augment them.

    Draws from the default generator, which each step seeds.
    """
    videos = batch.videos
    if not isinstance(videos, Clips):
        if augmentation != "none":
            raise ConfigError(
                f"training.augment={augmentation} changes pictures, and stored features have none; "
                "set training.augment=none"
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
    """Evenly spaced, from a random frame of the first interval to one of the last (CLIP-ViP)."""
    interval = max(num_decoded // num_frames, 1)
    first = torch.randint(0, interval, (num_videos, 1))
    last = num_decoded - 1 - torch.randint(0, interval, (num_videos, 1))
    steps = torch.linspace(0, 1, num_frames)
    return (first + steps * (last - first)).round().long()


def crop_and_flip(
    frames: UInt8[Tensor, "videos frames 3 height width"],
) -> UInt8[Tensor, "videos frames 3 height width"]:
    """A random part of 50% to 100% of the area, scaled back, mirrored in half the cases (X-Pool).

    All frames of a video alike. Paper: X-Pool cuts from the whole picture; frames here are the
    centre square already.
    """
    num_videos, num_frames, channels, height, width = frames.shape
    area = torch.empty(num_videos).uniform_(*CROP_AREA)
    low, high = (torch.tensor(value).log().item() for value in CROP_ASPECT)
    aspect = torch.empty(num_videos).uniform_(low, high).exp()
    wide = (area * aspect).sqrt().clamp(max=1.0)
    tall = (area / aspect).sqrt().clamp(max=1.0)
    # Shares of the picture, in the -1 .. 1 of the sampling grid.
    middle_x = (torch.rand(num_videos) * 2 - 1) * (1 - wide)
    middle_y = (torch.rand(num_videos) * 2 - 1) * (1 - tall)
    sign = torch.where(torch.rand(num_videos) < 0.5, -1.0, 1.0)
    zero = torch.zeros(num_videos)
    rows = [torch.stack([wide * sign, zero, middle_x]), torch.stack([zero, tall, middle_y])]
    views = torch.stack(rows).permute(2, 0, 1).to(frames.device)
    size = [num_videos, num_frames * channels, height, width]
    grid = F.affine_grid(views, size, align_corners=False)
    cut = F.grid_sample(
        frames.flatten(1, 2).float(), grid, mode="bicubic", padding_mode="reflection",
        align_corners=False,
    )  # fmt: skip
    return cut.round().clamp(0, 255).to(torch.uint8).reshape(frames.shape)
