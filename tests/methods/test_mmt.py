"""MMT against loops; what becomes of missing experts; tokens that are left out."""

from __future__ import annotations

import pytest
import torch
from expert_inputs import EXACT, WIDTHS, build, experts_of, matrix, random, texts, videos

from eaglenet.core.types import Expert, VideoFeatures
from eaglenet.layers.experts import limit_tokens
from reference import mmt as reference
from reference.arithmetic import weights_of
from reference.experts import mixture

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12, "num_positions": 5}


def tokens_by_time(video: VideoFeatures) -> list[dict[str, list[tuple[object, float]]]]:
    """Real tokens with the times that the inputs give them."""
    return [
        {
            name: [(token, 1.3 * place) for place, token in enumerate(tokens)]
            for name, tokens in experts.items()
        }
        for experts in experts_of(video)
    ]


@pytest.mark.parametrize("keep_missing", [True, False])
@torch.no_grad()
def test_the_score_equals_the_loops(keep_missing: bool) -> None:
    method = build("mmt", keep_missing=keep_missing, **SIZES)
    text, video = texts(), videos()
    weights = weights_of(method)
    sides = []
    for experts in tokens_by_time(video):
        side = reference.video_side(experts, weights, heads=2, layers=2)  # type: ignore[arg-type]
        names = sorted(WIDTHS)
        sides.append(
            [
                vector if keep_missing or experts[name] else None
                for name, vector in zip(names, side, strict=True)
            ]
        )
    rows = []
    for sentence in text.sentence:
        heads, shares = reference.text_side(sentence.numpy(), weights, len(WIDTHS))
        rows.append([mixture(heads, shares, side) for side in sides])
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


@torch.no_grad()
def test_without_missing_experts_coarse_vectors_rank_as_the_score_does() -> None:
    method = build("mmt", **SIZES)
    text, video = method.encode_text(texts()), method.encode_video(videos())
    product = method.joint_vectors(text) @ method.joint_vectors(video).T  # type: ignore[operator]
    torch.testing.assert_close(product, method.score(text, video), **EXACT)


@torch.no_grad()
def test_words_that_change_places_change_a_score_with_text_layers() -> None:
    method = build("mmt", text_layers=1, **SIZES)
    text, video = texts(), method.encode_video(videos())
    before = method.score(method.encode_text(text), video)
    assert text.words is not None
    text.words[1] = text.words[1].flip(0)
    after = method.score(method.encode_text(text), video)
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1], atol=1e-6)


def test_too_many_tokens_are_spread_evenly_or_drawn_in_order() -> None:
    mask = torch.arange(10)[None] < torch.tensor([[10], [7], [3], [0]])
    values = torch.arange(10.0).expand(4, -1)[..., None].contiguous()
    expert = Expert(values, mask, values[..., 0])
    even = limit_tokens(expert, 4, is_random=False)
    assert even.values[0, :, 0].tolist() == [0, 3, 5, 8]
    assert even.mask.sum(dim=1).tolist() == [4, 4, 3, 0]
    assert even.values[2, :3, 0].tolist() == [0, 1, 2]
    torch.manual_seed(0)
    sample = limit_tokens(expert, 4, is_random=True)
    assert sample.mask.sum(dim=1).tolist() == [4, 4, 3, 0]
    assert sample.seconds is not None
    for row in range(3):
        seconds = sample.seconds[row][sample.mask[row]]
        assert torch.equal(seconds, seconds.unique())
        assert seconds.max() < mask[row].sum()
    assert limit_tokens(expert, 0, is_random=True) is expert


@torch.no_grad()
def test_a_token_without_a_time_stands_at_the_place_for_it() -> None:
    method = build("mmt", **SIZES)
    expert = Expert(random(1, 3, 6, seed=1), torch.ones(1, 3, dtype=torch.bool))
    rows = method.tokens.position_rows  # type: ignore[union-attr]
    assert rows(expert).tolist() == [[1, 1, 1]]  # type: ignore[operator]
    expert = Expert(expert.values, expert.mask, torch.tensor([[-1.0, 0.4, 99.0]]))
    assert rows(expert).tolist() == [[1, 2, 4]]  # type: ignore[operator]
