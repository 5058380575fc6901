"""RAP, TFVL and SHE-Net do what we say they do; that it is what their authors do, nobody knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from double_precision import EXACT, matrix, random, sentences_of, shake, texts, words_of
from small_towers import small_clip, small_clips

from eaglenet.core.types import Clips, TextFeatures, VideoFeatures
from eaglenet.methods import METHODS, Method
from reference import adapters as reference
from reference.arithmetic import cosine, layer_norm, linear, part, unit, weights_of

SIZE, FRAMES, VIDEOS = 24, 4, 3
APPROXIMATE = ("rap", "tfvl", "shenet")


def make(name: str, **changes: object) -> Method:
    torch.manual_seed(0)
    spec = METHODS[name]
    return shake(spec.build(spec.config_class(num_frames=6, **changes), small_clip(SIZE, layers=3)))


def clips() -> Clips:
    """The second video has two real frames."""
    videos_given = small_clips(VIDEOS, FRAMES, SIZE)
    videos_given.mask[1, 2:] = False
    return videos_given


def embed_frames(method: Method) -> list[list[list[Any]]]:
    """Tokens of each real frame as the first block takes them."""
    videos_given = clips()
    tower: Any = method.encoder.vision  # type: ignore[union-attr]
    tokens = tower.embed(videos_given.frames.flatten(0, 1)).unflatten(0, (VIDEOS, FRAMES))
    return [
        [list(frame.numpy()) for frame in video[mask]]
        for video, mask in zip(tokens, videos_given.mask, strict=True)
    ]


def project_rows(rows: list[Any], vision: Any) -> list[Any]:
    return [
        linear(layer_norm(row, part(vision, "ln_post")), part(vision, "projection")) for row in rows
    ]


@torch.no_grad()
def test_rap_equals_the_loops() -> None:
    method = make("rap", rank=2, num_kept=3, num_asynchronous=2)
    weights = weights_of(method)
    vision, own = part(weights, "encoder.vision"), part(weights, "tower")
    videos = [
        project_rows(reference.rap_tower(video, vision, own, heads=2, kept=3), vision)
        for video in embed_frames(method)
    ]
    features = method.encode_video(clips())
    for found, mask, expected in zip(features.frames, features.mask, videos, strict=True):
        torch.testing.assert_close(found[mask], torch.from_numpy(np.array(expected)), **EXACT)
    sentence = random(2, 8, seed=4)
    scores = [
        [cosine(text, np.mean([unit(row) for row in video], axis=0)) for video in videos]
        for text in sentence.numpy()
    ]
    torch.testing.assert_close(
        method.score(TextFeatures(sentence), features), matrix(scores), **EXACT
    )


@torch.no_grad()
def test_tfvl_equals_the_loops() -> None:
    method = make("tfvl", num_joint=2, num_prompts=2, num_word_prompts=3)
    weights = weights_of(method)
    vision, text = part(weights, "encoder.vision"), part(weights, "encoder.text")
    expected = []
    for video in embed_frames(method):
        rows = project_rows(
            reference.joint_tower(video, vision, weights["frames_as_image.prompts"], heads=2),
            vision,
        )
        told = reference.sentence_of_frames(rows, text, part(weights, "sentence"), heads=2)
        mean = unit(np.mean([unit(row) for row in rows], axis=0))
        expected.append(mean + unit(told))
    features = method.encode_video(clips())
    torch.testing.assert_close(features.video, torch.from_numpy(np.array(expected)), **EXACT)
    sentence = random(2, 8, seed=4)
    scores = [[cosine(row, video) for video in expected] for row in sentence.numpy()]
    torch.testing.assert_close(
        method.score(TextFeatures(sentence), features), matrix(scores), **EXACT
    )


@torch.no_grad()
def test_shenet_equals_the_loops() -> None:
    method = make("shenet", num_selected=3, num_regions=5)
    patches = random(VIDEOS, FRAMES, 10, 8, seed=6)
    mask = clips().mask
    video = VideoFeatures(patches[:, :, 0], mask, patches=patches)
    text = texts()
    expected = [
        [
            reference.syntax_score(
                sentence,
                words,
                [list(frame.numpy()) for frame in frames[is_real]],
                weights_of(method),
                selected=3,
                regions=5,
            )
            for frames, is_real in zip(patches, mask, strict=True)
        ]
        for sentence, words in zip(sentences_of(text), words_of(text), strict=True)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_they_say_that_they_are_approximate(name: str) -> None:
    assert METHODS[name].checked_by == "approximate from the abstract"
    assert "Approximate" in (type(make(name)).__doc__ or "")


@pytest.mark.parametrize("name", ["rap", "tfvl"])
def test_the_towers_are_frozen_and_little_is_trained(name: str) -> None:
    spec = METHODS[name]
    method = spec.build(spec.config_class(num_frames=6), small_clip(SIZE, layers=3))
    trained_names = [key for key, value in method.named_parameters() if value.requires_grad]
    assert trained_names
    assert not any(key.startswith("encoder.") for key in trained_names)
