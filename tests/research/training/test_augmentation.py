"""Random views are the same for all frames of a video, and the same again for the same seed."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, PairBatch, TextFeatures, VideoFeatures
from eaglenet.research.training.augmentation import augment, crop_and_flip, jittered_indices

VIDEOS, GIVEN, SHOWN, SIZE = 5, 12, 4, 20


def batch(videos: object) -> PairBatch:
    return PairBatch(TextFeatures(torch.zeros(VIDEOS, 3)), videos, torch.arange(VIDEOS))  # type: ignore[arg-type]


def clips() -> Clips:
    """Every pixel of frame f of video v is 10 v + f."""
    numbers = 10 * torch.arange(VIDEOS)[:, None] + torch.arange(GIVEN)[None]
    frames = numbers.to(torch.uint8)[..., None, None, None].expand(-1, -1, 3, SIZE, SIZE)
    seconds = torch.arange(GIVEN).float().expand(VIDEOS, -1)
    return Clips(frames.contiguous(), torch.ones(VIDEOS, GIVEN, dtype=torch.bool), seconds)


def test_jittered_frames_start_and_end_in_the_outer_intervals_in_even_steps() -> None:
    torch.manual_seed(0)
    places = jittered_indices(400, GIVEN, SHOWN)
    assert set(places[:, 0].tolist()) == {0, 1, 2}
    assert set(places[:, -1].tolist()) == {9, 10, 11}
    steps = places.diff(dim=1)
    assert (steps.amax(dim=1) - steps.amin(dim=1) <= 1).all()


def test_a_step_shows_as_many_frames_as_the_model_takes() -> None:
    torch.manual_seed(1)
    seen = augment(batch(clips()), "none", SHOWN).videos
    assert seen.frames.shape[:2] == (VIDEOS, SHOWN)
    assert torch.equal(
        seen.frames[:, :, 0, 0, 0].long() - 10 * torch.arange(VIDEOS)[:, None],
        seen.seconds.long(),  # type: ignore[union-attr]
    )
    assert augment(batch(clips()), "none", GIVEN).videos.frames.shape[1] == GIVEN


def test_crops_keep_at_least_half_and_all_frames_of_a_video_are_cut_alike() -> None:
    torch.manual_seed(2)
    ramp = torch.linspace(0, 255, SIZE).expand(SIZE, SIZE)
    picture = torch.stack([ramp, ramp.T, ramp]).to(torch.uint8)
    frames = picture.expand(64, 3, -1, -1, -1).contiguous()
    cut = crop_and_flip(frames)
    assert cut.shape == frames.shape
    assert torch.equal(cut[:, 0], cut[:, 1])
    mirrored = cut[:, 0, 0, 0, 0] > cut[:, 0, 0, 0, -1]
    assert 16 < mirrored.sum() < 48
    spans = [(cut[:, 0, c].float().amax(dim=(1, 2)) - cut[:, 0, c].float().amin(dim=(1, 2))) / 255
             for c in (0, 1)]  # fmt: skip
    assert (spans[0] * spans[1] > 0.4).all()  # half of the area, less what scaling smooths away
    torch.manual_seed(2)
    assert torch.equal(crop_and_flip(frames), cut)


def test_stored_features_have_no_pictures_to_cut() -> None:
    video = VideoFeatures(torch.zeros(VIDEOS, 3, 4), torch.ones(VIDEOS, 3, dtype=torch.bool))
    assert augment(batch(video), "none", 2).videos is video
    with pytest.raises(ConfigError, match="augment=none"):
        augment(batch(video), "crop_flip", 2)
