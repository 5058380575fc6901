"""The released configuration equals the numbers of the authors' code, through the converter."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from eaglenet.core.types import Losses, TextFeatures, Tokens, VideoFeatures
from eaglenet.energy.langevin import sample
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.methods.official.checkpoint import OfficialConversion, convert_eaglenet
from golden_checkpoint import (
    GOLDEN_NAMES,
    TOLERANCE,
    golden_inputs,
    golden_options,
    golden_weights,
    load_golden,
)

POOLING = {"avg": "mean", "max": "max", "min": "min"}
GRADIENT_TOLERANCE = 1e-4


@cache
def conversion(name: str) -> OfficialConversion[EagleNet]:
    pooling: Any = POOLING[golden_options(name)["pooling"]]
    return convert_eaglenet(golden_weights(name), energy_pooling=pooling)


def model(name: str) -> EagleNet:
    return conversion(name).method


def close(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


def by_pair(noise: Tensor, num_texts: int) -> Tensor:
    """[candidates, texts * videos, dim] -> [texts, videos, candidates, dim]."""
    return noise.unflatten(1, (num_texts, -1)).permute(1, 2, 0, 3)


def video_features(frames: Tensor) -> VideoFeatures:
    return VideoFeatures(frames, torch.ones(frames.shape[:2], dtype=torch.bool))


@cache
def training(name: str) -> tuple[Losses, Tensor, Tensor]:
    """Losses and gradients of the five matched pairs, as the reference computes them."""
    golden, inputs = load_golden(name), golden_inputs(name)
    text = golden["text_features"].clone().requires_grad_()
    frames = golden["frame_features"][: len(text)].clone().requires_grad_()
    silence = torch.zeros(20, *inputs.chain_text.shape), torch.zeros(20, *inputs.chain_frames.shape)
    losses = model(name).losses(
        TextFeatures(text),
        video_features(frames),
        torch.eye(len(text), dtype=torch.bool),
        noise=by_pair(inputs.train_candidate_noise, len(text)),
        chain_start=(inputs.chain_text, inputs.chain_frames),
        chain_noise=silence,
    )
    to_text, to_frames = torch.autograd.grad(losses.total, (text, frames))
    return losses, to_text, to_frames


@pytest.fixture(params=GOLDEN_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Each of the authors' checkpoints."""
    return str(request.param)


def test_features_equal_the_released_ones(name: str) -> None:
    golden, inputs = load_golden(name), golden_inputs(name)
    encoder: Any = model(name).encoder
    with torch.no_grad():
        text = encoder.encode_text(Tokens(inputs.token_ids, inputs.token_ids > 0))
        frames = encoder.encode_frames(inputs.pixels)[:, :, 0]
    close(text.sentence, golden["text_features"])
    close(frames, golden["frame_features"])


def test_scores_equal_the_released_ones(name: str) -> None:
    golden, inputs = load_golden(name), golden_inputs(name)
    text, video = TextFeatures(golden["text_features"]), video_features(golden["frame_features"])
    with torch.no_grad():
        scores = model(name).score(text, video, by_pair(inputs.candidate_noise, len(text)))
    close(scores, golden["scores"])


def test_training_scores_equal_the_released_ones(name: str) -> None:
    from eaglenet.layers.stochastic_text import support_text

    golden, inputs, method = load_golden(name), golden_inputs(name), model(name)
    text = TextFeatures(golden["text_features"])
    video = video_features(golden["frame_features"][: len(text)])
    scale = getattr(method.loss, "scale", lambda: 1.0)()
    with torch.no_grad():
        matching = method.match(text, video, by_pair(inputs.train_candidate_noise, len(text)))
        support = support_text(text.sentence, matching.pooled_videos, matching.radius, mode="batch")
        support_scores = torch.cosine_similarity(support, matching.pooled_videos, dim=-1)
    close(scale * matching.scores, golden["train_scores"])
    close(scale * support_scores, golden["train_support_scores"])


def test_losses_equal_the_released_ones(name: str) -> None:
    golden, (losses, _, _) = load_golden(name), training(name)
    close(losses.terms["enriched"], golden["loss_main"])
    close(losses.terms["support"], golden["loss_support"])
    close(losses.terms["energy"], golden["loss_energy"])
    total = golden["loss_main"] + 0.8 * golden["loss_support"] + golden["loss_energy"]
    close(losses.total, total)


