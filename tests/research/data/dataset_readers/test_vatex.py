"""VATEX: the order of the list, never of a set or of what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import DatasetError
from eaglenet.research.data import DATASETS

load = DATASETS["vatex"].load


def test_videos_keep_the_order_of_the_list_whatever_is_on_disk(tmp_path: Path, files: Any) -> None:
    root = files.vatex(tmp_path)
    files.touch(root / "videos", "v1.mp4")
    split = load(root, "test")
    assert split.video_ids == ["v2", "v1"]
    assert split.select_present().video_ids == ["v1"]
    assert split.select_present().protocol.name == "VATEX (4 texts x 1 of 2 videos)"


@pytest.mark.parametrize(("content", "message"), [([], "an object"), ({"v1": "x"}, "'v1' needs")])
def test_broken_captions_are_a_clear_error(
    tmp_path: Path, files: Any, content: dict[str, str] | list[Any], message: str
) -> None:
    root = files.vatex(tmp_path)
    files.write_json(root / "ref_captions.json", content)
    with pytest.raises(DatasetError, match=message):
        load(root, "test")


def test_missing_captions_say_which_file_is_wanted(tmp_path: Path, files: Any) -> None:
    root = files.vatex(tmp_path)
    (root / "ref_captions.json").unlink()
    with pytest.raises(DatasetError, match=r"ref_captions.json not found; looked in"):
        load(root, "test")
