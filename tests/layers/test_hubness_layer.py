"""The bank of sentences: its formula by a loop, first in first out, saved with the model."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from eaglenet.layers.hubness import HubnessLayer


def test_the_level_of_a_video_by_a_loop() -> None:
    torch.manual_seed(0)
    bank = HubnessLayer(7, 5, weight=0.75)
    sentences, videos = torch.randn(4, 5), F.normalize(torch.randn(3, 5), dim=-1)
    bank.add(sentences)
    scale = 20.0
    for video, level in zip(videos, bank(videos, torch.tensor(scale)), strict=True):
        total = sum(math.exp(scale * float(F.normalize(s, dim=0) @ video)) for s in sentences)
        assert level.item() == pytest.approx(0.75 / scale * math.log(total / 4), rel=1e-4)


def test_an_empty_bank_changes_nothing() -> None:
    assert HubnessLayer(3, 5, 1.0)(torch.randn(2, 5), torch.tensor(9.0)).tolist() == [0.0, 0.0]


def test_the_oldest_sentences_give_way() -> None:
    bank = HubnessLayer(4, 2, 1.0)
    first, second = torch.eye(2).repeat(2, 1)[:3], -torch.eye(2)
    bank.add(first)
    bank.add(second)
    stored_rows = {tuple(row) for row in bank.vectors.tolist()}
    assert stored_rows == {(-0.0, -1.0), (0.0, 1.0), (1.0, 0.0), (-1.0, -0.0)}
    bank.add(torch.full((9, 2), 3.0))
    torch.testing.assert_close(bank.vectors, torch.full((4, 2), math.sqrt(0.5)))


def test_a_bank_travels_with_the_weights() -> None:
    bank, other = HubnessLayer(4, 3, 0.5), HubnessLayer(4, 3, 0.5)
    bank.add(torch.randn(3, 3))
    other.load_state_dict(bank.state_dict())
    videos = F.normalize(torch.randn(2, 3), dim=-1)
    scale = torch.tensor(11.0)
    torch.testing.assert_close(other(videos, scale), bank(videos, scale))


def test_a_video_near_every_sentence_is_levelled_most() -> None:
    bank = HubnessLayer(8, 2, 1.0)
    bank.add(torch.tensor([[1.0, 0.1], [1.0, -0.1], [1.0, 0.2]]))
    hub, other = bank(torch.eye(2), torch.tensor(10.0)).tolist()
    assert hub > other
