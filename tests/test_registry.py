"""Name tables and their errors."""

from __future__ import annotations

import pytest

from eaglenet.errors import UnknownNameError
from eaglenet.registry import MOST_LISTED, Registry


def table(count: int) -> Registry[int]:
    entries: Registry[int] = Registry("shape")
    for index in range(count):
        entries.add(f"shape{index}", index)
    return entries


def test_an_unknown_name_gets_the_known_ones_and_the_closest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown shape 'shap1'; did you mean 'shape1'"):
        table(3)["shap1"]


def test_of_very_many_names_only_some_are_listed() -> None:
    with pytest.raises(UnknownNameError, match="and 5 more") as caught:
        table(MOST_LISTED + 5)["circle"]
    assert f"shape{MOST_LISTED}" not in str(caught.value)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        table(1).add("shape0", 7)
