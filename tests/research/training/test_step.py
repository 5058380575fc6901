"""Which pairs a training step counts as right, and what it trains on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.types import PairBatch, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.base import METHODS
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World
from eaglenet.research.training.step import training_losses

PAIRS, FRAMES, DIM = 4, 3, 8
SAME_VIDEO = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def build(name: str) -> Any:
    spec = METHODS[name]
    config = spec.config_class(num_frames=FRAMES)
    if hasattr(config, "dim"):
        config = replace(config, dim=DIM)
    torch.manual_seed(0)
    return spec.build(config, FeatureEncoder(FeatureConfig(DIM, DIM, DIM)))


def make_batch() -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    return PairBatch(
        TextFeatures(torch.randn(PAIRS, DIM, generator=generator)),
        VideoFeatures(
            torch.randn(PAIRS, FRAMES, DIM, generator=generator),
            torch.ones(PAIRS, FRAMES, dtype=torch.bool),
        ),
        torch.tensor([7, 7, 2, 5]),
    )


@pytest.mark.parametrize(
    ("positives", "expected"),
    [("same_video", torch.tensor(SAME_VIDEO).bool()), ("own_pair", torch.eye(PAIRS).bool())],
)
def test_two_captions_of_a_video_are_both_right_unless_the_released_way_is_asked_for(
    positives: str, expected: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, batch = build("clip4clip"), make_batch()
    seen = []
    original = method.losses

    def watched(text: Any, video: Any, right: Any) -> Any:
        seen.append(right)
        return original(text, video, right)

    monkeypatch.setattr(method, "losses", watched)
    training_losses(method, batch, TrainingConfig(positives=positives), World())
    assert torch.equal(seen[0], expected)


def test_the_coarse_objective_is_the_softmax_loss_of_mean_frames_and_leaves_the_head_alone() -> (
    None
):
    method, batch = build("xpool"), make_batch()
    right = torch.tensor(SAME_VIDEO).bool()
    losses = training_losses(method, batch, TrainingConfig(), World(), is_coarse=True)
    unit = torch.nn.functional.normalize
    sentences = unit(method.encoder.text(batch.texts.sentence), dim=-1)
    frames = unit(method.encoder.frames(batch.videos.frames), dim=-1)
    logits = method.encoder.logit_scale.exp() * sentences @ unit(frames.mean(dim=1), dim=-1).T
    expected = 0.0
    for rows, wanted in ((logits, right), (logits.T, right.T)):
        for row, is_right in zip(rows, wanted, strict=True):
            expected -= row.log_softmax(0)[is_right].mean().item() / (2 * PAIRS)
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)
    inside = {parameter for parameter in method.encoder.parameters() if parameter.requires_grad}
    for parameter in method.parameters():
        assert (parameter.grad is not None) == (parameter in inside)


def test_the_draws_of_a_step_come_from_its_seed_alone() -> None:
    """What a resumed run drew before its first step changes nothing, so no state is restored."""
    totals = {}
    for seed, drawn_before in ((3, 0), (3, 50), (4, 0)):
        method = build("eaglenet").train()
        torch.rand(drawn_before)
        losses = training_losses(method, make_batch(), TrainingConfig(), World(), seed=seed)
        totals[seed, drawn_before] = losses.total.item()
    assert totals[3, 0] == totals[3, 50] != totals[4, 0]


def test_every_field_of_a_batch_is_sent_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    plain = torch.Tensor.to

    def spied(tensor: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(options.get("non_blocking"))
        return plain(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", spied)
    make_batch().to("meta")  # a device, as a GPU is
    assert len(sent) >= 4
    assert all(sent)
