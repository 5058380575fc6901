"""Support-Set: never its own video, numbers by hand, a decoder that cannot look ahead."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from expert_inputs import EXACT, VIDEOS, build, random, texts, videos

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Tokens
from eaglenet.methods import Method
from eaglenet.methods.early.supportset import CaptionDecoder, support_memory
from reference.arithmetic import softmax
from reference.experts import margin


def supportset(**changes: object) -> Method:
    return build(
        "supportset", hidden_dim=12, num_heads=2, vocabulary_size=15, dropout=0.0, **changes
    )


@torch.no_grad()
def test_a_caption_is_never_written_from_a_video_of_its_own_id() -> None:
    method = supportset(temperature=0.5).train()
    text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
    positives = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 1, 1]]).bool()
    shares = method.support_weights(text, video, positives)  # type: ignore[operator]
    assert not shares[positives].any()
    assert shares[1].tolist() == [1.0, 0.0, 0.0]
    assert text.words is not None
    assert video.tokens is not None
    assert video.tokens_mask is not None
    vectors = [
        tokens[mask].mean(dim=0)
        for tokens, mask in zip(video.tokens, video.tokens_mask, strict=True)
    ]
    cosines = [
        float(torch.cosine_similarity(text.words[0, 0], method.video_support(vector), dim=0))  # type: ignore[operator]
        for vector in vectors
    ]
    expected = softmax([cosines[1] / 0.5, cosines[2] / 0.5])
    torch.testing.assert_close(shares[0, 1:], torch.tensor(expected, dtype=torch.float64), **EXACT)
    own = supportset(support="self").train()
    assert own.support_weights(text, video, positives)[~positives].sum() == 0  # type: ignore[operator]


@torch.no_grad()
def test_memory_is_a_mean_over_the_videos_that_have_a_step() -> None:
    tokens = random(3, 2, 4, seed=1)
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    shares = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.4, 0.6]], dtype=torch.float64)
    memory, there = support_memory(shares, tokens, mask)
    assert there.tolist() == [[True, True], [True, False]]
    torch.testing.assert_close(memory[0, 1], tokens[0, 1])
    expected = 0.4 * tokens[1, 0] + 0.6 * tokens[2, 0]
    torch.testing.assert_close(memory[1, 0], expected)


@torch.no_grad()
def test_the_decoder_cannot_see_the_word_it_has_to_write() -> None:
    decoder = CaptionDecoder(15, 8, num_layers=2, num_heads=2, hidden_dim=12).double()
    ids = torch.randint(3, 15, (2, 6), generator=torch.Generator().manual_seed(1))
    memory, mask = random(2, 3, 8, seed=2), torch.tensor([[True, True, True], [True, False, False]])
    before = decoder(ids, memory, mask)
    later = ids.clone()
    later[:, 4:] = 4
    after = decoder(later, memory, mask)
    torch.testing.assert_close(after[:, :4], before[:, :4], **EXACT)
    memory[1, 1:] = 99.0
    torch.testing.assert_close(decoder(ids, memory, mask), before, **EXACT)


@torch.no_grad()
def test_the_caption_loss_is_the_mean_over_real_next_words() -> None:
    decoder = CaptionDecoder(15, 8, num_layers=1, num_heads=2, hidden_dim=12).double()
    ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    tokens = Tokens(ids, ids > 0)
    memory, mask = random(2, 3, 8, seed=2), torch.ones(2, 3, dtype=torch.bool)
    logits = decoder(ids[:, :-1], memory, mask)
    terms = [
        -math.log(softmax(logits[row, place].tolist())[int(ids[row, place + 1])])
        for row, place in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    ]
    assert decoder.loss(tokens, memory, mask).item() == pytest.approx(sum(terms) / 5, abs=1e-9)


def test_ids_beyond_the_vocabulary_are_refused_with_its_size() -> None:
    decoder = CaptionDecoder(15, 8, num_layers=1, num_heads=2, hidden_dim=12).double()
    tokens = Tokens(torch.tensor([[1, 5, 15]]), torch.ones(1, 3, dtype=torch.bool))
    memory, mask = random(1, 3, 8, seed=2), torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"token id 15, but vocabulary_size is 15; set .* to 16"):
        decoder.loss(tokens, memory, mask)


def test_the_loss_is_contrast_plus_captions() -> None:
    method = supportset(margin=0.4, caption_weight=3.0).train()
    text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
    eye = torch.eye(VIDEOS, dtype=torch.bool)
    losses = method.losses(text, video, eye)
    hardest = margin(method.score(text, video).detach().numpy(), 0.4, hardest=True)
    assert losses.terms["margin"].item() == pytest.approx(hardest, abs=1e-9)
    total = losses.terms["margin"] + 3 * losses.terms["captions"]
    torch.testing.assert_close(losses.total, total)


def test_scoring_needs_neither_captions_nor_memory() -> None:
    method = supportset()
    plain = dataclasses.replace(texts(), tokens=None)
    text, video = method.encode_text(plain), method.encode_video(videos())
    assert text.tokens is None
    assert video.tokens is None
    with pytest.raises(UsageError, match="token ids"):
        method.train().encode_text(plain)
