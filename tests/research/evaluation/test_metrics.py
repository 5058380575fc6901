"""Ranks by hand, against a naive loop, and against the field's own method where both hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.research.evaluation.metrics import StreamingRanks, retrieval_metrics, summarize_ranks


def naive_ranks(scores: list[list[float]], video_of_text: list[int]) -> tuple[list[int], list[int]]:
    """Ranks written as loops, straight from the definition."""
    num_texts, num_videos = len(scores), len(scores[0])
    text_ranks = []
    for text in range(num_texts):
        target = scores[text][video_of_text[text]]
        others = [video for video in range(num_videos) if video != video_of_text[text]]
        text_ranks.append(1 + sum(scores[text][video] >= target for video in others))
    groups = sorted(set(video_of_text))
    video_ranks = []
    for video in groups:
        best = {
            group: max(
                scores[text][video] for text in range(num_texts) if video_of_text[text] == group
            )
            for group in groups
        }
        beaten = sum(best[group] >= best[video] for group in groups if group != video)
        video_ranks.append(1 + beaten)
    return text_ranks, video_ranks


def test_hand_computed_matrix_with_ties_and_several_captions() -> None:
    # 8 texts, 4 videos, two captions a video; ties are marked with their rank.
    scores = torch.tensor(
        [
            [0.9, 0.1, 0.2, 0.3],  # right 0: rank 1
            [0.5, 0.5, 0.1, 0.0],  # right 0: tie with 1: rank 2
            [0.1, 0.8, 0.7, 0.0],  # right 1: rank 1
            [0.6, 0.4, 0.4, 0.5],  # right 1: 0.6, 0.5 and the tie 0.4: rank 4
            [0.0, 0.0, 0.0, 0.0],  # right 2: all tied: rank 4
            [0.3, 0.2, 0.9, 0.1],  # right 2: rank 1
            [0.7, 0.1, 0.9, 0.8],  # right 3: rank 2
            [0.2, 0.1, 0.3, 0.6],  # right 3: rank 1
        ]
    )
    video_of_text = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    metrics = retrieval_metrics(scores, video_of_text)
    # t2v ranks 1 2 1 4 4 1 2 1
    assert metrics.t2v.recall_at_1 == pytest.approx(50.0)
    assert metrics.t2v.recall_at_5 == pytest.approx(100.0)
    assert metrics.t2v.median_rank == pytest.approx(1.5)
    assert metrics.t2v.mean_rank == pytest.approx(2.0)
    assert metrics.t2v.num_queries == 8
    # Best of each group by video: own 0.9 0.8 0.9 0.8; video 2 ties with group 3: ranks 1 1 2 1.
    assert metrics.v2t.recall_at_1 == pytest.approx(75.0)
    assert metrics.v2t.mean_rank == pytest.approx(1.25)
    assert metrics.v2t.num_queries == 4
    assert metrics.rsum == pytest.approx(50 + 100 + 100 + 75 + 100 + 100)


def test_constant_scores_give_the_worst_rank_not_the_best() -> None:
    metrics = retrieval_metrics(torch.zeros(3, 7), torch.tensor([1, 4, 6]))
    assert metrics.t2v.mean_rank == 7
    assert metrics.t2v.recall_at_1 == 0
    assert metrics.v2t.mean_rank == 3


def test_videos_without_text_are_distractors_and_never_queries() -> None:
    scores = torch.tensor([[0.2, 0.9, 0.1, 0.3, 0.0], [0.1, 0.0, 0.8, 0.1, 0.2]])
    metrics = retrieval_metrics(scores, torch.tensor([3, 2]))
    assert metrics.t2v.mean_rank == pytest.approx(1.5)  # the distractor 1 beats video 3 once
    assert metrics.v2t.num_queries == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ranks_equal_a_naive_loop(data: Any) -> None:
    num_videos = data.draw(st.integers(1, 6))
    video_of_text = data.draw(st.lists(st.integers(0, num_videos - 1), min_size=1, max_size=11))
    # Few distinct values, so that most examples hold ties.
    values = st.integers(0, 4)
    row = st.lists(values, min_size=num_videos, max_size=num_videos)
    rows = data.draw(st.lists(row, min_size=len(video_of_text), max_size=len(video_of_text)))
    scores = torch.tensor(rows, dtype=torch.float32) / 4
    text_ranks, video_ranks = naive_ranks(scores.tolist(), video_of_text)
    metrics = retrieval_metrics(scores, torch.tensor(video_of_text))
    assert metrics.t2v == summarize_ranks(torch.tensor(text_ranks))
    assert metrics.v2t == summarize_ranks(torch.tensor(video_ranks))


def test_without_ties_the_field_s_sort_and_diagonal_agree() -> None:
    scores = torch.randn(43, 43, generator=torch.Generator().manual_seed(7))
    metrics = retrieval_metrics(scores, torch.arange(43))
    for matrix, ours in ((scores.numpy(), metrics.t2v), (scores.numpy().T, metrics.v2t)):
        sorted_scores = np.sort(-matrix, axis=1)
        ranks = np.where(sorted_scores - np.diag(-matrix)[:, None] == 0)[1]
        assert ours.recall_at_1 == pytest.approx(100 * np.mean(ranks == 0))
        assert ours.recall_at_5 == pytest.approx(100 * np.mean(ranks < 5))
        assert ours.recall_at_10 == pytest.approx(100 * np.mean(ranks < 10))
        assert ours.median_rank == pytest.approx(np.median(ranks) + 1)
        assert ours.mean_rank == pytest.approx(np.mean(ranks) + 1)


@pytest.mark.parametrize("text_step", [1, 2, 5, 13])
@pytest.mark.parametrize("video_step", [1, 3, 8])
def test_tiles_of_any_size_give_the_ranks_of_the_whole_matrix(
    text_step: int, video_step: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 6, (13, 8), generator=generator) / 6
    video_of_text = torch.tensor([0, 0, 0, 0, 1, 3, 3, 4, 4, 4, 6, 7, 7])
    ranks = StreamingRanks(video_of_text, 8)
    for add in (ranks.add_targets, ranks.add):
        for video in range(0, 8, video_step):
            for text in range(0, 13, text_step):
                add(scores[text : text + text_step, video : video + video_step], text, video)
    assert ranks.metrics() == retrieval_metrics(scores, video_of_text)


def test_the_order_of_texts_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(9, 4, generator=generator)
    video_of_text = torch.tensor([3, 0, 1, 1, 2, 0, 3, 2, 1])
    order = torch.randperm(9, generator=generator)
    expected = retrieval_metrics(scores, video_of_text)
    assert retrieval_metrics(scores[order], video_of_text[order]) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_scores_raise_and_are_counted(bad: float) -> None:
    scores = torch.rand(3, 5)
    scores[1, 2] = scores[2, 4] = bad
    with pytest.raises(NonFiniteError, match=r"2 of 15 scores .* text 1, video 2"):
        retrieval_metrics(scores, torch.tensor([0, 1, 2]))


def test_a_text_of_a_video_that_is_not_there_raises() -> None:
    with pytest.raises(DatasetError, match="1 texts belong to a video that does not exist"):
        retrieval_metrics(torch.rand(3, 5), torch.tensor([0, 5, 2]))


def test_missing_or_disordered_tiles_raise() -> None:
    ranks = StreamingRanks(torch.tensor([0, 1, 2]), 3)
    with pytest.raises(UsageError, match="no target yet"):
        ranks.add(torch.rand(3, 3))
    with pytest.raises(UsageError, match="columns have tiles missing"):
        ranks.metrics()
    with pytest.raises(UsageError, match="out of order"):
        ranks.add(torch.rand(1, 3), text_start=1)
    with pytest.raises(UsageError, match="sorted by video"):
        StreamingRanks(torch.tensor([1, 0]), 2)


def test_a_correspondence_that_is_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match="scores have 3 texts but video_of_text has 2"):
        retrieval_metrics(torch.rand(3, 5), torch.tensor([0, 1]))


def test_ties_count_for_the_model_where_that_is_asked() -> None:
    """Two identical captions tie for both videos: against the model both are second."""
    scores = torch.tensor([[0.9, 0.4], [0.9, 0.4]])
    owners = torch.tensor([0, 1])
    against, lenient = (retrieval_metrics(scores, owners, ties) for ties in ("against", "for"))
    assert (against.v2t.recall_at_1, lenient.v2t.recall_at_1) == (0.0, 100.0)
    assert (against.t2v.recall_at_1, lenient.t2v.recall_at_1) == (50.0, 50.0)
    distinct = torch.tensor([[0.9, 0.4], [0.8, 0.5]])
    assert retrieval_metrics(distinct, owners) == retrieval_metrics(distinct, owners, "for")
