"""T2VLAD against loops, masked and as the official port; what the shared centres learn from."""

from __future__ import annotations

import pytest
import torch
from expert_inputs import EXACT, VIDEOS, WIDTHS, build, experts_of, matrix, texts, videos, words_of

from eaglenet.methods import Method
from reference import t2vlad as reference
from reference.arithmetic import weights_of
from reference.experts import margin


def t2vlad(**changes: object) -> Method:
    return build("t2vlad", num_centres=3, num_heads=2, **changes)


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method, text, video = t2vlad(), texts(), videos()
    weights = weights_of(method)
    rows = [
        [reference.similarity(words, experts, weights, heads=2) for experts in experts_of(video)]
        for words in words_of(text)
    ]
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


@torch.no_grad()
def test_official_padding_takes_part() -> None:
    """Every place is a token, real or not; only the mixture knows which experts are there."""
    method, text, video = t2vlad(padding="official"), texts(), videos()
    weights = weights_of(method)
    assert text.words is not None
    assert video.experts is not None
    everything = [
        {name: [token.numpy() for token in video.experts[name].values[row]] for name in WIDTHS}
        for row in range(VIDEOS)
    ]
    here = [
        [bool(expert.present[row]) for expert in video.experts.values()] for row in range(VIDEOS)
    ]
    rows = [
        [
            reference.similarity(
                [word.numpy() for word in words], experts, weights, heads=2, present=there
            )
            for experts, there in zip(everything, here, strict=True)
        ]
        for words in text.words
    ]
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


@torch.no_grad()
def test_the_loss_takes_the_hardest_of_each_row_and_column() -> None:
    method = t2vlad(margin=0.4)
    text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
    loss = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool)).total
    expected = margin(method.score(text, video).numpy(), 0.4, hardest=True)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_the_assignment_learns_from_texts_and_the_centres_from_both() -> None:
    method = t2vlad()
    text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
    assert video.video is not None
    vlad = dict(method.named_parameters())
    names = ("vlad.assign", "vlad.centres")
    of_video = torch.autograd.grad(
        video.video.square().sum() + video.video.sum(),
        [vlad[name] for name in names],
        allow_unused=True,
    )
    of_text = torch.autograd.grad(text.sentence.sum(), [vlad[name] for name in names])
    assert of_video[0] is None
    assert of_video[1] is not None
    assert all(gradient.any() for gradient in (of_video[1], *of_text))
