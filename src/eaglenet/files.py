"""Files and folders that are written whole: a reader sees the old one or the new one.

Each is written beside its place, brought to the disk, renamed, and the rename brought to the disk:
after a kill or a power cut at any moment there is no half of one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglenet import foreign


def partial_path(path: Path) -> Path:
    """Where ``path`` is written first; of another process, another one. The ending stays."""
    return path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path to write a file to, which takes the place of ``path`` at the end of the block.

    Where the block fails, ``path`` is left as it was.
    """
    partial = partial_path(path)
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``folder`` at the end of the block."""
    partial = partial_path(folder)
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():  # killed between the two renames below
        old.replace(folder)
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        if folder.exists():
            folder.replace(old)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_tensors(path: Path, weights: dict[str, Any]) -> None:
    """Write a safetensors file whole, readable to whom other new files are.

    The library gives its files to their owner alone: a service of another user could not load the
    model that an administrator saved.
    """
    import safetensors.torch

    with written_whole(path) as partial:
        partial.touch()
        usual = stat.S_IMODE(partial.stat().st_mode)
        safetensors.torch.save_file(weights, partial, metadata={"format": "pt"})
        partial.chmod(usual)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of these bytes whole."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file whole."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write JSON whole, with an end of line."""
    write_text(path, json.dumps(value, indent=indent) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises ``OSError`` or ``ValueError``; callers say what to do."""
    return foreign.read_json(path, foreign.MAX_ANNOTATIONS)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing(path: Path) -> None:
    """Have the system begin to write a file out, so that many are not waited for one by one."""
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Pages that are not on the disk yet are not dropped, but their writing begins (Linux).
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
