"""Options are declared in the dataclass that they fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from eaglenet.cli.options import GroupedCommand, expand_options

runner = CliRunner()


@dataclass(frozen=True)
class Inner:
    day: int | None = field(
        default=None, metadata={"parse": lambda text: len(text), "help": "Read text."}
    )
    tags: tuple[str, ...] = field(default=(), metadata={"option": "--tag", "help": "Tag."})


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    hidden: int = 7
    count: int = field(
        default=3, metadata={"option": "-c/--count", "group": "More", "min": 1, "help": "Count."}
    )
    fast: bool = field(default=False, metadata={"group": "More", "help": "Be fast."})
    subtitles: bool = field(default=True, metadata={"group": "More", "help": "Read subtitles."})


@dataclass(frozen=True)
class Needed:
    source: Unknown | None = field(default=None, metadata={"type": str, "help": "Use a source."})  # type: ignore[name-defined]


def invoke(*arguments: str) -> tuple[Any, str]:
    received: list[Any] = []

    def command(
        name: Annotated[str, typer.Argument()] = "",
        *,
        outer: Outer,
        needed: Annotated[dict[str, Any], Needed],
    ) -> None:
        received.extend((name, outer, needed))

    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(expand_options(command))
    result = runner.invoke(app, list(arguments))
    return received, result.output


def test_fields_keep_their_defaults_without_options() -> None:
    assert invoke()[0] == ["", Outer(), {}]


def test_options_fill_the_dataclasses() -> None:
    arguments = ["x", "-c", "5", "--fast", "--no-subtitles", "--day", "four", "--tag", "a"]
    received, _ = invoke(*arguments, "--tag", "b", "--tag", "", "--source", "s")
    inner = Inner(day=4, tags=("a", "b"))
    assert received == ["x", Outer(inner, 7, 5, fast=True, subtitles=False), {"source": "s"}]


def test_empty_text_is_not_parsed() -> None:
    assert invoke("--day", "")[0][1].inner == Inner()


def test_limits_are_checked() -> None:
    received, output = invoke("--count", "0")
    assert received == []
    assert "--count" in output


def test_groups_are_in_the_whole_help_only() -> None:
    brief, everything = invoke("--help")[1], invoke("--help-all")[1]
    assert "--day" in brief
    assert "--count" not in brief
    assert "--hidden" not in everything
    assert everything.index("\nOptions:") < everything.index("\nMore:") < everything.index("-c, --")
