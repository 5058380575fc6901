"""Commands in messages can be pasted into a shell."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from eaglenet.cli.main import app
from eaglenet.core.errors import program_command, shell_quote, store_option
from eaglenet.core.platform import STORE_VARIABLE

SOURCE = Path(__file__).parents[1] / "src" / "eaglenet"

QUOTING = ("shell_quote", "shell_join", "store_option")
NUMBER = re.compile(r"[.\d]*[dfg]")
"""A format for numbers only."""
SAFE, UNSAFE = "\x01", "\x02"
"""Stand for a value in a message: quoted or a number, and any other."""

COMMANDS = "|".join(typer.main.get_group(app).commands)
COMMAND = re.compile(rf"\b(?:eaglenet (?:{COMMANDS})|hf download|pip install|ray start)\b")
MENTION = re.compile(r"""\b(?:eaglenet|hf|pip|ray)[ '\"]|--[a-z]""")
"""In every file with a command or option, however it is broken into lines; parsing takes longer."""
END = re.compile(r"`|\n|[;,.:] |[;.]$")
OPTION = re.compile(rf"(?<=[:;`,.(] )--[a-z-]+[ =][^ {SAFE}]*{UNSAFE}")
"""An option to pass, later in a message; at its start it repeats the user's input."""


def text_of(node: ast.expr) -> str:
    """Return the text of a message with a mark for every value."""
    match node:
        case ast.Constant(value=str(text)):
            # A template for str.format has its values in braces.
            return re.sub(r"\{\w+\}", UNSAFE, text)
        case ast.JoinedStr(values=values):
            return "".join(
                part.value
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else text_of(part)
                for part in values
            )
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.FormattedValue(value=value, format_spec=form, conversion=-1):
            if form is not None and NUMBER.fullmatch(ast.unparse(form).strip("f'\"")):
                return SAFE
            return text_of(value) if isinstance(value, ast.Call) else UNSAFE
        case ast.Call(func=ast.Name(id=name)) if name in QUOTING:
            return SAFE
    return UNSAFE


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string; parts of a longer one come with it and alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            yield node.lineno, text_of(node)


def unquoted(message: str) -> list[str]:
    """Return commands and options in a message whose values a shell may split."""
    found = [hit[0] for hit in OPTION.finditer(message)]
    for hit in COMMAND.finditer(message):
        end = END.search(message, hit.end())
        command = message[hit.start() : end.start() if end else len(message)]
        if UNSAFE in command:
            found.append(command)
    return [each.replace(SAFE, "QUOTED").replace(UNSAFE, "VALUE") for each in found]


def test_every_value_in_a_recommended_command_is_quoted() -> None:
    sources = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    faults = {
        f"{path.relative_to(SOURCE)}:{line}": found
        for path, source in sources.items()
        if MENTION.search(source)
        for line, message in messages(source)
        if (found := unquoted(message))
    }
    assert faults == {}


@pytest.mark.parametrize(
    "source",
    [
        'f"no store; create one with: eaglenet index PATH --store {folder}"',
        'f"{place} is damaged: eaglenet store repair --store {store.location!r}"',
        'f"is damaged; mend it: eaglenet store repair --store {str(place)}, and read it"',
        'f"get it: hf download {name}"',
        'f"to search with a video: --video {path}"',
        'f"the frames are {frames}: --set encoder.config.frames={frames}"',
        '"made; next: eaglenet evaluate " + output',
        '"  eaglenet search \\"{sentence}\\" --store store"',
        'f"train with `eaglenet train {shell_quote(name)} --output {output}`"',
    ],
)
def test_detects_unquoted_values(source: str) -> None:
    assert any(unquoted(message) for _, message in messages(source))


@pytest.mark.parametrize(
    "source",
    [
        'f"no store at {folder}; create one with: eaglenet index PATH{store_option(folder)}"',
        'f"{place} is damaged: eaglenet store repair --store {shell_quote(place)}, {count} clips"',
        'f"--root {root}: no such folder"',
        'f"see `eaglenet models`, {name} is not one of them"',
        'f"the model takes {most}: --set method_config.num_frames={frames:d}"',
        '"the frames: --set " + shell_quote(f"encoder.config.frames={frames}")',
        'f"eaglenet {version}"',
    ],
)
def test_accepts_quoted_values_and_other_text(source: str) -> None:
    assert not any(unquoted(message) for _, message in messages(source))


@pytest.mark.parametrize(
    "value", ["/My Videos/store", "it's", 'a "red" car', "$HOME", "a;b", "", "\u00e9t\u00e9", "~/x"]
)
def test_shell_reads_a_quoted_value_unchanged(value: str) -> None:
    assert shlex.split(f"eaglenet index {shell_quote(value)}") == ["eaglenet", "index", value]


def test_plain_values_stay_unquoted() -> None:
    for plain in ("/films/store-2", "s3://films/store", "openai/clip-vit-base-patch32"):
        assert shell_quote(plain) == plain
    assert shell_quote(Path("films") / "a b") == "'films/a b'"


def test_program_command_is_found_by_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make demo` no shell knows the command, until the environment is activated."""
    program = tmp_path / ".venv" / "bin" / "eaglenet"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program_command() == ".venv/bin/eaglenet"
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_command() == "eaglenet"


def test_default_store_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint that repeats the default would be noise; any other store has to be in it."""
    monkeypatch.setenv(STORE_VARIABLE, "my store")
    assert store_option("my store") == ""
    assert store_option("/other/store") == " --store /other/store"
    assert store_option("/an other/store") == " --store '/an other/store'"
