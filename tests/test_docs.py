"""Every command that the documents name exists, with every option they give it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from eaglenet.cli.main import app
from eaglenet.recipes import RECIPES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"(?:^|`)(?:[A-Z_]+=\S+ )*(eaglenet [a-z][^`\n]*)", re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    for match in COMMAND.finditer(page.read_text()):
        line = match.group(1).split("  #")[0].rstrip(" \\")
        if "..." in line or "|" in line:
            line = line.split("...")[0].split("|")[0]
        try:
            yield shlex.split(line)[1:]
        except ValueError:  # a quotation that goes on in the next line
            continue


def find(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and what is left of them."""
    found: Any = get_command(app)
    rest = list(words)
    while hasattr(found, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in found.commands, f"no command {name!r} in {words}"
        found = found.commands[name]
    return found, rest


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        command, rest = find(words)
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        known |= {"--help", "-h"}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{page.name}: {' '.join(words)}: {word}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_recipes_that_are_trained_exist(page: Path) -> None:
    for words in commands(page):
        if words[:1] == ["train"] and len(words) > 1 and re.fullmatch(r"[a-z][\w/+-]*", words[1]):
            assert words[1] in RECIPES, f"{page.name}: {' '.join(words)}"


def test_the_documents_name_commands_at_all() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 50
