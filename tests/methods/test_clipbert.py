"""ClipBERT against loops; clips, pairs at once, and search that only ranks a shortlist with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from double_precision import EXACT, matrix, random, shake
from small_towers import small_clip, small_clips

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Tokens
from eaglenet.methods import METHODS, Method
from eaglenet.methods.early.clipbert import pool_clips
from eaglenet.scoring.scorer import score_all, score_best
from reference.arithmetic import Vector, Weights, layer_norm, linear, part, weights_of
from reference.mmt import post_norm

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 12, "dim": 6, "frames_per_clip": 2}


def make(**changes: Any) -> Method:
    torch.manual_seed(0)
    spec = METHODS["clipbert"]
    config = spec.config_class(**{"num_frames": 5, "dropout": 0.0, **SIZES, **changes})
    return shake(spec.build(config, small_clip()))


def tokens(count: int = 3) -> Tokens:
    ids = torch.randint(1, 50, (count, 5), generator=torch.Generator().manual_seed(3))
    ids[:, -1] = 59
    ids[0, 3:] = torch.tensor([59, 0])
    return Tokens(ids, ids > 0)


def logits_of(words: list[Vector], grid: list[Vector], weights: Weights, side: int) -> Vector:
    """Two logits of one text and one clip."""
    read = [weights["first"], *(linear(word, part(weights, "word_map")) for word in words)]
    read = [
        layer_norm(
            token + weights["positions"][place] + weights["kinds"][0],
            part(weights, "text_norm"),
            1e-12,
        )
        for place, token in enumerate(read)
    ]
    visible = [
        layer_norm(
            linear(patch, part(weights, "patch_map"))
            + weights["kinds"][1]
            + weights["grid"][0][place // side]
            + weights["grid"][1][place % side],
            part(weights, "patch_norm"),
            1e-12,
        )
        for place, patch in enumerate(grid)
    ]
    states = post_norm(
        [*read, *visible],
        [True] * (len(read) + len(visible)),
        part(weights, "stack"),
        heads=2,
        layers=2,
    )[-1]
    output = np.tanh(linear(states[0], part(weights, "pooler")))
    hidden_states = np.maximum(linear(output, part(weights, "head.0")), 0)
    return linear(hidden_states, part(weights, "head.2"))


@torch.no_grad()
def test_the_score_equals_the_loops_over_pairs_and_clips() -> None:
    method, clips = make(), small_clips(2, 5)
    clips.mask[1, 3:] = False
    text, video = method.encode_text(tokens()), method.encode_video(clips)
    assert text.words is not None
    assert text.words_mask is not None
    assert video.patches is not None
    weights = weights_of(method)
    rows = []
    for words, mask in zip(text.words, text.words_mask, strict=True):
        row = []
        for grid, real in zip(video.patches, video.mask, strict=True):
            result = []
            for start in (0, 2, 4):
                frames = [grid[place] for place in range(start, min(start + 2, 5)) if real[place]]
                if frames:
                    mean = list(torch.stack(frames).mean(dim=0).numpy())
                    result.append(logits_of([w.numpy() for w in words[mask]], mean, weights, 2))
            sums = [np.log(np.sum(np.exp([one[k] for one in result]))) for k in (0, 1)]
            row.append(float(sums[1] - sums[0]))
        rows.append(row)
    torch.testing.assert_close(method.score(text, video), matrix(rows), **EXACT)


@torch.no_grad()
def test_the_score_does_not_depend_on_tiles_or_pairs_at_once() -> None:
    method = make()
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(4, 5))
    whole = method.score(text, video)
    method.config = dataclasses.replace(method.config, pairs_at_once=5)
    torch.testing.assert_close(method.score(text, video), whole, **EXACT)
    scores = torch.as_tensor(score_all(method, text, video, precision="fp32")).double()
    torch.testing.assert_close(scores, whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_scoring_all_streams_through_pairs_and_prepares_none() -> None:
    """However many pairs there are, the network sees a few at a time, each of them once."""
    method = make(pairs_at_once=4)
    text, video = method.encode_text(tokens(7)), method.encode_video(small_clips(9, 5))
    whole = method.score(text, video)
    calls: list[int] = []
    plain = method.pair_logits

    def spy(text: Any, video: Any, rows: torch.Tensor, columns: torch.Tensor) -> Any:
        calls.append(len(rows))
        return plain(text, video, rows, columns)  # type: ignore[operator]

    method.pair_logits = spy  # type: ignore[assignment]
    scores = torch.as_tensor(score_all(method, text, video, tile_texts=3, tile_videos=4))
    assert max(calls) <= 4
    assert sum(calls) == 7 * 9
    torch.testing.assert_close(scores.double(), whole, rtol=1e-4, atol=1e-5)
    best = score_best(method, text, video, 2)
    assert torch.equal(best.videos, whole.topk(2).indices)


@pytest.mark.parametrize("pooling", ["lse", "mean", "max"])
def test_one_clip_is_the_video(pooling: str) -> None:
    logits = random(4, 1, 2, seed=1)
    mask = torch.ones(4, 1, dtype=torch.bool)
    torch.testing.assert_close(pool_clips(logits, mask, pooling), logits[:, 0])


def test_real_clips_are_pooled_by_the_formulas() -> None:
    logits = random(1, 3, 2, seed=1)
    mask = torch.tensor([[True, True, False]])
    first, second = logits[0, :2]
    for pooling, expected in (
        ("lse", (first.exp() + second.exp()).log()),
        ("mean", (first + second) / 2),
        ("max", torch.maximum(first, second)),
    ):
        torch.testing.assert_close(pool_clips(logits, mask, pooling)[0], expected)


def test_the_loss_is_over_clips_and_classes_minus_clips_of_the_right_class() -> None:
    logits, mask = random(1, 3, 2, seed=1), torch.tensor([[True, True, False]])
    powers = logits[0, :2].exp()
    expected = (powers.sum() / powers[:, 1].sum()).log()
    output = pool_clips(logits, mask, "lse")
    loss = torch.nn.functional.cross_entropy(output, torch.tensor([1]))
    torch.testing.assert_close(loss, expected)


def test_a_batch_is_learnt_from_twice_as_many_pairs_not_from_all() -> None:
    method = make().train()
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(3, 5))
    calls: list[tuple[list[int], list[int]]] = []
    plain = method.pair_logits

    def spy(text: Any, video: Any, rows: torch.Tensor, columns: torch.Tensor) -> Any:
        calls.append((rows.tolist(), columns.tolist()))
        return plain(text, video, rows, columns)  # type: ignore[operator]

    method.pair_logits = spy  # type: ignore[assignment]
    positives = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 1, 1]]).bool()
    method.losses(text, video, positives)
    ((rows, columns),) = calls
    assert rows == [0, 1, 2, 0, 1, 2]
    assert columns[:3] == [0, 1, 2]
    assert not any(
        positives[row, column] for row, column in zip(rows[3:], columns[3:], strict=True)
    )


def test_it_says_that_it_is_a_cross_encoder_and_others_are_not() -> None:
    assert make().is_cross_encoder
    assert (
        not METHODS["clip4clip"]
        .build(METHODS["clip4clip"].config_class(), small_clip())
        .is_cross_encoder
    )
    with pytest.raises(ConfigError, match="frames_per_clip"):
        make(frames_per_clip=0)
    method = make(num_positions=3)
    text, video = method.encode_text(tokens()), method.encode_video(small_clips(1, 5))
    with pytest.raises(ConfigError, match="num_positions"):
        method.score(text, video)
