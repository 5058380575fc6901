"""YouCook2: the steps of a recipe, each a clip of a cooking video with one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eaglenet.core.errors import DatasetError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    find_file,
    finder_for,
    read_json,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    LeftOut,
    RetrievalProtocol,
    Split,
    VideoRecord,
    check_split_name,
    clean_captions,
    make_split,
    training_ids,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("youcook2", "YouCook2", "YouCookII", "YouCookII/annotations")
FILES = ("youcookii_annotations_trainval.json", "youcookii_annotations.json")
SPLITS = ("train", "val", "test")
# 1,333 training videos; the sentences of the official test videos are not published.
HELD_OUT = 100
TRAIN = RetrievalProtocol("YouCook2 training clips", "the sentence of a step with its clip")
VALIDATION = RetrievalProtocol(
    "YouCook2 clips held out of training",
    "all steps of videos taken out of the training videos by a hash of their id",
)
CLIPS = RetrievalProtocol(
    "YouCook2 validation clips",
    "the steps of the 457 official validation videos, one sentence each, against each other",
)


def load(
    root: Path | str,
    split: str,
    *,
    hold_out: int = HELD_OUT,
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of YouCook2; ``test`` is the official validation, which the field reports on.

    ``hold_out`` counts videos: the steps of one video never part.
    """
    root = Path(root)
    check_split_name("youcook2", split, SPLITS)
    path = find_file(root, FILES, FOLDERS)
    subset = "validation" if split == "test" else "training"
    steps = read_steps(path, subset)
    ids = list(steps)
    if split != "test":
        ids = training_ids("youcook2", split, ids, hold_out)
    files = finder or finder_for(root, video_folders)
    clips: list[VideoRecord] = []
    left_out: list[LeftOut] = []
    for video_id in ids:
        file = files.find(video_id)
        for clip_id, captions, window in steps[video_id]:
            if captions:
                clips.append(VideoRecord(clip_id, captions, file, window))
            else:
                left_out.append(LeftOut(clip_id, "no caption in the annotations"))
    protocol = {"train": TRAIN, "val": VALIDATION, "test": CLIPS}[split]
    return make_split("youcook2", split, protocol, clips, left_out)


Step = tuple[str, tuple[str, ...], tuple[float, float]]
"""Id of a clip, its sentence (none where it is empty), and its seconds."""


def read_steps(path: Path, subset: str) -> dict[str, list[Step]]:
    """``{"database": {ID: {"subset", "annotations": [{"id", "segment", "sentence"}]}}}``."""
    content = read_json(path)
    database = content.get("database") if isinstance(content, dict) else None
    if not isinstance(database, dict):
        raise DatasetError(f"{path}: expected an object of videos under 'database'")
    steps: dict[str, list[Step]] = {}
    for video_id, entry in database.items():
        where = f"{path}: video {video_id!r}"
        if not isinstance(entry, dict) or not isinstance(entry.get("annotations"), list):
            raise DatasetError(f"{where} needs a list under 'annotations', and 'subset'")
        if entry.get("subset") == subset:
            steps[video_id] = [
                read_step(video_id, step, f"{where}, annotation {number}")
                for number, step in enumerate(entry["annotations"])
            ]
    if not steps:
        raise DatasetError(f"{path}: no video has the subset {subset!r}")
    return steps


def read_step(video_id: str, step: Any, where: str) -> Step:
    try:
        number, sentence = step["id"], step["sentence"]
        start, end = map(float, step["segment"])
    except (TypeError, KeyError, ValueError):
        raise DatasetError(
            f"{where} needs the keys 'id', 'sentence' and 'segment' with two numbers"
        ) from None
    if not 0 <= start < end or not math.isfinite(end):
        raise DatasetError(f"{where}: the segment {start:g} to {end:g} s is not a piece of a video")
    captions, _ = clean_captions([sentence], where)
    return f"{video_id}_{number}", captions, (start, end)


add_dataset(
    DatasetSpec(
        "youcook2",
        "YouCook2",
        load,
        options={"hold_out": "training videos kept for validation (100; 0 trains on all)"},
    )
)
