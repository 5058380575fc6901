"""A disk that loses what was not synced: rebuilt from a record of all calls that changed files."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HEAD = struct.Struct("<5q")
SECTOR = 512

Survivors = Literal["synced", "names", "some"]
"""What a cut leaves: what was synced; besides, all names, with unsynced content lost; or besides,
any part of the unsynced writes, in any order and torn at sectors."""


@dataclass(frozen=True)
class Call:
    """One call: write, truncate, sync, rename, unlink, mkdir or create, by its first letter."""

    kind: str
    path: str
    other: str
    offset: int
    content: bytes


def read_calls(log: Path) -> list[Call]:
    data, calls, position = log.read_bytes(), [], 0
    while position < len(data):
        kind, path_size, other_size, offset, size = HEAD.unpack_from(data, position)
        position += HEAD.size
        parts = []
        for length in (path_size, other_size, size):
            parts.append(data[position : position + length])
            position += length
        names = [os.fsdecode(part) for part in parts[:2]]
        calls.append(Call(chr(kind), names[0], names[1], offset, parts[2]))
    return calls


@dataclass
class _Node:
    """A file or folder: as it was when last synced, and what was done since."""

    is_folder: bool
    synced: bytes = b""
    pending: list[Call] = field(default_factory=list)
    names: dict[str, _Node] = field(default_factory=dict)
    synced_names: dict[str, _Node] = field(default_factory=dict)


class LostDisk:
    """The folder ``root`` after the first ``count`` calls."""

    def __init__(self, root: Path, calls: Sequence[Call], count: int) -> None:
        self.base = str(root)
        self.root = _Node(is_folder=True)
        for call in calls[:count]:
            self._apply(call)

    def _parent(self, path: str) -> tuple[_Node, str]:
        node = self.root
        *folders, name = os.path.relpath(path, self.base).split(os.sep)
        for folder in folders:
            node = node.names.setdefault(folder, _Node(is_folder=True))
        return node, name

    def _node(self, path: str) -> _Node | None:
        if os.path.relpath(path, self.base) == ".":
            return self.root
        parent, name = self._parent(path)
        return parent.names.get(name)

    def _apply(self, call: Call) -> None:
        if call.kind in "cd":
            parent, name = self._parent(call.path)
            parent.names.setdefault(name, _Node(is_folder=call.kind == "d"))
        elif call.kind == "u":
            parent, name = self._parent(call.path)
            parent.names.pop(name, None)
        elif call.kind == "r":
            parent, name = self._parent(call.path)
            target, new = self._parent(call.other)
            target.names[new] = parent.names.pop(name)
        else:
            node = self._node(call.path)
            if node is None:
                return  # Removed, and still open.
            if call.kind != "s":
                node.pending.append(call)
            elif node.is_folder:
                node.synced_names = dict(node.names)
            else:
                node.synced, node.pending = _apply_writes(node.synced, node.pending), []

    def after_cut(self, target: Path, survivors: Survivors, seed: int = 0) -> Path:
        """Write what the disk holds when the power is back."""
        self._restore(self.root, target, survivors, random.Random(seed))
        return target

    def _restore(
        self, node: _Node, target: Path, survivors: Survivors, chance: random.Random
    ) -> None:
        target.mkdir(mode=0o700, parents=True)
        names = dict(node.synced_names)
        if survivors == "names":
            names = {**names, **node.names}
        for name, child in names.items():
            if child.is_folder:
                self._restore(child, target / name, survivors, chance)
                continue
            content = child.synced
            if survivors == "some":
                content = _apply_writes(content, _some(child.pending, chance))
            (target / name).write_bytes(content)


def _some(calls: Sequence[Call], chance: random.Random) -> list[Call]:
    """Some sectors of some writes."""
    remaining_calls = []
    for call in calls:
        if chance.random() < 0.5:
            continue
        size = len(call.content)
        if size > SECTOR and chance.random() < 0.3:
            size = chance.randrange(SECTOR, size, SECTOR)
        remaining_calls.append(Call(call.kind, call.path, "", call.offset, call.content[:size]))
    return remaining_calls


def _apply_writes(content: bytes, calls: Sequence[Call]) -> bytes:
    data = bytearray(content)
    for call in calls:
        end = call.offset + len(call.content)
        if call.kind == "t":
            data = data[:end] + bytes(max(0, end - len(data)))
        else:
            data += bytes(max(0, end - len(data)))
            data[call.offset : end] = call.content
    return bytes(data)
