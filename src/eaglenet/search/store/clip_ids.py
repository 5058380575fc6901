"""Ids of clips: the beginning of their file's hash and their number in it, or a shorter one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

from eaglenet.core.errors import UsageError
from eaglenet.search.store.tables import ClipKey

ID_SIGNS, LEAST_SIGNS = 16, 4
"""Of a content's hash: in the id of a clip, and in the shortest beginning that is taken for one."""


class ClipIds:
    """The ids of all clips of a version, without a table of them.

    ``contents`` are the hashes of its files; ``row_in_file`` gives the row of a clip by the number
    of its file and its number there, None where there is no such clip.
    """

    def __init__(
        self, contents: Sequence[str], row_in_file: Callable[[int, int], int | None]
    ) -> None:
        self._contents = contents
        self._row_in_file = row_in_file

    @cached_property
    def _files_of_beginning(self) -> dict[str, list[int]]:
        """Files by that part of their hash that is in the ids of their clips."""
        found: dict[str, list[int]] = {}
        for number, content in enumerate(self._contents):
            found.setdefault(content[:ID_SIGNS], []).append(number)
        return found

    @cached_property
    def _length(self) -> int:
        """Signs of a content's hash that tell all contents apart."""
        ordered = sorted(content[:ID_SIGNS] for content in self._contents)
        needed = LEAST_SIGNS
        for one, other in pairwise(ordered):
            while needed < ID_SIGNS and one[:needed] == other[:needed]:
                needed += 1
        return needed

    def row(self, clip_id: str) -> int | None:
        """The row of the clip with this id."""
        match = re.fullmatch(r"(.+)-(0|[1-9][0-9]{0,8})", clip_id, re.ASCII)
        if match is None:
            return None
        found: int | None = None
        for file in self._files_of_beginning.get(match[1], ()):
            row = self._row_in_file(file, int(match[2]))
            found = found if row is None else row
        return found

    def short(self, key: ClipKey) -> str:
        """The beginning of a clip's id that is enough to tell it from others."""
        content, number = key
        return f"{content[: self._length]}-{number}"

    def full(self, text: str) -> str:
        """The id that this one, or the beginning of one, stands for; refuses what is not clear."""
        if self.row(text) is not None:
            return text
        beginning, _, number = text.partition("-")
        found = [
            clip_id
            for content in self._contents
            if len(beginning) >= LEAST_SIGNS and content[:ID_SIGNS].startswith(beginning)
            if self.row(clip_id := f"{content[:ID_SIGNS]}-{number}") is not None
        ]
        if len(found) > 1:
            raise UsageError(f"{text!r:.60} begins the ids of {len(found)} clips; give more of it")
        return found[0] if found else text
