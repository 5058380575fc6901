"""DRL's weighted token interaction and decorrelation equal loops."""

from __future__ import annotations

import pytest
import torch
from double_precision import (
    EXACT,
    VIDEOS,
    build,
    frames_of,
    matrix,
    random,
    texts,
    videos,
    words_of,
)

from eaglenet.core.types import TextFeatures
from eaglenet.layers.late_interaction import weighted_token_interaction
from eaglenet.methods.drl import DRL, _standardise, channel_decorrelation_loss
from reference import drl as reference
from reference.arithmetic import part, temporal, weights_of

SHAPE = {"num_heads": 2, "num_layers": 2}


def temporal_frames(method: DRL, video: object) -> list[list[object]]:
    stack = part(weights_of(method), "temporal.stack")
    return [temporal(frames, stack, **SHAPE) for frames in frames_of(video)]  # type: ignore[arg-type,misc]


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method = build("drl", **SHAPE)
    assert isinstance(method, DRL)
    text, video = texts(), videos()
    expected = [
        [
            reference.similarity(words, frames, weights_of(method))  # type: ignore[arg-type]
            for frames in temporal_frames(method, video)
        ]
        for words in words_of(text)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


def test_weighted_interaction_by_hand() -> None:
    words = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    frames = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [7.0, 0.0]]])
    mask = torch.tensor([[True, True, False]])
    score = weighted_token_interaction(
        words,
        torch.tensor([[0.25, 0.75]]),
        torch.ones(1, 2, dtype=torch.bool),
        frames,
        torch.tensor([[0.5, 0.5, 0.0]]),
        mask,
    )
    # Words: .25 * .6 + .75 * 1; frames: .5 * max(.6, .8) + .5 * max(0, 1); half of their sum.
    torch.testing.assert_close(score, torch.tensor([[(0.9 + 0.9) / 2]]))


@pytest.mark.parametrize("off_diagonal", [0.0, 0.3])
@torch.no_grad()
def test_the_decorrelation_loss_equals_the_loops(off_diagonal: float) -> None:
    method = build("drl", **SHAPE)
    assert isinstance(method, DRL)
    text, video = texts(VIDEOS), videos()
    assert text.words is not None
    assert text.words_mask is not None
    weights = weights_of(method)
    words, frames = words_of(text), frames_of(video)
    expected = reference.decorrelation(
        words,
        [reference.token_weights(row, part(weights, "word_weights")) for row in words],
        frames,
        [reference.token_weights(row, part(weights, "frame_weights")) for row in frames],
        off_diagonal,
    )
    got = channel_decorrelation_loss(
        text.words,
        method.word_weights(text.words, text.words_mask),
        text.words_mask,
        video.frames,
        method.frame_weights(video.frames, video.mask),
        video.mask,
        off_diagonal_weight=off_diagonal,
    )
    torch.testing.assert_close(got.item(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_channels_that_hardly_vary_are_standardised_and_constant_ones_are_0(
    dtype: torch.dtype,
) -> None:
    """The official code divides by the deviation, however small."""
    rows = random(50, 3, seed=8)
    rows[:, 0] = 0.04 + 1e-6 * rows[:, 0]
    rows[:, 1] = 0.1  # 50 times 0.1 / 50 is not 0.1 in float32.
    values = rows.to(dtype).requires_grad_()
    ours = _standardise(values)
    exact = values.detach().double()
    theirs = (exact - exact.mean(dim=0)) / exact.std(dim=0)
    tolerance = 1e-2 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(ours[:, 0].double(), theirs[:, 0], atol=tolerance, rtol=0)
    torch.testing.assert_close(ours[:, 2].double(), theirs[:, 2], atol=1e-6, rtol=0)
    assert not ours[:, 1].any()
    (ours * random(50, 3, seed=9).to(dtype)).sum().backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert not values.grad[:, 1].any()


@torch.no_grad()
def test_the_loss_joins_both_terms_over_what_the_temporal_head_made() -> None:
    """Text 2 belongs to video 1 as text 1 does: its words meet the two frames of that one."""
    method = build("drl", **SHAPE)
    assert isinstance(method, DRL)
    text, video = texts(VIDEOS), videos()
    weights, words = weights_of(method), words_of(text)
    frames = temporal_frames(method, video)
    owners = [0, 1, 1]
    positives = torch.tensor([[True, False, False], [False, True, False], [False, True, False]])
    losses = method.losses(text, video, positives)
    matched_frames = [frames[owner] for owner in owners]
    expected = reference.decorrelation(
        words,
        [reference.token_weights(row, part(weights, "word_weights")) for row in words],
        matched_frames,  # type: ignore[arg-type]
        [reference.token_weights(row, part(weights, "frame_weights")) for row in matched_frames],  # type: ignore[arg-type]
        0.0,
    )
    torch.testing.assert_close(losses.terms["decorrelation"].item(), expected)
    contrast = method.loss(method.score(text, video), positives).item()
    torch.testing.assert_close(losses.total.item(), contrast + 0.001 * expected)


@torch.no_grad()
def test_a_sentence_without_words_is_its_only_word() -> None:
    method = build("drl", **SHAPE)
    text, video = texts(), videos()
    lone = TextFeatures(text.sentence)
    as_word = TextFeatures(
        text.sentence, text.sentence[:, None], torch.ones(len(text), 1, dtype=torch.bool)
    )
    torch.testing.assert_close(method.score(lone, video), method.score(as_word, video), **EXACT)
