"""A damaged film costs time in proportion to its length, not to its square."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_films import damage, index, make_film


def seconds_of_damaged(folder: Path, suffix: str, minutes: int) -> float:
    """Seconds for a damaged film; most of its clips are found all the same."""
    film = make_film(folder / f"{minutes}.{suffix}", minutes)
    seconds, clips, _ = index(damage(film, minutes))
    assert clips > 60 * minutes / 8 / 2
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "suffix",
    [
        "mp4",
        pytest.param(
            "mkv",
            marks=pytest.mark.xfail(
                reason="its index is lost with its end, and each seek reads from the start"
            ),
        ),
        "ts",
    ],
)
def test_four_times_the_length_costs_about_four_times_the_time(suffix: str, tmp_path: Path) -> None:
    """A square would be sixteen times; the rest is for what else the machine does."""
    short = seconds_of_damaged(tmp_path, suffix, 10)
    long = seconds_of_damaged(tmp_path, suffix, 40)
    print(f"{suffix}: 10 minutes {short:.1f} s, 40 minutes {long:.1f} s")
    assert long < 7 * short, (short, long)
