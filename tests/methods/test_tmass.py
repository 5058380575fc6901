"""T-MASS: scores with radii and both losses equal loops."""

from __future__ import annotations

import pytest
import torch
from double_precision import (
    DIM,
    EXACT,
    VIDEOS,
    build,
    frames_of,
    matrix,
    random,
    sentences_of,
    texts,
    videos,
)

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import VideoFeatures
from eaglenet.methods.tmass import TMASS, TMASSConfig
from reference import tmass as reference
from reference.arithmetic import contrastive, weights_of


@pytest.mark.parametrize("prior", ["uniform", "normal"])
@torch.no_grad()
def test_the_score_equals_the_loops(prior: str) -> None:
    method = build("tmass", prior=prior)
    text, video = texts(), videos()
    weights = weights_of(method)
    noise = list(weights["noise"])
    assert len(noise) == 20
    expected = [
        [reference.similarity(sentence, frames, weights, noise) for frames in frames_of(video)]
        for sentence in sentences_of(text)
    ]
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)


@torch.no_grad()
def test_both_losses_equal_the_loops() -> None:
    method = build("tmass")
    assert isinstance(method, TMASS)
    text, video, noise = texts(VIDEOS), videos(), random(VIDEOS, DIM, seed=9)
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool), noise)
    random_scores, support = reference.training_scores(
        sentences_of(text), frames_of(video), weights_of(method), list(noise.numpy())
    )
    scale = float(method.loss.scale())
    torch.testing.assert_close(losses.terms["stochastic"].item(), contrastive(random_scores, scale))
    torch.testing.assert_close(losses.terms["support"].item(), contrastive(support, scale))
    assert losses.weights["support"] == 0.8


@torch.no_grad()
def test_a_video_is_never_pooled_with_its_own_caption() -> None:
    """The leak of the released evaluation: score (t, v) must not depend on any other text."""
    method = build("tmass")
    text, video = texts(VIDEOS), videos()
    whole = method.score(text, video)
    others = texts(VIDEOS)
    others.sentence[1:] = random(VIDEOS - 1, DIM, seed=17)
    torch.testing.assert_close(method.score(others, video)[0], whole[0], **EXACT)
    torch.testing.assert_close(method.score(text[:2], video), whole[:2], **EXACT)


@torch.no_grad()
def test_more_draws_never_lower_a_score() -> None:
    few, many = build("tmass", num_candidates=2), build("tmass", num_candidates=20)
    many.noise[:2] = few.noise  # type: ignore[index,operator]
    text, video = texts(), videos()
    assert (many.score(text, video) >= few.score(text, video) - 1e-12).all()


def test_more_frames_than_the_radius_knows_are_refused() -> None:
    method = build("tmass", num_frames=3)
    with pytest.raises(ConfigError, match="videos have 4 frames, but the model was built for 3"):
        method.score(texts(), videos())


def test_an_unknown_prior_and_no_draw_at_all_are_refused() -> None:
    config = TMASSConfig()
    # Past the shape checker of the tests, which refuses it first.
    object.__setattr__(config, "prior", "gaussian")
    with pytest.raises(ConfigError, match="'normal' or 'uniform'"):
        config.__post_init__()
    with pytest.raises(ConfigError, match="num_candidates is 0; it must be 1 or more"):
        TMASSConfig(num_candidates=0)


def test_the_bank_is_kept_with_the_model_and_set_by_its_seed() -> None:
    assert torch.equal(build("tmass").noise, build("tmass").noise)  # type: ignore[arg-type]
    other = build("tmass", noise_seed=1)
    assert not torch.equal(build("tmass").noise, other.noise)  # type: ignore[arg-type]
    assert "noise" in other.state_dict()
    assert isinstance(videos(), VideoFeatures)
