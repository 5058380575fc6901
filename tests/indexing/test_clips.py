"""How long videos are cut into clips."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.decoding import check_splitting, fixed_windows, shot_windows


@settings(deadline=None, max_examples=40)
@given(
    duration=st.floats(0.1, 2000),
    clip=st.floats(1.0, 60),
    share=st.floats(0, 0.9),
)
def test_windows_cover_the_video_and_overlap(duration: float, clip: float, share: float) -> None:
    windows = fixed_windows(duration, clip, share * clip)
    assert windows[0][0] == 0
    assert windows[-1][1] == pytest.approx(duration)
    for (start, end), (next_start, next_end) in pairwise(windows):
        assert end - start == pytest.approx(clip)
        assert end - next_start == pytest.approx(share * clip, abs=1e-6)
        assert next_end > end


def test_short_video_is_one_clip() -> None:
    assert fixed_windows(4.2, 10, 2) == [(0.0, 4.2)]


def test_shots_start_at_cuts_and_long_ones_are_split() -> None:
    windows = shot_windows([3.0, 3.4, 25.0], 25.5, clip_seconds=10, overlap=2)
    assert windows == [(0.0, 3.0), (3.0, 13.0), (11.0, 21.0), (19.0, 25.5)]


@pytest.mark.parametrize(("clip", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, -1), (5, 9)])
def test_refuses_impossible_lengths(clip: float, overlap: float) -> None:
    with pytest.raises(UsageError):
        check_splitting(Splitting(clip, overlap))
