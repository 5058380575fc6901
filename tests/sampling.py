"""Part of many similar cases for the default tests; all of them run with the slow tests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """Cases to parametrize with; all but every ``number``-th are slow."""
    return [case if index % number == 0 else slow(case) for index, case in enumerate(cases)]


def first_of_each(kind: Callable[[Any], Hashable], cases: Iterable[Any]) -> list[Any]:
    """Cases to parametrize with; all but the first of each kind are slow."""
    seen: set[Hashable] = set()
    marked = []
    for case in cases:
        marked.append(slow(case) if kind(case) in seen else case)
        seen.add(kind(case))
    return marked


def slow(case: Any) -> Any:
    """The case, for the slow tests alone."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
