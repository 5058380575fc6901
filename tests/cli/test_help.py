"""Help that is read in a terminal of 80 columns, by someone who knows no Python."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from eaglenet.cli.main import SECTIONS, app, first_sentence, in_sections

runner = CliRunner()


def every_command() -> list[list[str]]:
    root = typer.main.get_command(app)
    found: list[list[str]] = [[]]
    for name, command in root.commands.items():
        found.append([name])
        found += [[name, inner] for inner in getattr(command, "commands", {})]
    return found


def shown(command: list[str]) -> str:
    result = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_help_fits_eighty_columns_and_names_no_type(command: list[str]) -> None:
    lines = shown(command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<(bool|int|str|float|list|path)", "\n".join(lines))
    texts = [line for line in lines if line.startswith(" ")]
    # A column of words of four letters is not read: most lines say something.
    assert sum(map(len, map(str.strip, texts))) / len(texts) > 30


def test_the_list_of_commands_is_whole_and_search_comes_first() -> None:
    text = shown([])
    assert "..." not in text.replace("[ARGS]...", "")
    assert text.index("  index ") < text.index("  search ") < text.index("  train ")
    named = {name for names in SECTIONS.values() for name in names}
    assert named == set(typer.main.get_command(app).commands)


def test_extras_are_named_whole() -> None:
    """Markup took what is in brackets away: `needs eaglenet.`"""
    text = shown(["index"])
    assert "eaglenet[ocr]" in text
    assert "eaglenet[speech]" in text


def test_a_command_of_another_package_is_listed_last() -> None:
    assert in_sections(["index", "theirs"]) == {"Search": ["index"], "Others": ["theirs"]}
    assert first_sentence("One thing.\n\nMore of it. And more.") == "One thing."
