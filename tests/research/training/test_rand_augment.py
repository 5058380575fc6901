"""RandAugment's operations against PIL's, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from eaglenet.core.types import Clips, PairBatch, TextFeatures
from eaglenet.research.training import augmentation as module
from eaglenet.research.training.augmentation import OPERATIONS, augment, rand_augment

SIZE, STRENGTH = 40, 0.73
GREY = (128, 128, 128)


def frames(count: int = 3) -> torch.Tensor:
    """Smooth pictures with some noise, one of them of one colour."""
    generator = torch.Generator().manual_seed(4)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    waves = [120 + 70 * torch.sin(x / (5 + n)) * torch.cos(y / (7 - n)) for n in range(3)]
    pictures = torch.stack(waves).expand(count, 3, SIZE, SIZE).clone()
    pictures += 8 * torch.rand(pictures.shape, generator=generator)
    pictures[-1] = 77
    return pictures.to(torch.uint8)


def affine(image: Image.Image, *numbers: float) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, numbers, Image.Resampling.BICUBIC, fillcolor=GREY
    )


def enhanced(kind: type) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, sign: kind(image).enhance(1 + sign * 0.9 * STRENGTH)


def added(image: Image.Image) -> Image.Image:
    table = [min(255, i + int(STRENGTH * 110)) if i < 128 else i for i in range(256)]
    return image.point(table * 3)


VALUES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "auto_contrast": lambda image, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, sign: ImageOps.equalize(image),
    "invert": lambda image, sign: ImageOps.invert(image),
    "posterize": lambda image, sign: ImageOps.posterize(image, 4 - int(STRENGTH * 4)),
    "solarize": lambda image, sign: ImageOps.solarize(image, 256 - int(STRENGTH * 256)),
    "solarize_add": lambda image, sign: added(image),
    "color": enhanced(ImageEnhance.Color),
    "contrast": enhanced(ImageEnhance.Contrast),
    "brightness": enhanced(ImageEnhance.Brightness),
    "sharpness": enhanced(ImageEnhance.Sharpness),
}
PLACES: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "rotate": lambda image, sign: image.rotate(
        sign * 30 * STRENGTH, Image.Resampling.BICUBIC, fillcolor=GREY
    ),
    "shear_x": lambda image, sign: affine(image, 1, sign * 0.3 * STRENGTH, 0, 0, 1, 0),
    "shear_y": lambda image, sign: affine(image, 1, 0, 0, sign * 0.3 * STRENGTH, 1, 0),
    "translate_x": lambda image, sign: affine(image, 1, 0, sign * 0.45 * STRENGTH * SIZE, 0, 1, 0),
    "translate_y": lambda image, sign: affine(image, 1, 0, 0, 0, 1, sign * 0.45 * STRENGTH * SIZE),
}


def by_pil(name: str, pictures: torch.Tensor, sign: float) -> torch.Tensor:
    images = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in pictures]
    found = [np.asarray({**VALUES, **PLACES}[name](image, sign)) for image in images]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", VALUES)
def test_operations_on_values_are_those_of_pil(name: str, sign: float) -> None:
    ours, theirs = OPERATIONS[name](frames(), STRENGTH, sign), by_pil(name, frames(), sign)
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", PLACES)
def test_operations_on_places_move_pixels_as_pil_does(name: str, sign: float) -> None:
    ours, theirs = OPERATIONS[name](frames(), STRENGTH, sign), by_pil(name, frames(), sign)
    difference = (ours.float() - theirs.float()).abs()
    assert difference.mean() < 0.5
    # The same places lie outside, but for a row or column that lies on the edge.
    assert ((ours[-1] == 128) != (theirs[-1] == 128)).float().mean() < 0.03


def test_there_are_fifteen_operations() -> None:
    assert set(OPERATIONS) == {*VALUES, *PLACES}
    assert len(OPERATIONS) == 15


def test_all_frames_of_a_video_change_alike_and_a_seed_gives_the_same_again() -> None:
    picture = frames(1).expand(4, -1, -1, -1)
    videos = picture.expand(50, -1, -1, -1, -1).contiguous()
    torch.manual_seed(3)
    changed = rand_augment(videos)
    assert changed.shape == videos.shape
    assert all(torch.equal(video[0], other) for video in changed for other in video)
    same = sum(torch.equal(one, before) for one, before in zip(changed, videos, strict=True))
    assert same < 15  # of 50; a sixteenth is expected, and some operations leave this picture
    assert len({one.numpy().tobytes() for one in changed}) > 30
    torch.manual_seed(3)
    assert torch.equal(rand_augment(videos), changed)


def test_four_are_drawn_each_done_in_half_the_cases_at_about_seven_of_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[float, float]] = []

    def note(frames: torch.Tensor, strength: float, direction: float) -> torch.Tensor:
        done.append((strength, direction))
        return frames

    monkeypatch.setattr(module, "OPERATIONS", dict.fromkeys(OPERATIONS, note))
    torch.manual_seed(0)
    rand_augment(torch.zeros(1000, 1, 3, 4, 4, dtype=torch.uint8))
    strengths, directions = (torch.tensor(column) for column in zip(*done, strict=True))
    assert abs(len(done) / 1000 - 4 * 0.5) < 0.1
    assert abs(float(strengths.mean()) - 0.7) < 0.01
    assert abs(float(strengths.std()) - 0.05) < 0.005
    assert set(directions.tolist()) == {-1.0, 1.0}
    assert math.isclose(float(directions.mean()), 0.0, abs_tol=0.1)


def test_a_step_takes_it_by_its_name() -> None:
    clips = Clips(
        frames(4)[None].repeat(2, 1, 1, 1, 1),
        torch.ones(2, 4, dtype=torch.bool),
        torch.zeros(2, 4),
    )
    batch = PairBatch(TextFeatures(torch.zeros(2, 3)), clips, torch.arange(2))
    torch.manual_seed(5)
    seen = augment(batch, "rand_augment", 4).videos
    assert seen.frames.shape == clips.frames.shape
    assert not torch.equal(seen.frames, clips.frames)
