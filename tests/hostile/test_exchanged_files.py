"""Files that become links between being found and being opened."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hostile_work import SPLITTING
from test_videos import small_video

from eaglenet.indexing.files import LEADS_OUT, find_videos
from eaglenet.indexing.inspection import Inspection, inspect_ahead


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An indexed folder with a video in a subfolder, and a secret one of the same size and time."""
    indexed, secret = tmp_path / "indexed", tmp_path / "secret"
    (indexed / "sub").mkdir(parents=True)
    secret.mkdir()
    small_video(secret / "film.mp4", 30)
    copy = indexed / "sub/film.mp4"
    copy.write_bytes((secret / "film.mp4").read_bytes()[::-1])
    for path in (copy, secret / "film.mp4"):
        os.utime(path, ns=(10**18, 10**18))
    return indexed, secret


def inspect_after(indexed: Path, exchange: object) -> Inspection:
    files = list(find_videos([indexed], lambda path: False, skip_folder=indexed / "store"))
    assert len(files) == 1
    assert callable(exchange)
    exchange()
    (inspection,) = inspect_ahead(files, SPLITTING, frozenset(), workers=1)
    return inspection


def test_a_file_that_becomes_a_link_is_not_read(folders: tuple[Path, Path]) -> None:
    indexed, secret = folders

    def exchange() -> None:
        (indexed / "sub/film.mp4").unlink()
        (indexed / "sub/film.mp4").symlink_to(secret / "film.mp4")

    inspection = inspect_after(indexed, exchange)
    assert inspection.problem == LEADS_OUT
    assert not inspection.content
    assert not inspection.windows


def test_a_folder_that_becomes_a_link_is_not_read(folders: tuple[Path, Path]) -> None:
    indexed, secret = folders

    def exchange() -> None:
        (indexed / "sub").rename(indexed / "aside")
        (indexed / "sub").symlink_to(secret)

    assert inspect_after(indexed, exchange).problem == LEADS_OUT


def test_links_that_change_all_the_time_leak_nothing(folders: tuple[Path, Path]) -> None:
    """A thread exchanges the folder and a link to the secret one while files are inspected."""
    indexed, secret = folders
    (indexed / "link").symlink_to(secret)
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            for first, second in (("sub", "aside"), ("link", "sub"), ("sub", "link")):
                (indexed / first).rename(indexed / second)
            (indexed / "aside").rename(indexed / "sub")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        windows = 0
        for _ in range(2):
            files = []
            for _ in range(30):
                files += find_videos([indexed], lambda path: False, skip_folder=indexed / "store")
            for inspection in inspect_ahead(files, SPLITTING, frozenset(), workers=1):
                windows += len(inspection.windows)
    finally:
        over.set()
        thread.join()
    # The file of the folder itself is not a video: only the secret one has clips.
    assert windows == 0
