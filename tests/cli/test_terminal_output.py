"""Nothing that others wrote can control a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglenet.cli import results
from eaglenet.cli.terminal import print_json, print_line
from eaglenet.core.text import escape_line, escape_lines
from eaglenet.search.hit import Hit, Moment, TranscriptMatch
from eaglenet.search.hits import SearchResult
from eaglenet.search.query import Query

C0, C1 = "\x1b[31m", "\x9b31m"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
UNSAFE = f"{C0}{C1}\x85\x90\x9d\x00\x7f{BIDI}\u2028\u2029\ufeff\U000e0001"


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_escapes_control_characters_and_direction_marks() -> None:
    assert is_safe(escape_line(UNSAFE))
    assert escape_line("\x9b31m") == "\\x9b31m"
    assert escape_line("a\u202eb") == "a\\u202eb"
    assert escape_line("a\nb") == "a\\nb"
    assert escape_lines("a\nb\x85") == "a\nb\\x85"
    assert escape_line("\u05e9\u05dc\u05d5\u05dd \u732b \U0001f600") == (
        "\u05e9\u05dc\u05d5\u05dd \u732b \U0001f600"
    )


def test_keeps_spaces_and_joiners_of_names() -> None:
    # Screen recordings of macOS, Japanese, Persian, and an emoji of several characters.
    for name in ("9.41.00\u202fAM.mov", "会議\u30001.mp4", "\u06cc\u200c\u06cc", "👨\u200d👩.mp4"):
        assert escape_line(name) == name
    assert escape_line("a\u200db\u200c") == "a\\u200db\\u200c"
    assert escape_line("\u200d") == "\\u200d"


def test_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"a{UNSAFE}\n")
    print_line("b\x9b", is_error=True)
    printed = capsys.readouterr()
    assert is_safe(printed.out)
    assert printed.out.count("\n") == 1
    assert printed.err == "b\\x9b\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_json_is_escaped_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    value = {"path": f"/videos/\u732b{UNSAFE}.mp4", "tags": ["\u202e"]}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert "\u732b" in text
    assert is_safe(text) == is_terminal


def with_streams(
    code: str, redirections: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program after :func:`open_standard_streams`, with redirections of the shell."""
    program = f"from eaglenet.cli.terminal import *; open_standard_streams(); {code}"
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, program],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )


def test_json_has_only_characters_that_the_output_can_encode() -> None:
    value = {"path": "/videos/\udce9\u732b.mp4"}
    for encoding in ("utf-8:strict", "utf-8:surrogateescape", "ascii", "cp1252"):
        done = with_streams(f"print_json({value!a})", "", PYTHONIOENCODING=encoding)
        assert json.loads(done.stdout) == value, done.stderr


def test_lines_escape_what_the_output_cannot_encode() -> None:
    done = with_streams("print_line('\u732b.mp4')", "", PYTHONIOENCODING="cp1252")
    assert done.stdout == "\\u732b.mp4\n", done.stderr


@pytest.mark.skipif(os.name == "nt", reason="closes streams with a POSIX shell")
def test_closed_streams_are_opened_on_the_null_device(tmp_path: Path) -> None:
    code = f"file = open({str(tmp_path / 'file')!r}, 'w'); print(file.fileno()); "
    code += "print_line('an error', is_error=True); sys.stdin.isatty()"
    for redirections in ("2>&-", "2>&- <&-"):
        done = with_streams(code, redirections)
        assert done.returncode == 0
        assert int(done.stdout) > 2  # Some shells keep 3 for themselves.
    closed = with_streams("print_line('a line'); print_json(1)", ">&- <&-")
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize(("term", "has_links"), [("xterm", True), ("dumb", False)])
def test_names_are_links_in_terminals_that_know_escape_sequences(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    term: str,
    has_links: bool,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    hit = Hit(1, "0123456789abcdef-0", "/videos/a.mp4", 0.5, 0.5, Moment(1.0, 2.0, 1.5), 9.0)
    results.print_result(SearchResult(Query("dog"), [hit]), {}, "")
    assert ("\x1b" in capsys.readouterr().out) == has_links


def test_results_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    line = TranscriptMatch(f"said{UNSAFE}", 0.0, 1.0, "speech", highlights=((0, 4),))
    moment = Moment(1.0, 2.0, 1.5)
    path = f"/videos/a{UNSAFE.replace(chr(0), '')}.mp4"
    hit = Hit(1, "0123456789abcdef-0", path, 0.5, 0.5, moment, 9.0, transcript=(line,))
    results.print_result(SearchResult(Query(f"dog {C1}"), [hit]), {}, "")
    results.print_result(SearchResult(Query("dog"), []), {}, f"no file like {UNSAFE}")
    assert is_safe(capsys.readouterr().out)


def test_ctrl_c_while_modules_are_imported_prints_one_line() -> None:
    code = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["eaglenet", "--version"]
from eaglenet.cli import run
run()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")
