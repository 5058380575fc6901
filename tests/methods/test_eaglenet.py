"""EagleNet as a whole: equal to the loop over every option, and the laws it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.base import BaseEncoder
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.methods.eaglenet import RELEASED_SCRIPTS, EagleNet, EagleNetConfig
from reference import eaglenet_reference as reference

CANDIDATES, TEXTS, HEADS, VIDEOS, FRAMES, DIM = 2, 3, 4, 5, 7, 8
SMALL: dict[str, Any] = {
    "dim": DIM,
    "num_frames": FRAMES,
    "num_candidates": CANDIDATES,
    "num_heads": HEADS,
    "replay_size": 6,
    "langevin_steps": 3,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "gat": {"graph": "gat"},
    "no frame edges": {"frame_edges": False},
    "no position": {"frame_position": False},
    "no relations": {"relation_learning": False},
    "no energy": {"energy": None},
    "cosine": {"energy": "cosine"},
    "mlp": {"energy": "mlp", "energy_bias": True},
    "mlp max": {"energy": "mlp", "energy_pooling": "max"},
    "bilinear min": {"energy_pooling": "min", "energy_bias": True},
    "global energy": {"energy_pooling": "global"},
    "global mlp": {"energy_pooling": "global", "energy": "mlp", "energy_in_batch": True},
    "no penalty": {"energy": "mlp", "energy_bias": True, "energy_penalty": 0.0},
    "support energy": {"energy_support_weight": 1.0, "energy_in_batch": True},
    "softmax": {"loss": "softmax"},
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3, "head_size": "split"},
    "activated": {"edge_weights": "activated"},
    "other direction": {"edge_direction": "frame_to_text"},
    "uniform": {"prior": "uniform", "radius_bias": True, "support": "batch"},
    "elementwise": {"support": "elementwise"},
    "unmasked": {"mask_frames": False},
}
RELEASED = {f"released {name}": name for name in RELEASED_SCRIPTS}


class Features(BaseEncoder):
    """Stands in for an encoder: features are given."""

    family = "features"
    config = FeatureConfig(text_dim=DIM, frame_dim=DIM, dim=DIM)
    dim = DIM
    logit_scale = torch.zeros(())  # type: ignore[assignment]

    def encode_text(self, texts: Any, *, words: bool = False) -> TextFeatures:
        return texts  # type: ignore[no-any-return]

    def encode_video(self, videos: Any, *, patches: bool = False) -> VideoFeatures:
        return videos  # type: ignore[no-any-return]


def config_of(name: str) -> EagleNetConfig:
    if name in RELEASED:
        return replace(EagleNetConfig.for_script(RELEASED[name]), **SMALL)
    return EagleNetConfig(**SMALL, **OPTIONS[name])


def build_method(name: str = "paper", **changes: Any) -> EagleNet:
    torch.manual_seed(1)
    encoder: Any = Features()
    method = EagleNet.build(replace(config_of(name), **changes), encoder).double().eval()
    generator = torch.Generator().manual_seed(2)
    for parameter in method.pooling.parameters():
        noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        parameter.data.add_(0.3 * noise)
    return method


def features(
    num_texts: int = TEXTS, num_videos: int = VIDEOS, seed: int = 3
) -> tuple[TextFeatures, VideoFeatures]:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(num_texts, DIM, dtype=torch.float64, generator=generator)
    frames = torch.randn(num_videos, FRAMES, DIM, dtype=torch.float64, generator=generator)
    mask = torch.ones(num_videos, FRAMES, dtype=torch.bool)
    mask[1::2, 4:] = False
    return TextFeatures(text), VideoFeatures(frames, mask)


EVERY = [*OPTIONS, *RELEASED]
ENERGY_FIELDS = {"energy", "energy_pooling", "energy_support_weight", "loss"}
SCORED = [
    *(name for name, changes in OPTIONS.items() if not ENERGY_FIELDS & set(changes)),
    "released msrvtt-b32",
    "released msrvtt-b16",
]
"""Options that change scores, and not the losses alone."""


@pytest.mark.parametrize("name", SCORED)
def test_scores_and_gradients_equal_the_loop(name: str) -> None:
    method = build_method(name)
    text, video = features(num_texts=1, num_videos=2)
    text.sentence.requires_grad_()
    video.frames.requires_grad_()
    mask = video.mask if method.config.mask_frames else torch.ones_like(video.mask)
    ours = method.score(text, video)
    loop = torch.stack(
        [
            torch.stack(
                [
                    reference.score(
                        method, text.sentence[t], video.frames[v], mask[v], method.noise
                    )
                    for v in range(2)
                ]
            )
            for t in range(1)
        ]
    )
    assert_close(ours, loop)
    inputs = (text.sentence, video.frames)
    gradients = torch.autograd.grad(ours.square().sum(), inputs)
    expected = torch.autograd.grad(loop.square().sum(), inputs)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    method = build_method(name).train()
    largest = {parameter: 0.0 for parameter, _ in method.named_parameters()}
    for seed in range(12):
        text, video = features(num_texts=VIDEOS, seed=seed)
        positives = torch.eye(VIDEOS, dtype=torch.bool)
        generator = torch.Generator().manual_seed(seed)
        method.zero_grad()
        method.losses(text, video, positives, generator=generator).total.backward()
        for parameter, value in method.named_parameters():
            assert value.grad is not None, parameter
            largest[parameter] = max(largest[parameter], float(value.grad.abs().max()))
        dead = [parameter for parameter, value in largest.items() if value < 1e-12]
        if not dead:
            return
    raise AssertionError(f"never got a gradient: {dead}")


@pytest.mark.parametrize("name", EVERY)
def test_losses_are_finite_named_and_weighted(name: str) -> None:
    method = build_method(name).train()
    text, video = features(num_texts=VIDEOS)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    config = method.config
    expected = {"enriched": 1.0, "support": config.support_weight}
    if config.energy is not None:
        expected["energy"] = config.energy_weight
        if config.energy_support_weight:
            expected["energy_support"] = config.energy_support_weight
    assert dict(losses.weights) == expected
    assert set(losses.terms) == set(expected)
    assert all(value.isfinite() for value in losses.terms.values())


@pytest.mark.parametrize("name", EVERY)
def test_permuting_the_gallery_permutes_the_scores(name: str) -> None:
    method = build_method(name)
    text, video = features()
    order = torch.randperm(VIDEOS, generator=torch.Generator().manual_seed(4))
    assert_close(method.score(text, video[order]), method.score(text, video)[:, order])


@settings(deadline=None, max_examples=12)
@given(
    num_texts=st.integers(1, 6),
    num_videos=st.integers(1, 6),
    name=st.sampled_from(["paper", "released msrvtt-b16", "gat", "no relations"]),
)
def test_a_pair_scores_the_same_alone_or_in_a_batch(
    num_texts: int, num_videos: int, name: str
) -> None:
    """The leak test: numbers of texts and videos differ, and nobody else changes a score."""
    method = build_method(name)
    text, video = features(num_texts, num_videos)
    scores = method.score(text, video)
    assert scores.shape == (num_texts, num_videos)
    for t in range(num_texts):
        for v in range(num_videos):
            assert_close(method.score(text[t], video[v])[0, 0], scores[t, v])


@pytest.mark.parametrize("name", EVERY)
def test_padding_frames_changes_nothing_where_frames_are_masked(name: str) -> None:
    method = build_method(name, mask_frames=True)
    text, video = features(num_texts=VIDEOS)
    positives = torch.eye(VIDEOS, dtype=torch.bool)
    short = VideoFeatures(video.frames[:, :4], video.mask[:, :4])
    padding = torch.full((VIDEOS, 3, DIM), 5.0, dtype=torch.float64)
    padded_video = VideoFeatures(
        torch.cat([short.frames, padding], dim=1),
        torch.cat([short.mask, torch.zeros(VIDEOS, 3, dtype=torch.bool)], dim=1),
    )
    assert_close(method.score(text, padded_video), method.score(text, short))
    start = _start(method)

    def losses(given: VideoFeatures) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(5)
        result = method.losses(text, given, positives, chain_start=start, generator=generator)
        return dict(result.terms)

    for term, value in losses(padded_video).items():
        assert_close(value, losses(short)[term], msg=term)


def _start(method: EagleNet) -> tuple[Tensor, Tensor] | None:
    if method.replay is None:
        return None
    texts, frames = method.replay.draw(VIDEOS, generator=torch.Generator().manual_seed(6))
    return texts.double(), frames.double()


def test_padding_counts_in_the_released_configuration() -> None:
    method = build_method("released msrvtt-b32")
    text, video = features()
    other_video = VideoFeatures(video.frames, torch.ones_like(video.mask))
    assert_close(method.score(text, other_video), method.score(text, video))
    blank = VideoFeatures(video.frames.masked_fill(~video.mask[..., None], 0.0), video.mask)
    assert not torch.allclose(method.score(text, blank), method.score(text, video))


def test_evaluation_is_deterministic_and_seeded() -> None:
    text, video = features()
    method = build_method()
    assert torch.equal(method.score(text, video), method.score(text, video))
    assert torch.equal(method.score(text, video), build_method().score(text, video))
    assert not torch.equal(method.score(text, video), build_method(noise_seed=9).score(text, video))
    assert "noise" in method.state_dict()


def test_noise_can_be_given_for_each_pair() -> None:
    method = build_method()
    text, video = features()
    for_each = method.noise.expand(TEXTS, VIDEOS, CANDIDATES, DIM)
    assert_close(method.score(text, video, for_each), method.score(text, video))


def test_training_noise_comes_from_the_generator_alone() -> None:
    method = build_method(pool_dropout=0.0, graph_dropout=0.0)
    text, video = features(num_texts=VIDEOS)
    positives = torch.eye(VIDEOS, dtype=torch.bool)

    def total(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return method.losses(text, video, positives, generator=generator).total

    before = torch.get_rng_state()
    assert torch.equal(total(1), total(1))
    assert not torch.equal(total(1), total(2))
    assert torch.equal(before, torch.get_rng_state())


def test_without_relations_training_draws_one_candidate_and_evaluation_takes_the_best() -> None:
    method = build_method("no relations")
    text, video = features()
    single = [method.score(text, video, method.noise[i : i + 1]) for i in range(CANDIDATES)]
    assert_close(method.score(text, video), torch.stack(single).max(dim=0).values)
    noise = method.draw_candidate_noise(TEXTS, VIDEOS, text.sentence, None)
    assert noise.shape == (TEXTS, VIDEOS, 1, DIM)
    assert method.graph is None


def test_chains_fill_the_replay_buffer_in_training_only() -> None:
    method = build_method()
    text, video = features(num_texts=VIDEOS)
    positives = torch.eye(VIDEOS, dtype=torch.bool)
    assert method.replay is not None
    method.losses(text, video, positives)
    assert int(method.replay.written) == 0
    method.train().losses(text, video, positives)
    assert int(method.replay.written) == VIDEOS


@pytest.mark.parametrize("num_chains", [1, VIDEOS + 3])
def test_a_batch_may_sample_another_number_of_pairs_than_it_has(num_chains: int) -> None:
    """Algorithm 1 writes B' for the sampled pairs."""
    method = build_method(num_chains=num_chains).train()
    text, video = features(num_texts=VIDEOS)
    assert method.replay is not None
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    assert int(method.replay.written) == min(num_chains, method.replay.size)
    losses.total.backward()
    with pytest.raises(ConfigError, match="num_chains is -1"):
        replace(method.config, num_chains=-1)


