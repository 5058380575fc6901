"""ActivityNet Captions for paragraph retrieval: all sentences of a video are its one query."""

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

FOLDERS = ("activitynet", "ActivityNet", "captions")
SPLITS = ("train", "val", "test")
# 10,009 training videos; the official validation videos are what the field reports on.
HELD_OUT = 500
TRAIN = RetrievalProtocol("ActivityNet Captions train", "a paragraph with its video")
VALIDATION = RetrievalProtocol(
    "ActivityNet Captions validation held out of training",
    "videos taken out of train.json by a hash of their id; one paragraph per video",
)
VAL1 = RetrievalProtocol(
    "ActivityNet Captions val1 paragraph retrieval",
    "the sentences of a video of val_1.json joined by spaces are one query (4,917 videos)",
)


def load(
    root: Path | str,
    split: str,
    *,
    hold_out: int = HELD_OUT,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of ActivityNet Captions; ``test`` is val1, which the field reports on.

    A video is found as ``v_ID`` or as ``ID``.
    """
    root = Path(root)
    check_split_name("activitynet", split, SPLITS)
    name = "val_1.json" if split == "test" else "train.json"
    paragraphs: dict[str, list[str]] = {}
    for entry in read_moments(find_file(root, (name,), FOLDERS), "activitynet"):
        sentences = paragraphs.setdefault(entry.video_id, [])
        if entry.text:
            sentences.append(entry.text)
    captions = {video: [" ".join(texts)] for video, texts in paragraphs.items() if texts}
    videos = finder or finder_for(root, video_folders)

    def find(video_id: str) -> Path | None:
        return videos.find(video_id) or videos.find(video_id.removeprefix("v_"))

    ids = list(paragraphs)
    if split != "test":
        ids = training_ids("activitynet", split, ids, hold_out)
    protocol = {"train": TRAIN, "val": VALIDATION, "test": VAL1}[split]
    return make_split("activitynet", split, protocol, *gather_records(ids, captions, find))


add_dataset(
    DatasetSpec(
        "activitynet",
        "ActivityNet Captions",
        load,
        options={"hold_out": "training videos kept for validation (500; 0 trains on all)"},
        max_words=64,
    )
)