def energy_loss(energies: Tensor, chains: Tensor) -> float:
    """The authors' loss one number at a time: in-batch and chain terms, each with its penalty."""
    size = len(energies)
    right = [energies[i, i].item() for i in range(size)]
    wrong = [energies[i, j].item() for i in range(size) for j in range(size) if i != j]
    terms = []
    for negatives in (wrong, chains.tolist()):
        contrast = sum(right) / size - sum(negatives) / len(negatives)
        squares = sum(e * e for e in right) / size + sum(e * e for e in negatives) / len(negatives)
        terms.append(contrast + squares)
    return sum(terms) / 2


def test_the_support_energy_term_equals_the_released_numbers(name: str) -> None:
    """A loop that gives the authors' energy loss from their chain ends gives ours for the support.

    Their chains do not depend on the text that is scored, so their stored ends serve both.
    """
    from eaglenet.layers.stochastic_text import support_text

    golden, inputs = load_golden(name), golden_inputs(name)
    pooling: Any = POOLING[golden_options(name)["pooling"]]
    method = convert_eaglenet(
        golden_weights(name), energy_pooling=pooling, energy_support_weight=1.0
    ).method
    energy = method.energy
    assert energy is not None
    text = TextFeatures(golden["text_features"])
    video = video_features(golden["frame_features"][: len(text)])
    noise = by_pair(inputs.train_candidate_noise, len(text))
    silence = torch.zeros(20, *inputs.chain_text.shape), torch.zeros(20, *inputs.chain_frames.shape)
    with torch.no_grad():
        chains = energy(golden["chain_text"], golden["chain_frames"])
        plain = energy_loss(golden["energies"][:, : len(text)], chains)
        assert plain == pytest.approx(golden["loss_energy"].item(), abs=TOLERANCE)
        matching = method.match(text, video, noise)
        support = support_text(text.sentence, matching.pooled_videos, matching.radius, mode="batch")
        own = torch.stack([support[i, i] / support[i, i].norm() for i in range(len(text))])
        expected = energy_loss(energy.all_pairs(own, video.frames), chains)
        losses = method.losses(
            text,
            video,
            torch.eye(len(text), dtype=torch.bool),
            noise=noise,
            chain_start=(inputs.chain_text, inputs.chain_frames),
            chain_noise=silence,
        )
    assert losses.terms["energy_support"].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert losses.weights["energy_support"] == 1.0
    assert abs(expected - plain) > 1e-5  # another term, not the same number again


def test_gradients_equal_the_released_ones(name: str) -> None:
    golden, (_, to_text, to_frames) = load_golden(name), training(name)
    for ours, theirs in ((to_text, golden["grad_text"]), (to_frames, golden["grad_frames"])):
        assert (ours - theirs).norm() <= GRADIENT_TOLERANCE * theirs.norm()
        assert (ours - theirs).abs().max() <= GRADIENT_TOLERANCE * theirs.abs().max()


def test_energies_equal_the_released_ones(name: str) -> None:
    golden, energy = load_golden(name), model(name).energy
    assert energy is not None
    with torch.no_grad():
        energies = energy.all_pairs(golden["text_features"], golden["frame_features"])
    close(energies, golden["energies"])


def test_chains_end_where_the_released_ones_do(name: str) -> None:
    golden, inputs, energy = load_golden(name), golden_inputs(name), model(name).energy
    assert energy is not None
    text, frames = sample(energy, inputs.chain_text, inputs.chain_frames, steps=20)
    close(text, golden["chain_text"])
    close(frames, golden["chain_frames"])


def test_options_are_read_off_the_checkpoint(name: str) -> None:
    config, options = model(name).config, golden_options(name)
    assert config.graph == options["graph"]
    assert config.energy == options["energy"]
    assert config.frame_position == bool(options["framepe"])
    assert config.loss == {"sig": "sigmoid", "clip": "softmax"}[options["loss"]]
    assert config.num_frames == options["frames"]
    assert (config.num_heads, config.num_layers, config.token_shift) == (4, 2, True)
