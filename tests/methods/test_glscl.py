"""GLSCL equals its loops; the Gram matrix changes nothing."""

from __future__ import annotations

import pytest
import torch
from double_precision import (
    EXACT,
    VIDEOS,
    build,
    frames_of,
    matrix,
    sentences_of,
    texts,
    videos,
    words_of,
)
from small_towers import small_clip

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Tokens
from eaglenet.methods import METHODS
from eaglenet.methods.glscl import GLSCL, GLSCLConfig
from reference import glscl as reference
from reference.arithmetic import contrastive, part, temporal, weights_of

SHAPE = {"num_heads": 2, "num_layers": 2}


def make(**changes: object) -> GLSCL:
    method = build("glscl", num_concepts=3, feed_forward=10, **SHAPE, **changes)
    assert isinstance(method, GLSCL)
    return method


@torch.no_grad()
def test_scores_and_losses_equal_the_loops() -> None:
    method = make(local_at_inference=True)
    text, video = texts(VIDEOS), videos()
    stack = part(weights_of(method), "temporal.stack")
    frames = [temporal(rows, stack, **SHAPE) for rows in frames_of(video)]
    of_video, of_text = (
        [
            # One set at a time and without padding: what a mask must equal.
            [
                vector.numpy()
                for vector in method.concepts(
                    matrix([list(token) for token in rows])[None],
                    torch.ones(1, len(rows), dtype=torch.bool),
                )[0]
            ]
            for rows in sets
        ]
        for sets in (frames, words_of(text))
    )
    plain = matrix(
        [
            [reference.global_score(sentence, rows, 3.0) for rows in frames]
            for sentence in sentences_of(text)
        ]
    )
    local = matrix([[reference.local_score(a, b) for b in of_video] for a in of_text])
    features = method.encode_video(video)
    torch.testing.assert_close(method.score(text, features), plain + 0.5 * local, **EXACT)
    torch.testing.assert_close(make().score(text, features), plain, **EXACT)
    losses = method.losses(text, features, torch.eye(VIDEOS, dtype=torch.bool))
    scale = float(method.loss.scale())
    expected = {
        "contrastive": contrastive((plain + 0.5 * local).numpy(), scale),
        "consistency": reference.consistency(of_text, of_video, weight=0.02, target=0.75),
        "diversity": reference.diversity(of_video, margin=0.1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(losses.terms[name].item(), value)
    assert losses.weights == {"diversity": 1e-4}


def test_the_queries_start_between_nought_and_one() -> None:
    torch.manual_seed(0)
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
    from eaglenet.methods import METHODS

    encoder = FeatureEncoder(FeatureConfig(9, 11, 64))
    method = METHODS["glscl"].build(METHODS["glscl"].config_class(), encoder)
    queries = method.get_parameter("queries")
    assert queries.shape == (8, 64)
    assert queries.min() >= 0
    assert 0.45 < queries.mean() < 0.55


@torch.no_grad()
def test_padded_tokens_attend_to_real_ones_only_with_official_padding() -> None:
    encoder = small_clip()
    by_padding = {
        padding: METHODS["glscl"].build(GLSCLConfig(num_heads=2, padding=padding), encoder).eval()
        for padding in ("masked", "official")
    }
    ids = torch.tensor([[1, 4, 9, 0, 0, 0], [1, 4, 9, 0, 3, 0]])
    tokens = Tokens(ids, torch.tensor([[1, 1, 1, 0, 0, 0]] * 2).bool())
    masked, official = (by_padding[name].encode_text(tokens) for name in ("masked", "official"))
    torch.testing.assert_close(official.sentence, masked.sentence)
    torch.testing.assert_close(official.words[:, :3], masked.words[:, :3])
    for words, is_equal in ((masked.words, False), (official.words, True)):
        # Another padding token is not seen by the one after it.
        assert torch.allclose(words[0, 5], words[1, 5], atol=1e-6) == is_equal
        assert not torch.allclose(words[0, 4], words[1, 4], atol=1e-6)


def test_heads_that_do_not_divide_the_width_of_the_decoder_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 heads do not divide a width of"):
        make(num_decoder_heads=5)
