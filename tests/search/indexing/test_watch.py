"""Folders that are watched: what comes is indexed, what goes is forgotten, a mount is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eaglenet.indexing import watch
from eaglenet.indexing.report import IndexReport
from eaglenet.indexing.run import IndexOptions


class Script:
    """Changes made to a folder, one at each wait; watching ends after the last."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> bool:
        if not self.steps:
            return False
        step = self.steps.pop(0)
        if callable(step):
            step()
        return True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[IndexOptions]:
    """The options of each index run; nothing is encoded."""
    seen: list[IndexOptions] = []

    def index(*given: object, options: IndexOptions, **rest: object) -> IndexReport:
        seen.append(options)
        return IndexReport(0, 0, 0, 0, 0, 0, 0.0, 0.0, (), ())

    monkeypatch.setattr(watch, "index_videos", index)
    return seen


def watched(folder: Path, *steps: object) -> int:
    """How many index runs the steps cause."""
    reports = watch.watch([folder], folder / "store", "model", method=object(), wait=Script(*steps))
    return len(list(reports))


def test_changes_are_indexed_once_they_have_come_to_rest(
    tmp_path: Path, runs: list[IndexOptions]
) -> None:
    """A file that still grows waits; one that is deleted is forgotten; nothing new, no run."""
    film = tmp_path / "a.mp4"
    film.write_bytes(b"1")
    grow = [lambda: film.write_bytes(b"12"), lambda: film.write_bytes(b"123")]
    other = tmp_path / "b.mp4"
    steps = [None, *grow, None, None, other.touch, None, other.unlink, None, None]
    assert watched(tmp_path, *steps) == 4
    # The first run may be on a folder that is half there; later ones know what went.
    assert [options.drop_missing for options in runs] == [False, True, True, True]


def test_nothing_is_forgotten_when_a_mount_goes_away(
    tmp_path: Path, runs: list[IndexOptions]
) -> None:
    """The folder gone, or empty at once, is not a hundred deleted films."""
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "a.mp4").touch()

    def back() -> None:
        folder.mkdir(exist_ok=True)
        (folder / "a.mp4").touch()

    steps = [lambda: shutil.rmtree(folder), None, None, folder.mkdir, None, None, None]
    assert watched(folder, *steps) == 1
    back()
    assert watched(folder, (folder / "a.mp4").unlink, None, None, back, None, None) == 2


def test_network_mounts_are_known_by_their_kind() -> None:
    """The deepest mount counts, spaces in names and all."""
    mounts = "/dev/sda / ext4 rw 0 0\nnas:/v /mnt/my\\040films nfs4 rw 0 0\nx /mnt/local xfs rw 0 0"
    assert watch.is_network(Path("/mnt/my films/2026"), mounts)
    assert not watch.is_network(Path("/mnt/local/a"), mounts)
    assert not watch.is_network(Path("/mnt/my filmstrip"), mounts)
