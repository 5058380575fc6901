"""Exclude patterns and ignore files: they mean what they mean to git, and cannot stop a run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.indexing import ignore
from eaglenet.indexing.files import CandidateFile, find_videos
from eaglenet.indexing.ignore import IGNORE_FILE, Exclusions, Pattern, PatternError

NAMES = ("a.mp4", "draft/b.mp4", "keep/c.mp4", "keep/draft/d.mp4", "keep/e.mov", "raw/f.mov")
BOMB = "*a" * 20 + "b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Empty files are enough: their suffixes are those of videos."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def candidates(root: Path, *exclude: str) -> list[CandidateFile]:
    return list(find_videos([root], skip_folder=root / "store", exclude=exclude))


def names(root: Path, *exclude: str) -> list[str]:
    """Names of the files that would be indexed."""
    files = candidates(root, *exclude)
    return [str(Path(file.path).relative_to(root)) for file in files if not file.problem]


@pytest.mark.parametrize(
    ("patterns", "remaining"),
    [
        ((), set(NAMES)),
        (("draft/",), {"a.mp4", "keep/c.mp4", "keep/e.mov", "raw/f.mov"}),
        (("/draft",), {*NAMES} - {"draft/b.mp4"}),
        (("*.mov", "!keep/e.mov"), {*NAMES} - {"raw/f.mov"}),
        (("keep/*", "raw"), {"a.mp4", "draft/b.mp4"}),
        (("keep/**",), {"a.mp4", "draft/b.mp4", "raw/f.mov"}),
        (("**/draft/*.mp4",), {*NAMES} - {"draft/b.mp4", "keep/draft/d.mp4"}),
        (("[a-b].mp4", r"\e.mov"), {*NAMES} - {"a.mp4", "draft/b.mp4", "keep/e.mov"}),
        (("[!a-d].m??", "  "), {*NAMES} - {"keep/e.mov", "raw/f.mov"}),
    ],
)
def test_patterns_mean_what_they_mean_to_git(
    folder: Path, patterns: tuple[str, ...], remaining: set[str]
) -> None:
    """On the command line, in a file, and for files that were indexed before."""
    assert set(names(folder, *patterns)) == remaining
    (folder / IGNORE_FILE).write_text("# a comment\n" + "\n".join(patterns))
    assert set(names(folder)) == remaining
    covers = Exclusions(folder).covers
    assert {name for name in NAMES if not covers(str(folder / name))} == remaining
    assert not covers("/elsewhere/draft/b.mp4")


def test_deeper_file_overrules_but_cannot_restore_files_of_an_excluded_folder(folder: Path) -> None:
    (folder / IGNORE_FILE).write_text("*.mp4\ndraft/\n")
    (folder / "keep" / IGNORE_FILE).write_text("!*.mp4\n*.mov\n")
    assert names(folder) == ["keep/c.mp4", "raw/f.mov"]


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
def test_random_patterns_agree_with_git(tmp_path: Path) -> None:
    """All files of a small tree; a pattern is a random sequence of tokens."""
    folders = [first / second for first in map(Path, ("a", "b", "ab")) for second in ("", "a", "c")]
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in ("aa", "ba", "cb"):
            (tmp_path / folder / name).touch()
    files = sorted(str(folder / name) for folder in folders for name in ("aa", "ba", "cb"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tokens = ("a", "b", "*", "?", "/", "/**/", "**/", "/**", "[ab]", "[!a]", "[^b]", "\\a", "!")
    generator = random.Random(0)
    num_matches = 0
    for _ in range(300):
        lines = ["".join(generator.choices(tokens, k=generator.randint(1, 5))) for _ in range(2)]
        if any("**" in name and name != "**" for line in lines for name in line.split("/")):
            continue  # Not defined in git's documentation.
        (tmp_path / ".gitignore").write_text("\n".join(lines))
        result = subprocess.run(
            ["git", "-C", str(tmp_path), "check-ignore", "--no-index", *files],
            capture_output=True,
            text=True,
        )
        (tmp_path / IGNORE_FILE).write_text("\n".join(lines))
        covers = Exclusions(tmp_path).covers
        skipped = [name for name in files if covers(str(tmp_path / name))]
        assert skipped == result.stdout.split(), lines
        num_matches += bool(skipped)
    assert num_matches > 50


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (BOMB, ["a" * 200]),
        ("*" * 500 + "b", ["a" * 255]),
        ("?*" * 200 + "b", ["a" * 255]),
        ("[a-z]*" * 100 + "1", ["a" * 255]),
        ("/".join(["**/a"] * 100) + "/b", ["a"] * 2000),
        ("**/*a" * 60 + "/b", ["aaaa"] * 800),
    ],
)
def test_hostile_patterns_take_linear_time(pattern: str, path: list[str]) -> None:
    start = time.perf_counter()
    compiled = Pattern.parse(pattern)
    assert compiled is not None
    assert not compiled.matches(path, is_folder=False)
    assert time.perf_counter() - start < 2


def write_bad_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00*.mp4")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def write_large(path: Path) -> None:
    path.write_bytes(b"x\n" * (5 * 2**19))


def write_many(path: Path) -> None:
    path.write_text("*.mov\n" * 400_000)


@pytest.mark.parametrize(
    "make", [write_bad_text, Path.mkdir, os.mkfifo, link_to_itself, write_large, write_many]
)
def test_unusable_ignore_file_is_reported_and_skipped(
    folder: Path, make: Callable[[Path], object]
) -> None:
    """A file that anyone may have put into a subfolder never stops the run."""
    path = folder / "keep" / IGNORE_FILE
    make(path)
    start = time.perf_counter()
    files = candidates(folder)
    assert time.perf_counter() - start < 5
    assert set(names(folder)) == set(NAMES)
    (problem,) = [file for file in files if file.problem]
    assert problem.path == str(path)
    assert problem.problem.startswith("not applied: ")


def test_bad_line_is_reported_and_the_others_apply(folder: Path) -> None:
    (folder / IGNORE_FILE).write_text(f"[z-a]\n*.mov\n{'x' * 5000}\nfoo[\n{BOMB}\n")
    assert not [name for name in names(folder) if name.endswith(".mov")]
    (problem,) = [file for file in candidates(folder) if file.problem]
    assert problem.path == str(folder / IGNORE_FILE)
    assert "line 1: '[z-a]': the range z-a is empty" in problem.problem
    assert "line 3: " in problem.problem
    assert "line 4: 'foo[': '[' is not closed" in problem.problem


@pytest.mark.parametrize("pattern", ["[z-a]", "x" * 5000, "foo[", "foo\\"])
def test_bad_pattern_of_the_command_line_is_an_error(folder: Path, pattern: str) -> None:
    with pytest.raises(PatternError):
        Pattern.parse(pattern)
    with pytest.raises(UsageError, match="exclude: "):
        names(folder, pattern)


def test_too_many_patterns_of_the_command_line_are_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match=f"at most {ignore.MAX_PATTERNS}"):
        names(folder, *["*.mov"] * (ignore.MAX_PATTERNS + 1))


def test_bomb_beside_a_file_with_a_long_name(tmp_path: Path) -> None:
    (tmp_path / IGNORE_FILE).write_text(BOMB)
    (tmp_path / f"{'a' * 200}.mp4").touch()
    start = time.perf_counter()
    assert len(names(tmp_path)) == 1
    assert time.perf_counter() - start < 2
