"""What help shows is what was written: nothing in brackets is taken for markup and lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from eaglenet.cli.main import app


def options(command: Any, name: str = "eaglenet") -> Iterator[tuple[str, str]]:
    """The help of every option and argument of every command."""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for inner, other in getattr(command, "commands", {}).items():
        yield from options(other, f"{name} {inner}")


@pytest.mark.parametrize(("where", "text"), options(get_command(app)), ids=lambda value: value[:40])
def test_no_help_is_lost_as_markup(where: str, text: str) -> None:
    assert not re.search(r"\[[a-z]", text), where
