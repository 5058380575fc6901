"""Files and folders to skip: ``--exclude`` patterns, and ``.eaglenetignore`` files in folders.

Patterns mean what they mean in ``.gitignore``. Ignore files are untrusted, so the number and the
length of patterns are bounded, and a pattern takes linear time: it is compared folder by folder,
each name with a regular expression of :mod:`fnmatch`, which never backtracks over a ``*``.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of

IGNORE_FILE = ".eaglenetignore"
MAX_FILE_BYTES = 256 * 1024
MAX_PATTERNS = 1_000
"""Patterns per ignore file."""
MAX_LENGTH = 1_024
"""Characters per pattern."""
_BRACKETS = re.compile(r"\[[!^]?\]?[^\]]*\]")


class PatternError(ValueError):
    """A pattern that cannot be used."""


@dataclass(frozen=True)
class Pattern:
    """One compiled line of an ignore file."""

    names: tuple[re.Pattern[str] | None, ...]
    """One expression per folder or file name; None stands for ``**``."""
    is_negated: bool
    is_folder_only: bool

    @classmethod
    def parse(cls, line: str) -> Pattern | None:
        """Compile a line; return None for a blank line or a comment."""
        text = line if line.endswith("\\ ") else line.rstrip()
        if not text or text.startswith("#"):
            return None
        if len(text) > MAX_LENGTH:
            raise PatternError(f"{text[:40]!r}...: longer than {MAX_LENGTH} characters")
        is_negated = text.startswith("!")
        path = text[is_negated:]
        is_folder_only = path.endswith("/")
        names = path.removesuffix("/").split("/")
        if names == [""]:
            return None
        if len(names) == 1:
            names = ["**", *names]  # A bare name matches at any depth.
        elif not names[0]:
            names = names[1:]
        expressions = tuple(None if name == "**" else _compile_name(name) for name in names)
        return cls(expressions, is_negated, is_folder_only)

    def matches(self, names: Sequence[str], *, is_folder: bool) -> bool:
        """Return whether a path, as a list of names below the folder of the pattern, matches."""
        if self.is_folder_only and not is_folder:
            return False
        # As with "*" in a name: only the last "**" is ever extended.
        index = position = 0
        restart: tuple[int, int] | None = None
        while position < len(names):
            if index < len(self.names) and (name := self.names[index]) is None:
                # At the end "**" stands for at least one name, elsewhere for none as well.
                index, restart = index + 1, (index + 1, position + 1)
                if index == len(self.names):
                    return True
            elif index < len(self.names) and name is not None and name.match(names[position]):
                index, position = index + 1, position + 1
            elif restart is not None:
                (index, position), restart = restart, (restart[0], restart[1] + 1)
            else:
                return False
        return index == len(self.names)


def _compile_name(name: str) -> re.Pattern[str]:
    """Compile one name of a pattern, with ``*``, ``?``, ``[a-z]``, ``[!a-z]`` and ``\\``."""
    glob, index = "", 0
    while index < len(name):
        brackets = _BRACKETS.match(name, index) if name[index] == "[" else None
        if name[index] == "\\":
            if index + 1 == len(name):
                raise PatternError(f"{name!r}: ends with a backslash")
            character = name[index + 1]
            glob += f"[{character}]" if character in "*?[" else character
            index += 2
        elif brackets is not None:
            glob += _checked_brackets(brackets.group())
            index = brackets.end()
        elif name[index] == "[":
            raise PatternError(f"{name!r}: '[' is not closed")
        else:
            glob += name[index]
            index += 1
    return re.compile(fnmatch.translate(glob))


def _checked_brackets(text: str) -> str:
    """Refuse an empty range, and write ``[^a]`` as ``[!a]``, the form that fnmatch knows."""
    for first, last in re.findall(r"(?s)(.)-(.)", text[1:-1].lstrip("!^")):
        if first > last:
            raise PatternError(f"{text!r}: the range {first}-{last} is empty")
    return f"[!{text[2:]}" if text.startswith("[^") else text


class PatternList:
    """Patterns of one ignore file or of the command line; the last match decides."""

    def __init__(self, lines: Sequence[str]) -> None:
        if len(lines) > MAX_PATTERNS:
            raise PatternError(f"{len(lines)} lines; at most {MAX_PATTERNS} are read")
        self.patterns: list[Pattern] = []
        self.problems: list[str] = []
        for number, line in enumerate(lines, 1):
            try:
                pattern = Pattern.parse(line)
            except PatternError as error:
                self.problems.append(f"line {number}: {error}")
                continue
            if pattern is not None:
                self.patterns.append(pattern)

    def decide(self, names: Sequence[str], *, is_folder: bool) -> bool | None:
        """Return True to skip a path, False if ``!`` keeps it, and None if no pattern matches."""
        for pattern in reversed(self.patterns):
            if pattern.matches(names, is_folder=is_folder):
                return not pattern.is_negated
        return None


class Exclusions:
    """Rules for the files to skip below one folder; those of the command line take precedence."""

    def __init__(self, root: str | Path, patterns: Sequence[str] = ()) -> None:
        self.root = os.path.abspath(root)
        self.problems: dict[str, str] = {}
        """Ignore files that were not, or not fully, applied, with the reason."""
        try:
            self._patterns = PatternList(patterns)
        except PatternError as error:
            raise UsageError(f"exclude: {error}") from error
        if self._patterns.problems:
            raise UsageError(f"exclude: {self._patterns.problems[0].partition(': ')[2]}")
        self._lists: dict[str, PatternList | None] = {}

    def skips(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether to skip a file or folder; its parent folder must not be skipped."""
        path = os.path.abspath(path)
        names = os.path.relpath(path, self.root).split(os.sep)
        if self._patterns.decide(names, is_folder=is_folder):
            return True
        folder = os.path.dirname(path)
        for depth in range(len(names) - 1, -1, -1):
            patterns = self._read(folder)
            decision = patterns and patterns.decide(names[depth:], is_folder=is_folder)
            if decision is not None:
                return bool(decision)
            folder = os.path.dirname(folder)
        return False

    def covers(self, path: str) -> bool:
        """Return whether a file below the root is skipped, directly or with one of its folders."""
        relative = os.path.relpath(path, self.root)
        if relative.startswith(".."):
            return False
        names = relative.split(os.sep)
        folders = [os.path.join(self.root, *names[:depth]) for depth in range(1, len(names))]
        return any(self.skips(folder, is_folder=True) for folder in folders) or self.skips(path)

    def _read(self, folder: str) -> PatternList | None:
        """Return the patterns of the ignore file in a folder; None if there is no such file."""
        if folder not in self._lists:
            self._lists[folder] = None
            file = Path(folder, IGNORE_FILE)
            try:
                text = untrusted.read_text(file, MAX_FILE_BYTES)
                patterns = self._lists[folder] = PatternList(text.split("\n"))
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                self.problems[str(file)] = f"not applied: {cause_of(error)}"
            else:
                if patterns.problems:
                    self.problems[str(file)] = f"lines skipped: {'; '.join(patterns.problems[:3])}"
        return self._lists[folder]
