"""TempMe equals loops over merging tokens, and keeps as many of them as its authors'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from double_precision import EXACT, matrix, random, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.methods import METHODS
from eaglenet.methods.tempme import TempMe, frame_groups, spread_frames
from reference import tempme as reference
from reference.arithmetic import cosine, layer_norm, linear, part, unit, weights_of

SIZE, FRAMES, VIDEOS = 32, 6, 2


def make(**changes: object) -> TempMe:
    torch.manual_seed(0)
    spec = METHODS["tempme"]
    config = spec.config_class(num_frames=FRAMES, rank=2, **changes)
    method = shake(spec.build(config, small_clip(image_size=SIZE, layers=4)))
    assert isinstance(method, TempMe)
    return method


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method = make(num_merged=2)
    tower = method.encoder.vision
    clips = small_clips(VIDEOS, FRAMES, SIZE)
    tokens = tower.embed(clips.frames.flatten(0, 1)).unflatten(0, (VIDEOS, FRAMES))
    weights = part(weights_of(method), "encoder.vision")
    tables = [table.numpy() for table in method.merging.positions]
    expected, sentence = [], random(3, 8, seed=4)
    for video in tokens:
        classes, counts = reference.tower(
            [list(frame.numpy()) for frame in video],
            weights,
            tables,
            groups=(2, 3),
            heads=2,
            num_merged=2,
            across=0.3,
            within=0.1,
        )
        rows = [
            linear(layer_norm(row, part(weights, "ln_post")), part(weights, "projection"))
            for row in classes
        ]
        expected.append(np.mean([unit(row) for row in rows], axis=0))
    features = method.encode_video(clips)
    torch.testing.assert_close(features.video, torch.from_numpy(np.array(expected)), **EXACT)
    ours = method.score(TextFeatures(sentence), features)
    scores = [[cosine(text, video) for video in expected] for text in sentence.numpy()]
    torch.testing.assert_close(ours, matrix(scores), **EXACT)
    assert method.merging(tower, clips.frames)[1] == counts


@pytest.mark.parametrize(
    ("patch", "frames", "expected"),
    [
        (32, 12, [48 * 12, 46 * 12, 44 * 12, 42 * 12, 40 * 12, 38 * 12, 36 * 12, 34 * 12,
                  44 * 6, 56 * 3, 107, 97]),
        (16, 12, [(197 - 10 * n) * 12 for n in range(1, 9)] + [148 * 6, 188 * 3, 356, 321]),
    ],
)  # fmt: skip
@torch.no_grad()
def test_as_many_tokens_are_left_as_in_the_released_code(
    patch: int, frames: int, expected: list[int]
) -> None:
    """A narrow tower with the grid of ViT-B/32 and of ViT-B/16; twelve blocks."""
    vision = VisionConfig(
        image_size=224, patch_size=patch, width=4, layers=12, heads=1, mlp_width=4
    )
    text = TextConfig(vocabulary_size=9, context_length=5, width=4, layers=1, heads=1, mlp_width=4)
    encoder = ClipEncoder(ClipConfig(dim=4, vision=vision, text=text), seed=1)
    spec = METHODS["tempme"]
    method = spec.build(spec.config_class(num_frames=frames), encoder)
    assert isinstance(method, TempMe)
    pixels = torch.randint(0, 256, (1, frames, 3, 224, 224)).byte()
    assert method.merging(encoder.vision, pixels)[1] == expected


def test_a_new_model_changes_nothing_but_by_merging() -> None:
    """Both halves of a low-rank change are there, one of them 0; positions start at 0."""
    spec = METHODS["tempme"]
    plain, adapted = small_clip(), small_clip()
    method = spec.build(spec.config_class(num_frames=2), adapted)
    trained_names = [name for name, value in method.named_parameters() if value.requires_grad]
    assert trained_names
    assert all(name.endswith((".down", ".up")) or "positions" in name for name in trained_names)
    tokens = torch.randint(1, 50, (3, 6))
    torch.testing.assert_close(plain.text(tokens), adapted.text(tokens))


def test_frames_are_spread_over_the_places_whatever_the_padding() -> None:
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    sources, back = spread_frames(mask, 6)
    assert sources.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 3]]
    assert back[0, :2].tolist() == [0, 3]
    assert back[1].tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize(
    ("frames", "most", "groups"),
    [(12, 3, (2, 2, 3)), (64, 3, (4, 4, 4)), (8, 2, (2, 4)), (7, 3, (7,)), (1, 3, ())],
)
def test_frames_factor_into_groups(frames: int, most: int, groups: tuple[int, ...]) -> None:
    assert frame_groups(frames, most) == groups


def test_groups_that_do_not_make_the_frames_are_refused() -> None:
    with pytest.raises(ConfigError, match="join 4 frames, which does not divide the 6 frames"):
        make(groups=(2, 2))


def compact() -> CompactEncoder:
    vision = CompactVisionConfig(16, 8, 12, 3, 2, 20)
    return CompactEncoder(CompactConfig(8, vision, CompactTextConfig(60, 9, 12, 1, 2, 20)), seed=1)


@torch.no_grad()
def test_without_merging_a_compact_tower_reads_an_image_as_itself() -> None:
    """One frame, no low-rank change yet: merging alone could change it."""
    spec = METHODS["tempme"]
    config = spec.config_class(num_frames=1, num_merged=0, within=0.0)
    method = spec.build(config, compact()).eval()
    clips = small_clips(VIDEOS, 1)
    expected = compact().eval().encode_video(clips).frames
    torch.testing.assert_close(method.encode_video(clips).frames, expected)
