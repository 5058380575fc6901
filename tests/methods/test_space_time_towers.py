"""Frozen and BridgeFormer on every family of image towers: equal to it on still pictures."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from double_precision import random, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, TextFeatures
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip_config import TextConfig
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.encoders.perception import PerceptionConfig, PerceptionEncoder, PerceptionVisionConfig
from eaglenet.encoders.siglip import (
    SiglipConfig,
    SiglipEncoder,
    SiglipTextConfig,
    SiglipVisionConfig,
)
from eaglenet.methods import METHODS, Method

FRAMES, DIM, SIZE = 3, 8, 32
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
METHODS_OVER_VIDEOS = ("frozen", "bridgeformer")
COUNTING = ("siglip", "perception", "perception-without-class-token", "compact")
"""Towers in which a picture shown several times is the picture."""
WITHOUT_CLASS_TOKEN = ("siglip", "perception-without-class-token")
EVERY = ("clip", *COUNTING)
every_tower = pytest.mark.parametrize("tower", EVERY)
every_method = pytest.mark.parametrize("name", METHODS_OVER_VIDEOS)


def make_tower(kind: str) -> TowerEncoder:
    """Small towers of random weights; frames of 32 pixels in 4 x 4 patches."""
    if kind == "clip":
        return small_clip(image_size=SIZE)
    if kind == "siglip":
        vision = SiglipVisionConfig(SIZE, 8, DIM, 2, 2, 20)
        text = SiglipTextConfig(60, 12, DIM, 2, 2, 20)
        return SiglipEncoder(SiglipConfig(vision, text), seed=1)
    if kind == "compact":
        vision_shape = CompactVisionConfig(SIZE, 8, 12, 3, 2, 20)
        shape = CompactConfig(DIM, vision_shape, CompactTextConfig(60, 12, DIM, 2, 2, 20))
        return CompactEncoder(shape, seed=1)
    has_class = kind == "perception"
    visual = PerceptionVisionConfig(
        SIZE, 8, 16, 2, 2, 20, pooling_heads=4, class_token=has_class, grid_offset=int(has_class)
    )
    text_shape = TextConfig(60, 12, DIM, 2, 2, 32, activation="gelu")
    return PerceptionEncoder(PerceptionConfig(DIM, visual, text_shape), seed=1)


def make(name: str, tower: str, **changes: Any) -> Method:
    """A new method on a tower none of whose weights is 0, in double precision."""
    torch.manual_seed(0)
    spec = METHODS[name]
    config = spec.config_class(**{"num_frames": FRAMES, **changes})
    return spec.build(config, shake(make_tower(tower))).double().eval()


def repeat_frames(clips: Clips, times: int) -> Clips:
    """Videos of one picture, shown several times."""
    return dataclasses.replace(
        clips,
        frames=clips.frames.repeat_interleave(times, dim=1),
        mask=clips.mask.repeat_interleave(times, dim=1),
        seconds=clips.seconds.repeat_interleave(times, dim=1),
    )


@every_tower
@every_method
@torch.no_grad()
def test_a_video_of_one_frame_is_the_image_towers_picture(name: str, tower: str) -> None:
    method, clips = make(name, tower), small_clips(3, 1, SIZE)
    video = method.encode_video(clips)
    pictures = method.encoder.encode_video(clips).frames
    torch.testing.assert_close(video.video, pictures[:, 0], **CLOSE)
    if tower != "clip":  # whose frames are means of projected patches
        torch.testing.assert_close(video.frames, pictures, **CLOSE)


@pytest.mark.parametrize("tower", COUNTING)
@every_method
@torch.no_grad()
def test_a_picture_shown_several_times_is_the_picture(name: str, tower: str) -> None:
    method, clips = make(name, tower), small_clips(3, 1, SIZE)
    still = repeat_frames(clips, FRAMES)
    still.mask[1, -1] = False  # and its last frame is padding
    still.frames[1, -1] = 0
    video = method.encode_video(still)
    pictures = method.encoder.encode_video(clips).frames[:, 0]
    torch.testing.assert_close(video.video, pictures, **CLOSE)
    assert video.frames.shape == (3, FRAMES, DIM)


@every_tower
@every_method
@torch.no_grad()
def test_trained_towers_see_neither_padding_nor_the_rest_of_a_batch(name: str, tower: str) -> None:
    method = shake(make(name, tower))
    clips = small_clips(3, FRAMES, SIZE)
    clips.mask[0, 2] = False
    first = method.encode_video(clips)
    clips.frames[0, 2] = 255 - clips.frames[0, 2]
    second = method.encode_video(clips)
    assert first.video is not None
    assert second.video is not None
    torch.testing.assert_close(first.video, second.video, **CLOSE)
    short = Clips(clips.frames[:1, :2], clips.mask[:1, :2], clips.seconds[:1, :2])
    torch.testing.assert_close(method.encode_video(short).video, first.video[:1], **CLOSE)
    clips.mask[0] = False  # a file that could not be read
    assert method.encode_video(clips).video.isfinite().all()


@every_tower
@torch.no_grad()
def test_trained_time_attention_tells_a_frame_of_the_others(tower: str) -> None:
    """At the start a frame knows nothing of a real neighbour, but for what a class token saw."""
    for method, knows in ((make("frozen", tower), tower not in WITHOUT_CLASS_TOKEN),
                          (shake(make("frozen", tower)), True)):  # fmt: skip
        clips = small_clips(2, FRAMES, SIZE)
        before = method.encode_video(clips).frames[:, 0]
        clips.frames[:, 1] = 255 - clips.frames[:, 1]
        change = (method.encode_video(clips).frames[:, 0] - before).abs().max()
        assert (change > 1e-4) == knows


@every_tower
@pytest.mark.parametrize("start", ["identity", "released"])
def test_the_first_step_reaches_the_output_of_time_attention(start: str, tower: str) -> None:
    method = make("frozen", tower, time_start=start).train()
    text = TextFeatures(random(4, DIM, seed=1))
    video = method.encode_video(small_clips(4, FRAMES, SIZE))
    method.losses(text, video, torch.eye(4, dtype=torch.bool)).total.backward()
    weights = dict(method.named_parameters())
    for index in range(method.encoder.num_blocks):
        output = weights[f"space_time.time.{index}.attention.out.weight"].grad
        values = weights[f"space_time.time.{index}.attention.qkv.weight"].grad
        assert output is not None
        assert values is not None
        # The output of ones has values of 0 to project, the output of 0 none to hand back.
        assert output.any() == (start == "identity")
        assert values.any() == (start == "released")
        width = output.shape[0]
        assert not values[: 2 * width].any()


@every_method
def test_encoders_without_an_image_tower_of_ours_are_refused_by_name(name: str) -> None:
    spec = METHODS[name]
    features = FeatureEncoder(FeatureConfig(8, 8, 8))
    with pytest.raises(ConfigError, match=f"{name} works inside an image tower.*frozen features"):
        spec.build(spec.config_class(), features)
