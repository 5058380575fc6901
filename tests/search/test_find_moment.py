"""The moment of a hit, from frames of its clip and of the clips beside it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglenet.search.hit import Moment
from eaglenet.search.selection import THRESHOLD, find_moment


def test_a_moment_goes_on_into_the_clips_beside_it() -> None:
    seconds = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]
    scores = [0.0, 0.0, 1.0, 1.0, 0.9, 1.0, 1.0, 0.0]
    assert find_moment(scores[2:5], seconds[2:5], (4.0, 10.0)).end <= 10.0
    moment = find_moment(scores, seconds, (4.0, 10.0), (0.0, 16.0))
    assert moment == Moment(4.0, 14.0, 5.0)


def test_one_bad_frame_between_good_ones_is_passed_over() -> None:
    seconds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    moment = find_moment([0.0, 1.0, 0.5, 0.9, 0.0, 0.0], seconds, (0.0, 6.5))
    assert (moment.start, moment.end) == (1.5, 4.5)


def test_the_same_scene_after_another_one_is_another_moment() -> None:
    seconds = [float(number) for number in range(9)]
    scores = [1.0, 1.0, 1.0, 1.0, 0.2, 0.2, 0.9, 0.9, 0.9]
    assert find_moment(scores, seconds, (0.0, 8.0), background=0.0).end == 3.5


def test_the_best_frame_is_one_of_the_clip() -> None:
    seconds, scores = [1.0, 3.0, 11.0, 13.0], [0.0, 0.5, 0.0, 1.0]
    assert find_moment(scores, seconds, (0.0, 4.0), (0.0, 14.0)).best == 3.0


def test_frames_that_are_in_two_clips_count_once() -> None:
    once = find_moment([0.0, 1.0, 0.0], [1.0, 2.0, 3.0], (0.0, 4.0))
    twice = find_moment([0.0, 1.0, 1.0, 0.0], [1.0, 2.0, 2.0, 3.0], (0.0, 4.0))
    assert once == twice == Moment(1.5, 2.5, 2.0)


def test_equal_frames_make_the_whole_clip_the_moment() -> None:
    assert find_moment([0.5, 0.5], [1.0, 3.0], (0.0, 4.0), (0.0, 9.0)) == Moment(0.0, 4.0, 1.0)


def test_a_video_that_shows_the_query_throughout_is_one_moment() -> None:
    seconds, scores = [1.0, 3.0, 5.0, 7.0], [0.30, 0.34, 0.31, 0.29]
    assert find_moment(scores, seconds, (0.0, 8.0)) != Moment(0.0, 8.0, 3.0)
    assert find_moment(scores, seconds, (0.0, 8.0), background=0.05) == Moment(0.0, 8.0, 3.0)


def test_a_background_above_all_frames_is_not_used() -> None:
    seconds, scores = [1.0, 3.0, 5.0], [0.0, 1.0, 0.0]
    expected = find_moment(scores, seconds, (0.0, 6.0))
    assert find_moment(scores, seconds, (0.0, 6.0), background=2.0) == expected


def test_padding_and_no_frames_at_all() -> None:
    moment = find_moment([-math.inf, 1.0, 0.0], [2.0, 1.0, 3.0], (0.0, 4.0))
    assert moment == Moment(0.0, 2.0, 1.0)
    assert find_moment([], [], (2.0, 4.0)) == Moment(2.0, 4.0, 3.0)
    assert find_moment([-math.inf], [2.5], (2.0, 4.0)) == Moment(2.0, 4.0, 3.0)


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 30)), max_size=30),
    st.floats(0, 20),
    st.floats(0, 10),
)
def test_a_moment_is_inside_the_span_and_holds_its_best_frame(
    frames: list[tuple[float, float]], start: float, length: float
) -> None:
    clip, span = (start, start + length), (max(0.0, start - 16), start + length + 16)
    moment = find_moment([f[0] for f in frames], [f[1] for f in frames], clip, span)
    assert span[0] <= moment.start <= moment.best <= moment.end <= span[1]
    assert clip[0] <= moment.best <= clip[1]


def test_the_run_has_the_largest_sum() -> None:
    scores = [0.9, 0.0, 0.9, 1.0, 0.4, 0.2, 0.8, 0.1]
    seconds = [float(number) for number in range(8)]
    mean = sum(scores) / 8
    threshold = mean + THRESHOLD * (1.0 - mean)
    sums = {
        (first, last): sum(score - threshold for score in scores[first : last + 1])
        for first in range(4)
        for last in range(3, 8)
    }
    first, last = max(sums, key=lambda run: sums[run])
    moment = find_moment(scores, seconds, (0.0, 7.0))
    assert moment.start == pytest.approx(max(first - 0.5, 0.0))
    assert moment.end == pytest.approx(min(last + 0.5, 7.0))
