"""A folder of small videos, good and broken, for each test its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from small_videos import colour_video


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of plain colours; not to be written to."""
    folder = tmp_path_factory.mktemp("originals")
    colour_video(folder / "first.mp4", ["red", "green"])
    colour_video(folder / "second.mkv", ["blue"])
    colour_video(folder / "long.mp4", ["green"] * 4 + ["red"])
    (folder / "broken.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(50))
    (folder / "notes.txt").write_text("not a video")
    return folder


@pytest.fixture
def videos(originals: Path, tmp_path: Path) -> Path:
    """Copies of the videos that a test may change."""
    shutil.copytree(originals, tmp_path / "videos")
    return tmp_path / "videos"
