"""QVHighlights: pieces of 150 s; each query describes a part of one.

The moments themselves are measured by ``eaglenet evaluate STORE --moments FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eaglenet.research.data.annotation_files import (
    VideoFinder,
    captions_of_entries,
    find_file,
    finder_for,
    read_json_lines,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    gather_records,
    make_split,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("qvhighlights", "QVHighlights", "moment_detr/data")
SPLITS = ("train", "val", "test")
PARTIAL = RetrievalProtocol(
    "QVHighlights partially relevant video retrieval",
    "every query is ranked against all whole videos; it describes a part of its own",
)


def load(
    root: Path | str,
    split: str,
    *,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of QVHighlights from ``highlight_SPLIT_release.jsonl``, in file order."""
    root = Path(root)
    check_split_name("qvhighlights", split, SPLITS)
    path = find_file(root, (f"highlight_{split}_release.jsonl",), FOLDERS)
    captions = captions_of_entries(
        "qvhighlights", path, read_json_lines(path), video="vid", caption="query", title="line"
    )
    find = (finder or finder_for(root, video_folders)).find
    return make_split("qvhighlights", split, PARTIAL, *gather_records(captions, captions, find))


add_dataset(DatasetSpec("qvhighlights", "QVHighlights", load))