def test_the_energy_of_sampled_pairs_is_their_mean() -> None:
    method = build_method(langevin_steps=0)
    text, video = features(num_texts=VIDEOS)
    start = (torch.randn(2, DIM).double(), torch.randn(2, FRAMES, DIM).double())
    positives = torch.eye(VIDEOS, dtype=torch.bool)
    both = method.losses(text, video, positives, noise=method.noise, chain_start=start)
    parts = [
        method.losses(
            text,
            video,
            positives,
            noise=method.noise,
            chain_start=(start[0][row : row + 1], start[1][row : row + 1]),
        )
        for row in (0, 1)
    ]
    mean = (parts[0].terms["energy"] + parts[1].terms["energy"]) / 2
    assert_close(both.terms["energy"], mean)


def test_losses_keep_no_gradient_through_the_samples() -> None:
    method = build_method("mlp").train()
    text, video = features(num_texts=VIDEOS)
    start = _start(method)
    assert start is not None
    start[0].requires_grad_()
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool), chain_start=start)
    losses.total.backward()
    assert start[0].grad is None


def test_two_captions_of_one_video_are_both_positives() -> None:
    method = build_method()
    text, video = features(num_texts=4, num_videos=4)
    video = video[torch.tensor([0, 0, 1, 2])]
    ids = torch.tensor([0, 0, 1, 2])
    both = ids[:, None] == ids[None]
    start = (torch.ones(4, DIM).double(), torch.ones(4, FRAMES, DIM).double())
    arguments: dict[str, Any] = {"noise": method.noise, "chain_start": start}
    right = method.losses(text, video, both, **arguments)
    wrong = method.losses(text, video, torch.eye(4, dtype=torch.bool), **arguments)
    assert right.terms["enriched"] != wrong.terms["enriched"]


