"""Random views of a training batch, as the compared methods' originals draw them."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8
from torch import Tensor

from eaglenet.errors import ConfigError
from eaglenet.training.rand_augment import rand_augment
from eaglenet.types import Clips, PairBatch

Augmentation = Literal["none", "crop_flip", "rand_augment"]
CROP_AREA = (0.5, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)


def augment(batch: PairBatch, augmentation: Augmentation, num_frames: int | None) -> PairBatch:
    """The batch with ``num_frames`` of its frames, and other views of them where asked for.

    Draws from the default generator, which a step seeds: a step repeated is the same step.
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
        num_videos, given = videos.mask.shape
        videos = take_frames(videos, jittered_places(num_videos, given, num_frames))
    if augmentation == "crop_flip":
        videos = dataclasses.replace(videos, frames=crop_and_flip(videos.frames))
    elif augmentation == "rand_augment":
        videos = dataclasses.replace(videos, frames=rand_augment(videos.frames))
    return dataclasses.replace(batch, videos=videos)


def jittered_places(num_videos: int, given: int, num_frames: int) -> Int[Tensor, "videos frames"]:
    """Evenly from a random place in the first interval to one in the last (CLIP-ViP)."""
    interval = max(given // num_frames, 1)
    first = torch.randint(0, interval, (num_videos, 1))
    last = given - 1 - torch.randint(0, interval, (num_videos, 1))
    steps = torch.linspace(0, 1, num_frames)
    return (first + steps * (last - first)).round().long()


def take_frames(clips: Clips, places: Int[Tensor, "videos frames"]) -> Clips:
    """The frames at ``places`` of each video."""
    rows = torch.arange(len(clips))[:, None]
    return Clips(
        *(value[rows.to(value.device), places.to(value.device)]
          for value in (clips.frames, clips.mask, clips.seconds))
    )  # fmt: skip


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
