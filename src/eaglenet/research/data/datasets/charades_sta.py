"""Charades-STA: half a minute at home; each sentence describes a part of one video.

The moments themselves are measured by ``eaglenet evaluate STORE --moments FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eaglenet.research.data.annotation_files import VideoFinder, find_file, finder_for
from eaglenet.research.data.moment_files import read_moments
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    gather_records,
    make_split,
    training_ids,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("charades", "Charades", "charades_sta", "Charades-STA")
SPLITS = ("train", "val", "test")
HELD_OUT = 500
PARTIAL = RetrievalProtocol(
    "Charades-STA partially relevant video retrieval",
    "every sentence is ranked against all whole videos; it describes a part of its own",
)
VALIDATION = RetrievalProtocol(
    "Charades-STA validation held out of training",
    "videos taken out of the training file by a hash of their id; every sentence is a query",
)


def load(
    root: Path | str,
    split: str,
    *,
    hold_out: int = HELD_OUT,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of Charades-STA, in file order; there is no official validation split."""
    root = Path(root)
    check_split_name("charades-sta", split, SPLITS)
    name = "test" if split == "test" else "train"
    captions: dict[str, list[str]] = {}
    path = find_file(root, (f"charades_sta_{name}.txt",), FOLDERS)
    for entry in read_moments(path, "charades-sta"):
        texts = captions.setdefault(entry.video_id, [])
        if entry.text:
            texts.append(entry.text)
    ids = list(captions)
    if split != "test":
        ids = training_ids("charades-sta", split, ids, hold_out)
    find = (finder or finder_for(root, video_folders)).find
    protocol = VALIDATION if split == "val" else PARTIAL
    return make_split("charades-sta", split, protocol, *gather_records(ids, captions, find))


add_dataset(
    DatasetSpec(
        "charades-sta",
        "Charades-STA",
        load,
        options={"hold_out": "training videos kept for validation (500; 0 trains on all)"},
    )
)
