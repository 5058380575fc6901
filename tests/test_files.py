"""Atomic writes of files and folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from eaglenet.core.files import (
    atomic_folder,
    atomic_write,
    read_json,
    write_bytes,
    write_json,
    write_tensors,
)


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def fail() -> None:
        with atomic_write(path) as partial:
            partial.write_bytes(b"ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write_bytes(path, b"old")
    with atomic_write(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        # Video writers select the container by the extension.
        assert partial.suffix == ".mp4"
        assert partial.name.startswith(".")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("stem", ["a" * 251, "\u732b" * 83])
def test_files_with_the_longest_names_are_written(stem: str, tmp_path: Path) -> None:
    """Systems limit names to 255 bytes."""
    path = tmp_path / f"{stem}.jpg"
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_syncs_file_then_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before the rename, and the rename before the function returns."""
    happened: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        happened.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_json(tmp_path / "a.json", {"b": [1]})
    assert happened[0].startswith(".a.")
    assert happened[0].endswith(".partial.json")
    assert happened[1:] == ["rename", tmp_path.name]
    assert read_json(tmp_path / "a.json") == {"b": [1]}


def test_folder_replaces_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for content in ("first", "second"):
        with atomic_folder(folder) as fresh:
            (fresh / "inner").mkdir()
            (fresh / "inner" / content).write_text(content)
    assert [path.name for path in (folder / "inner").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_failed_folder_keeps_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with atomic_folder(folder) as fresh:
        (fresh / "old").touch()
    with pytest.raises(RuntimeError), atomic_folder(folder):
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_kill_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    """The old folder has another name then, and is restored at the next write."""
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old" / "weights").touch()
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "model"):
        raise RuntimeError
    assert (tmp_path / "model" / "weights").exists()


def test_weights_have_the_usual_permissions(tmp_path: Path) -> None:
    """The library makes files readable by their owner only; services may run as another user."""
    write_bytes(tmp_path / "usual", b"")
    write_tensors(tmp_path / "a.safetensors", {"a": torch.arange(3)})
    modes = [(tmp_path / name).stat().st_mode for name in ("usual", "a.safetensors")]
    assert modes[0] == modes[1]
