"""HiT's parts: two levels, the queue, keys of the same video, copies that follow slowly."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from expert_inputs import EXACT, VIDEOS, build, experts_of, matrix, texts, videos, words_of

from eaglenet.methods import Method
from eaglenet.methods.early.hit import KeyBank
from reference import mmt as reference
from reference.arithmetic import dot, layer_norm, linear, part, softmax, unit, weights_of

SIZES = {"num_layers": 2, "text_layers": 2, "num_heads": 2, "hidden_dim": 12, "num_positions": 5}


def hit(**changes: object) -> Method:
    return build("hit", bank_size=4, dropout=0.0, **SIZES, **changes)


@torch.no_grad()
def test_the_score_is_the_sum_of_both_levels() -> None:
    method, text, video = hit(feature_weight=0.5), texts(), videos()
    weights = weights_of(method)
    network = part(weights, "text_network")
    sides = []
    for words in words_of(text):
        inner = part(network, "words")
        tokens = [inner["first"], *(linear(word, part(inner, "embed")) for word in words)]
        with_positions = [token + inner["positions"][place] for place, token in enumerate(tokens)]
        normed = [layer_norm(token, part(inner, "norm"), 1e-12) for token in with_positions]
        states = reference.post_norm(
            normed, [True] * len(normed), part(inner, "stack"), heads=2, layers=2
        )
        lower = sum(states[0][1:]) / len(words)
        sides.append(levels(network, lower, states[-1][0]))
    network = part(weights, "video_network")
    others = []
    for experts in experts_of(video):
        experts_by_time = {
            name: [(token, 1.3 * place) for place, token in enumerate(tokens)]
            for name, tokens in experts.items()
        }
        tokens, is_real, _ = reference.sequence(experts_by_time, part(network, "tokens"))
        states = reference.post_norm(tokens, is_real, part(network, "stack"), heads=2, layers=2)
        means = [
            sum(state for state, real in zip(states[place], is_real, strict=True) if real)
            / sum(is_real)
            for place in (0, -1)
        ]
        others.append(levels(network, *means))
    rows = [[0.5 * dot(t[0], v[0]) + dot(t[1], v[1]) for v in others] for t in sides]
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


def levels(weights: object, lower: object, upper: object) -> list[object]:
    """Both levels through their heads."""
    return [
        unit(linear(value, part(weights, f"heads.{place}")))  # type: ignore[arg-type]
        for place, value in enumerate((lower, upper))
    ]


def test_the_bank_keeps_the_newest_and_never_returns_a_key_of_the_same_video() -> None:
    bank = KeyBank(4, 2)
    assert not bank.negatives(torch.tensor([7]), 1).any()
    bank.push(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), torch.tensor([7, 8, 9]))
    assert bank.negatives(torch.tensor([7, 5]), 2).tolist() == [
        [False, True, True, False],
        [True, True, True, False],
    ]
    bank.push(torch.tensor([[4.0, 0.0], [5.0, 0.0]]), torch.tensor([7, 6]))
    assert bank.keys[:, 0].tolist() == [5, 2, 3, 4]
    assert bank.videos.tolist() == [6, 8, 9, 7]
    bank.push(torch.arange(10.0).repeat(2, 1).T, None)
    assert sorted(bank.keys[:, 0].tolist()) == [6, 7, 8, 9]
    assert bank.negatives(torch.tensor([7]), 1).all()


def test_keys_follow_slowly_and_learn_nothing() -> None:
    method = hit(momentum=0.9).train()
    before = {name: value.clone() for name, value in method.named_parameters()}
    text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
    method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool)).total.backward()
    for name, value in method.named_parameters():
        if name.startswith("key_"):
            assert value.grad is None
            fast = before[
                name.replace("key_text", "text_network").replace("key_video", "video_network")
            ]
            torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * fast)
        else:
            assert value.grad is not None


def test_the_loss_is_a_cross_entropy_over_own_key_batch_and_bank() -> None:
    method = hit(temperature=0.2).train()
    eye = torch.eye(VIDEOS, dtype=torch.bool)
    with torch.no_grad():
        text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
        method.losses(text, dataclasses.replace(video, ids=torch.tensor([0, 1, 2])), eye)
        text, video = method.encode_text(texts(VIDEOS)), method.encode_video(videos())
        banks = [bank.keys.clone() for bank in method.video_banks]  # type: ignore[union-attr]
        losses = method.losses(text, dataclasses.replace(video, ids=torch.tensor([0, 5, 6])), eye)
    assert text.words is not None
    assert video.keys is not None
    total = 0.0
    for pair in range(VIDEOS):
        query = text.words[pair, 1].numpy()
        logits = [dot(query, video.keys[pair, 1].numpy()) / 0.2]
        logits += [
            dot(query, video.keys[other, 1].numpy()) / 0.2
            for other in range(VIDEOS)
            if other != pair
        ]
        # Three keys are in the bank; the first of them is of the first pair's video.
        keys = banks[1][1:3] if pair == 0 else banks[1][:3]
        logits += [dot(query, key.numpy()) / 0.2 for key in keys]
        total -= float(torch.tensor(softmax(logits)[0]).log()) / VIDEOS
    one_side = losses.terms["semantic"].item()
    assert one_side > total  # the other direction is added
    other = method._contrast(  # type: ignore[operator]
        text.words[:, 1], video.keys[:, 1], _bank(banks[1]), eye, torch.tensor([0, 5, 6])
    )
    assert other.item() == pytest.approx(total, abs=1e-6)


def _bank(keys: torch.Tensor) -> KeyBank:
    bank = KeyBank(4, keys.shape[1])
    bank.push(keys[:3], torch.tensor([0, 1, 2]))
    return bank.double()
