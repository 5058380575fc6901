"""Files that people leave out: patterns of the command line, and ``.eaglenetignore`` in folders.

Both are read as git reads ``.gitignore``: a pattern with a slash counts from its own folder, ``!``
takes back, a deeper file overrules, and nothing in an excluded folder can be taken back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eaglenet import foreign
from eaglenet.errors import UsageError

IGNORE_FILE = ".eaglenetignore"


class Excluding:
    """What is left out below one folder; ``patterns`` count from that folder and come first."""

    def __init__(self, root: Path, patterns: Sequence[str] = ()) -> None:
        self.root = os.path.abspath(root)
        self.patterns = _read(patterns, "--exclude") if patterns else None
        self._specs: dict[str, Any] = {}

    def __call__(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether a file or folder is left out; its folder is known not to be."""
        path = os.path.abspath(path)
        if self.patterns is not None and self._says(self.patterns, self.root, path, is_folder):
            return True
        folder = os.path.dirname(path)
        while folder.startswith(self.root):
            spec = self._spec(folder)
            decided = None if spec is None else self._says(spec, folder, path, is_folder)
            if decided is not None:
                return decided
            if folder == self.root:
                break
            folder = os.path.dirname(folder)
        return False

    def covers(self, path: str) -> bool:
        """Whether a file below the root is left out, itself or with a folder it is in."""
        inside = os.path.relpath(path, self.root)
        if inside.startswith(".."):
            return False
        parts = inside.split(os.sep)
        folders = [os.path.join(self.root, *parts[:depth]) for depth in range(1, len(parts))]
        return any(self(folder, is_folder=True) for folder in folders) or self(path)

    def _says(self, spec: Any, base: str, path: str, is_folder: bool) -> bool | None:
        name = os.path.relpath(path, base).replace(os.sep, "/")
        decided: bool | None = spec.check_file(f"{name}/" if is_folder else name).include
        return decided

    def _spec(self, folder: str) -> Any:
        """The patterns of the file in a folder; None where there is none."""
        if folder not in self._specs:
            file = Path(folder, IGNORE_FILE)
            try:
                lines = foreign.read_text(file).splitlines()
            except FileNotFoundError:
                self._specs[folder] = None
            except (OSError, ValueError) as error:
                raise UsageError(f"{file}: cannot be read ({error}); fix or remove it") from error
            else:
                self._specs[folder] = _read(lines, str(file))
        return self._specs[folder]


def _read(lines: Sequence[str], where: str) -> Any:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise UsageError(
            "leaving out files needs pathspec; install it with: pip install 'eaglenet[search]'"
        ) from error
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"{where}: {error}; write patterns as in .gitignore") from error
