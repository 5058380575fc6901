"""From the scores of frames to a span of time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.core.types import Moment
from eaglenet.search.selection import find_moment

INF = float("-inf")


def test_moment_is_the_run_of_good_frames_around_the_best() -> None:
    scores = torch.tensor([0.0, 0.1, 0.9, 1.0, 0.2, 0.95])
    seconds = torch.tensor([11.0, 13, 15, 17, 19, 21])
    assert find_moment(scores, seconds, 10, 22) == Moment(14.0, 18.0, 17.0)


@pytest.mark.parametrize(
    ("neighbour", "begin"),
    [
        (0.50, 4.0),  # mean 0.375, half-way 0.6875: above the mean is not enough
        (0.65, 4.0),  # mean 0.4125, half-way 0.70625
        (0.75, 0.0),  # mean 0.4375, half-way 0.71875: good, and the first frame
    ],
)
def test_frame_is_good_above_the_middle_of_mean_and_best(neighbour: float, begin: float) -> None:
    """s_f >= (mean + max) / 2, of frames at 3, 5, 7 and 9 s."""
    scores = torch.tensor([neighbour, 1.0, 0.0, 0.0])
    moment = find_moment(scores, torch.tensor([3.0, 5.0, 7.0, 9.0]), 0.0, 10.0)
    assert moment == Moment(begin, 6.0, 5.0)


def test_frame_exactly_in_the_middle_is_good() -> None:
    scores = torch.tensor([0.75, 1.0, 0.0, 0.25])  # mean 0.5, half-way 0.75
    moment = find_moment(scores, torch.tensor([3.0, 5.0, 7.0, 9.0]), 0.0, 10.0)
    assert moment == Moment(0.0, 6.0, 5.0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-8, 8), min_size=2, max_size=9))
def test_moment_follows_the_formula(scores: list[int]) -> None:
    """Whole numbers, so that a mean is exact and no frame is good by rounding."""
    best = scores.index(max(scores))
    if max(scores) == min(scores):
        return
    first = last = best
    # s >= (sum / n + max) / 2, without a division
    good = [2 * len(scores) * s >= sum(scores) + len(scores) * max(scores) for s in scores]
    while first > 0 and good[first - 1]:
        first -= 1
    while last + 1 < len(scores) and good[last + 1]:
        last += 1
    start = 0.0 if first == 0 else 2.0 * first
    end = 2.0 * len(scores) if last + 1 == len(scores) else 2.0 * (last + 1)
    seconds = 2.0 * torch.arange(len(scores)) + 1
    moment = find_moment(torch.tensor(scores).float(), seconds, 0.0, 2.0 * len(scores))
    assert moment == Moment(start, end, 2.0 * best + 1)


def test_padding_is_never_in_a_moment() -> None:
    scores = torch.tensor([0.1, 0.9, INF, INF])
    seconds = torch.tensor([1.0, 3.0, 3.0, 3.0])
    assert find_moment(scores, seconds, 0, 4) == Moment(2.0, 4.0, 3.0)
    assert find_moment(torch.full((3,), INF), torch.zeros(3), 2, 6) == Moment(2.0, 6.0, 4.0)


def test_equal_scores_give_the_whole_clip() -> None:
    moment = find_moment(torch.full((3,), 0.4), torch.tensor([1.0, 2, 3]), 0, 4)
    assert (moment.start, moment.end) == (0, 4)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-5, 50)), min_size=1, max_size=9))
def test_moment_is_in_its_clip_and_has_its_best_frame(
    frames: list[tuple[float, float]],
) -> None:
    scores, seconds = (torch.tensor(column) for column in zip(*frames, strict=True))
    moment = find_moment(scores, seconds, 5.0, 30.0)
    assert 5 <= moment.start <= moment.best <= moment.end <= 30
