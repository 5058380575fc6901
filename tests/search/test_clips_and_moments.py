from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.errors import UsageError
from eaglenet.search.indexing.clips import check_splitting, fixed_windows, shot_windows
from eaglenet.search.moments import find_moment
from eaglenet.search.store.manifest import Splitting
from eaglenet.types import Moment

INF = float("-inf")


@settings(deadline=None, max_examples=40)
@given(
    duration=st.floats(0.1, 2000),
    clip=st.floats(1.0, 60),
    share=st.floats(0, 0.9),
)
def test_windows_cover_the_video_and_overlap_as_asked(
    duration: float, clip: float, share: float
) -> None:
    windows = fixed_windows(duration, clip, share * clip)
    assert windows[0][0] == 0
    assert windows[-1][1] == pytest.approx(duration)
    for (start, end), (next_start, next_end) in pairwise(windows):
        assert end - start == pytest.approx(clip)
        assert end - next_start == pytest.approx(share * clip, abs=1e-6)
        assert next_end > end


def test_a_short_video_is_one_clip() -> None:
    assert fixed_windows(4.2, 10, 2) == [(0.0, 4.2)]


def test_shots_begin_at_cuts_and_long_ones_are_cut_further() -> None:
    windows = shot_windows([3.0, 3.4, 25.0], 25.5, clip_seconds=10, overlap=2)
    assert windows == [(0.0, 3.0), (3.0, 13.0), (11.0, 21.0), (19.0, 25.5)]


@pytest.mark.parametrize(("clip", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, -1), (5, 9)])
def test_impossible_lengths_are_refused(clip: float, overlap: float) -> None:
    with pytest.raises(UsageError):
        check_splitting(Splitting(clip, overlap))


def test_the_moment_is_the_run_of_good_frames_around_the_best() -> None:
    scores = torch.tensor([0.0, 0.1, 0.9, 1.0, 0.2, 0.95])
    seconds = torch.tensor([11.0, 13, 15, 17, 19, 21])
    assert find_moment(scores, seconds, 10, 22) == Moment(14.0, 18.0, 17.0)


def test_padded_frames_never_make_a_moment() -> None:
    scores = torch.tensor([0.1, 0.9, INF, INF])
    seconds = torch.tensor([1.0, 3.0, 3.0, 3.0])
    assert find_moment(scores, seconds, 0, 4) == Moment(2.0, 4.0, 3.0)
    assert find_moment(torch.full((3,), INF), torch.zeros(3), 2, 6) == Moment(2.0, 6.0, 4.0)


def test_equal_frames_give_the_whole_clip() -> None:
    moment = find_moment(torch.full((3,), 0.4), torch.tensor([1.0, 2, 3]), 0, 4)
    assert (moment.start, moment.end) == (0, 4)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-5, 50)), min_size=1, max_size=9))
def test_a_moment_lies_in_its_clip_and_holds_its_best_frame(
    frames: list[tuple[float, float]],
) -> None:
    scores, seconds = (torch.tensor(column) for column in zip(*frames, strict=True))
    moment = find_moment(scores, seconds, 5.0, 30.0)
    assert 5 <= moment.start <= moment.best <= moment.end <= 30
