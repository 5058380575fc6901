"""Settings are read with the types of fields and arguments; errors name invalid ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from eaglenet.core.errors import ConfigError
from eaglenet.core.settings import (
    check_choices,
    from_plain,
    read_assignments,
    read_options,
    to_plain,
)


@dataclass(frozen=True)
class Inner:
    """Part of :class:`Outer`."""

    mean: tuple[float, float, float] = (0.1, 0.2, 0.3)
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    """Settings with every kind of field that configurations have."""

    width: int
    rate: float = 0.5
    kind: Literal["wide", "deep"] | None = "wide"
    inner: Inner = Inner()


def test_settings_survive_json() -> None:
    settings = Outer(3, 1.0, None, Inner(names=("a", "b")))
    assert from_plain(Outer, to_plain(settings)) == settings


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"width": 3, "widht": 4}, "did you mean 'width'"),
        ({"width": 3.5}, "width: expected a whole number, got 3.5"),
        ({"width": True}, "width: expected a whole number, got True"),
        ({"width": 3, "inner": {"mean": [1, 2]}}, "inner.mean: expected a list of numbers"),
        ({"width": 3, "inner": 7}, "inner: expected Inner, got 7"),
        ({"width": 3, "kind": "flat"}, "kind: expected 'wide' or 'deep' or none, got 'flat'"),
        ({}, "width"),
        ([], "expected a table of settings"),
    ],
)
def test_reports_value_that_does_not_fit(plain: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_plain(Outer, plain)


def load(
    root: str, *, fractions: Sequence[float] = (1.0,), part: int = 0, label: str | None = None
) -> None:
    """Function whose arguments are options."""


def test_reads_options_as_argument_types() -> None:
    given = {"fractions": "0.8,0.2", "part": "3", "label": "7k"}
    known = ("fractions", "part", "label")
    read = read_options(load, given, "data", known)
    assert read == {"fractions": (0.8, 0.2), "part": 3, "label": "7k"}


def test_refuses_unknown_option() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'data.root' \(known: part\)"):
        read_options(load, {"root": "x"}, "data", ["part"])


def test_assignment_error_shows_an_example() -> None:
    assert read_assignments(["a=1", "b=x=y", "c="], "a=1") == {"a": 1, "b": "x=y", "c": ""}
    with pytest.raises(ConfigError, match="write it as name=value, for example a=1"):
        read_assignments(["a"], "a=1")


def test_refuses_value_outside_the_choices() -> None:
    check_choices(Outer(3, kind=None))
    with pytest.raises(ConfigError, match="kind is 'flat'; expected 'wide' or 'deep' or none"):
        check_choices(Outer(3, kind="flat"))  # type: ignore[arg-type]
