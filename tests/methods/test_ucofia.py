"""UCoFiA equals loops over words, patches and frames."""

from __future__ import annotations

import pytest
import torch
from double_precision import (
    EXACT,
    FRAMES,
    VIDEOS,
    matrix,
    sentences_of,
    shake,
    texts,
    words_of,
)
from small_towers import small_clip, small_clips

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods import METHODS
from eaglenet.methods.ucofia import UCoFiA
from reference import ucofia as reference
from reference.arithmetic import contrastive, weights_of

SIZE = 24


def make(**changes: object) -> UCoFiA:
    torch.manual_seed(0)
    spec = METHODS["ucofia"]
    config = spec.config_class(num_frames=6, num_layers=2, num_heads=2, num_tokens=2, **changes)
    method = shake(spec.build(config, small_clip(image_size=SIZE, layers=3)))
    assert isinstance(method, UCoFiA)
    return method


def encoded(method: UCoFiA) -> tuple[VideoFeatures, list[list[list[object]]]]:
    """Features, and the tokens of each real frame; the second video has two real frames."""
    clips = small_clips(VIDEOS, FRAMES, SIZE)
    clips.mask[1, 2:] = False
    plain = method.encoder.encode_video(clips, patches=True)
    assert plain.patches is not None
    frames = [
        [[token.numpy() for token in frame] for frame in video[mask]]
        for video, mask in zip(plain.patches, plain.mask, strict=True)
    ]
    return method.encode_video(clips), frames


def expected_scores(
    method: UCoFiA, text: TextFeatures, frames: list[list[list[object]]]
) -> torch.Tensor:
    return matrix(
        [
            [
                reference.similarity(
                    sentence,
                    words,
                    video,  # type: ignore[arg-type]
                    weights_of(method),
                    count=2,
                    num_heads=2,
                    num_layers=2,
                    temperature=method.config.temperature,
                    scale=float(method.loss.scale()),
                )
                for video in frames
            ]
            for sentence, words in zip(sentences_of(text), words_of(text), strict=True)
        ]
    )


@pytest.mark.parametrize("temperature", [0.01, 0.5])
@torch.no_grad()
def test_the_score_equals_the_loops(temperature: float) -> None:
    method = make(temperature=temperature)
    text, (video, frames) = texts(), encoded(method)
    torch.testing.assert_close(
        method.score(text, video), expected_scores(method, text, frames), **EXACT
    )


@torch.no_grad()
def test_the_loss_is_that_of_the_three_logits_over_three() -> None:
    method = make(temperature=0.5)
    text, (video, frames) = texts(VIDEOS), encoded(method)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = contrastive(expected_scores(method, text, frames).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


@torch.no_grad()
def test_words_past_the_last_that_counts_are_cut_off() -> None:
    method = make(num_words=3)
    text, (video, _) = texts(), encoded(method)
    assert text.words is not None
    assert text.words_mask is not None
    cut = TextFeatures(text.sentence, text.words[:, :3], text.words_mask[:, :3])
    torch.testing.assert_close(method.score(text, video), method.score(cut, video), **EXACT)
