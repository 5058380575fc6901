"""DiDeMo: sentences joined to paragraphs, names with odd extensions, two windows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.research.data import DATASETS

load = DATASETS["didemo"].load


def test_all_sentences_of_a_video_are_one_query_in_list_order(tmp_path: Path, files: Any) -> None:
    split = load(files.didemo(tmp_path), "test")
    assert split.video_ids == ["y@N0_2.", "x@N0_1.mov"]
    assert split.texts == ["a cat", "A dog runs. it stops."]
    assert split.protocol.name == "DiDeMo paragraph retrieval (2 texts x 2 videos)"


def test_files_are_found_with_any_or_no_extension(tmp_path: Path, files: Any) -> None:
    root = files.didemo(tmp_path)
    files.touch(root / "videos", "x@N0_1.mp4", "y@N0_2.")
    paths = [video.path for video in load(root, "test").videos]
    assert [path.name for path in paths if path] == ["y@N0_2.", "x@N0_1.mp4"]


def test_the_whole_video_is_meant_unless_the_released_window_is_named(
    tmp_path: Path, files: Any
) -> None:
    root = files.didemo(tmp_path)
    assert load(root, "val").videos[0].window is None
    assert load(root, "val", window="first_31_seconds").videos[0].window == (0.0, 31.0)
    with pytest.raises(ConfigError, match="first_31_seconds"):
        load(root, "val", window="half")  # type: ignore[arg-type]


def test_derived_training_data_is_read_and_a_listed_video_without_caption_is_counted(
    tmp_path: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    split = load(files.didemo(tmp_path), "train")
    assert split.texts == ["one two"]
    assert split.left_out[0].video_id == "nocaption@N0_6.mov"
    assert "(1 text x 1 of 2 videos)" in split.protocol.name
    assert "left out 1 video" in caplog.text


@pytest.mark.parametrize(("content", "message"), [({}, "expected a list"), ([{}], "entry 0")])
def test_broken_annotations_name_the_place(
    tmp_path: Path, files: Any, content: dict[str, Any] | list[dict[str, Any]], message: str
) -> None:
    root = files.didemo(tmp_path)
    files.write_json(root / "test_data.json", content)
    with pytest.raises(DatasetError, match=message):
        load(root, "test")


def test_the_real_annotations_have_the_listed_sizes() -> None:
    folder = os.environ.get("EAGLENET_TEST_ANNOTATIONS")
    if not folder:
        pytest.skip("set EAGLENET_TEST_ANNOTATIONS to a folder with the real annotation files")
    sizes = {name: len(load(Path(folder), name)) for name in ("train", "val", "test")}
    assert sizes == {"train": 8391, "val": 1065, "test": 1004}


@pytest.mark.parametrize("value", [None, 5, ["x"], {"a": 1}])
def test_an_id_that_is_not_text_is_named(tmp_path: Path, files: Any, value: Any) -> None:
    path = files.didemo(tmp_path) / "val_data.json"
    content = json.loads(path.read_text())
    content[0]["video"] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DatasetError, match=r"the video is \w+, expected text"):
        load(tmp_path, "val")
