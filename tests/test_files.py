"""Atomic writes of files and folders."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eaglenet.core.files import (
    atomic_folder,
    atomic_write,
    read_json,
    write_bytes,
    write_json,
    write_output,
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


def test_an_output_is_replaced_whole_and_keeps_its_link_and_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "a.html", tmp_path / "link.html"
    write_output(path, b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_output(link, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert link.is_symlink()

    def fail(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    for name in (path, tmp_path / "other.html"):
        with pytest.raises(OSError, match="No space"):
            write_output(name, b"newer")
    assert path.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EROFS, errno.EPERM])
def test_an_output_that_cannot_be_replaced_is_written_in_place(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is mounted itself cannot be replaced, nor one in a folder mounted read-only."""
    path = tmp_path / "a.html"
    path.write_bytes(b"old")

    def fail(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("eaglenet.core.files.replace", fail)
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(OSError, match=re.escape(os.strerror(code))):
        write_output(tmp_path / "other.html", b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_in_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "a.html"
    link.symlink_to("a.html")
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ELOOP))):
        write_output(link, b"new")
    assert link.is_symlink()


def test_a_read_only_output_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # Root may write to all files.
    with pytest.raises(PermissionError):
        write_output(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_an_output_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    write_output(path, b"new")
    status = path.stat()
    assert (path.read_bytes(), status.st_uid, status.st_gid) == (b"new", 1234, 2345)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs /dev/stdout")
def test_an_output_may_be_a_pipe_or_standard_output(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from eaglenet.core.files import write_output\n"
        "write_output(Path(sys.argv[1]), b'page'); print(' and more', flush=True)"
    )
    (tmp_path / "link").symlink_to("/dev/stdout")
    command = [sys.executable, "-c", code, str(tmp_path / "link")]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"page and more\n"
    (tmp_path / "link").unlink()
    for name in ("/dev/stdout", "/dev/fd/1"):
        command = [sys.executable, "-c", code, name]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"page and more\n"
        # Redirected to a file, it stays the same file.
        with (tmp_path / "out").open("wb") as file:
            subprocess.run(command, stdout=file, check=True)
        assert b"and more" in (tmp_path / "out").read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


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
