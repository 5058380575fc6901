"""Help that is read in a terminal of 80 columns, by someone who knows no Python."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from eaglenet.cli.main import COMMANDS, app, first_sentence, group_commands

runner = CliRunner()


def every_command() -> list[list[str]]:
    root = typer.main.get_command(app)
    names: list[list[str]] = [[]]
    for name, command in root.commands.items():
        names.append([name])
        names += [[name, inner] for inner in getattr(command, "commands", {})]
    return names


def help_of(command: list[str], option: str = "--help") -> str:
    result = runner.invoke(app, [*command, option], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_help_fits_eighty_columns_and_names_no_type(command: list[str]) -> None:
    lines = help_of(command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search(r"<(bool|int|str|float|list|path)", "\n".join(lines))
    assert not re.search(r"[{}]|\[[a-z]+\]", lines[0])
    texts = [line for line in lines if line.startswith(" ")]
    # A narrow column of short words is hard to read.
    assert sum(map(len, map(str.strip, texts))) / len(texts) > 30


def test_lists_every_command_by_section() -> None:
    text = help_of([])
    assert "..." not in text.replace("[ARGS]...", "")
    assert text.index("  index ") < text.index("  search ") < text.index("  train ")
    names = {name for names in COMMANDS.values() for name in names}
    assert names == set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_help_shows_at_most_a_dozen_options(command: list[str]) -> None:
    assert len(re.findall(r"^  -", help_of(command), re.MULTILINE)) <= 12


def test_options_of_a_subcommand_are_in_groups_too() -> None:
    assert "--sampling" not in help_of(["data", "cache"])
    assert "\nFrames:\n" in help_of(["data", "cache"], "--help-all")


def test_watch_shows_the_actions_of_alerts() -> None:
    assert all(name in help_of(["watch"]) for name in ("--alert", "--command", "--webhook"))


def test_search_shows_all_options_in_groups() -> None:
    text = help_of(["search"])
    assert "--shortlist" not in text
    everything = help_of(["search"], "--help-all")
    for title in ("Queries", "Filters", "Ranking", "Output", "Model"):
        assert f"\n{title}:\n" in everything
    assert "--shortlist NUMBER" in everything
    assert everything.count("\n  -") > 25


def test_names_extras_whole() -> None:
    """Markup would remove what is in brackets."""
    text = help_of(["index"]) + runner.invoke(app, ["index", "--help-all"]).stdout
    assert "eaglenet[ocr]" in text
    assert "eaglenet[speech]" in text


def test_lists_commands_of_other_packages_last() -> None:
    assert group_commands(["index", "theirs"]) == {"Search": ["index"], "Others": ["theirs"]}
    assert first_sentence("One thing.\n\nMore of it. And more.") == "One thing."