def test_numbers_of_texts_and_videos_may_differ_in_training() -> None:
    method = build_method("support energy").train()
    text, video = features(num_texts=TEXTS, num_videos=VIDEOS)
    positives = torch.zeros(TEXTS, VIDEOS, dtype=torch.bool)
    positives[torch.arange(TEXTS), torch.tensor([0, 4, 0])] = True
    assert method.losses(text, video, positives).total.isfinite()


def test_nothing_is_sized_by_the_first_batch() -> None:
    method = build_method("support energy").train()
    for size in (VIDEOS, 3, 9):
        text, video = features(num_texts=size, num_videos=size)
        assert method.losses(text, video, torch.eye(size, dtype=torch.bool)).total.isfinite()


def test_more_frames_than_the_model_knows_are_refused() -> None:
    text, video = features()
    longer = VideoFeatures(video.frames.repeat(1, 2, 1), video.mask.repeat(1, 2))
    with pytest.raises(ConfigError, match="14 frames"):
        build_method().score(text, longer)


def test_an_encoder_of_another_width_is_refused() -> None:
    encoder: Any = Features()
    with pytest.raises(ConfigError, match="dim=8"):
        EagleNet(encoder, EagleNetConfig())


def test_mixed_precision_training_gives_finite_gradients() -> None:
    method = build_method().float().train()
    text, video = features(num_texts=VIDEOS)
    text, video = text.to("cpu", torch.float32), video.to("cpu", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    losses.total.backward()
    assert all(
        value.grad is not None and value.grad.isfinite().all() for value in method.parameters()
    )


def test_the_method_is_registered() -> None:
    assert METHODS["eaglenet"].config_class is EagleNetConfig
