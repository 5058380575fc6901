"""VATEX: ten English captions a video, each of them a query of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eaglenet.core.errors import DatasetError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    find_file,
    finder_for,
    read_json,
    read_list,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    clean_captions,
    gather_records,
    make_split,
    report_empty_captions,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("vatex", "VATEX")
SPLITS = ("train", "val", "test")
MULTI_CAPTION = RetrievalProtocol(
    "VATEX", "every caption is ranked against all videos of the list that are at hand"
)


def load(
    root: Path | str,
    split: str,
    *,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of VATEX, in the order of its list file whatever is on disk."""
    root = Path(root)
    check_split_name("vatex", split, SPLITS)
    captions = read_captions(find_file(root, ("ref_captions.json",), FOLDERS))
    ids = read_list(find_file(root, (f"{split}_list.txt",), FOLDERS))
    find = (finder or finder_for(root, video_folders)).find
    return make_split("vatex", split, MULTI_CAPTION, *gather_records(ids, captions, find))


def read_captions(path: Path) -> dict[str, tuple[str, ...]]:
    """``ref_captions.json``: {video_id: [caption, ...]}."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected an object of video id -> captions")
    captions = {}
    num_empty = 0
    for video_id, texts in content.items():
        if not isinstance(texts, list):
            raise DatasetError(f"{path}: video {video_id!r} needs a list of captions")
        captions[video_id], empty = clean_captions(texts, f"{path}: video {video_id!r}")
        num_empty += empty
    report_empty_captions("vatex", num_empty, path)
    return captions


add_dataset(DatasetSpec("vatex", "VATEX", load))
