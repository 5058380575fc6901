"""A film costs time in proportion to its length, not to its square; a damaged one, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_films import damage, index, make_film


def seconds_of(folder: Path, suffix: str, minutes: int, *, is_damaged: bool) -> float:
    """Seconds for a film; most clips of a damaged one are found all the same."""
    film = make_film(folder / f"{minutes}.{suffix}", minutes)
    seconds, clips, _ = index(damage(film, minutes) if is_damaged else film)
    assert clips > 60 * minutes / 8 / (2 if is_damaged else 1) - 1
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "flv", "avi", "in order.avi"])
def test_four_times_the_length_costs_about_four_times_the_time(
    suffix: str, is_damaged: bool, tmp_path: Path
) -> None:
    """A square would be sixteen times; eight is half-way between both laws."""
    short = seconds_of(tmp_path, suffix, 10, is_damaged=is_damaged)
    long = seconds_of(tmp_path, suffix, 40, is_damaged=is_damaged)
    print(f"{suffix}: 10 minutes {short:.1f} s, 40 minutes {long:.1f} s")
    assert long < 8 * short, (short, long)
