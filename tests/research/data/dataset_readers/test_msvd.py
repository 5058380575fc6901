"""MSVD: many captions a video, from a pickle that must not run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import DatasetError
from eaglenet.research.data import DATASETS

load = DATASETS["msvd"].load


def test_every_caption_is_a_query_grouped_by_video_in_list_order(
    tmp_path: Path, files: Any
) -> None:
    split = load(files.msvd(tmp_path), "test")
    assert split.video_ids == ["c_5_6", "-a_1_2"]
    assert split.texts == ["rain", "a cat sits", "one cat"]
    assert split.video_of_text.tolist() == [0, 1, 1]
    assert split.protocol.name == "MSVD multi-caption (3 texts x 2 videos)"


class Harmful:
    """Unpickling this would call ``os.getcwd``."""

    def __reduce__(self) -> Any:
        return os.getcwd, ()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_names_a_function_is_refused_by_name(
    tmp_path: Path, files: Any, protocol: int
) -> None:
    root = files.msvd(tmp_path)
    content = pickle.dumps({"a": Harmful()}, protocol=protocol)
    (root / "raw-captions.pkl").write_bytes(content)
    with pytest.raises(DatasetError, match=r"raw-captions.pkl: the pickle asks for .*getcwd"):
        load(root, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable pickle"),
        (b"\x80\x02}q\x00(X", "not a readable pickle"),
        (pickle.dumps([1]), "expected an object"),
        (pickle.dumps({"a": "text"}), "'a' needs a text id with a list"),
        (pickle.dumps({"a": [[1, 2]]}), "a caption is list, expected text"),
    ],
)
def test_a_broken_pickle_is_a_clear_error(
    tmp_path: Path, files: Any, content: bytes, message: str
) -> None:
    root = files.msvd(tmp_path)
    (root / "raw-captions.pkl").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load(root, "test")


def test_empty_captions_are_counted(
    tmp_path: Path, files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = files.msvd(tmp_path)
    content = {"c_5_6": [[], ["rain"]], "-a_1_2": ["a whole sentence"]}
    (root / "raw-captions.pkl").write_bytes(pickle.dumps(content))
    assert load(root, "test").texts == ["rain", "a whole sentence"]
    assert "skipped 1 empty caption of" in caplog.text


def test_the_real_annotations_have_the_published_sizes() -> None:
    folder = os.environ.get("EAGLENET_TEST_ANNOTATIONS")
    if not folder:
        pytest.skip("set EAGLENET_TEST_ANNOTATIONS to a folder with the real annotation files")
    sizes = {name: len(load(Path(folder), name)) for name in ("train", "val", "test")}
    assert sizes == {"train": 1200, "val": 100, "test": 670}
