"""Folders of pre-extracted features: frames and sentences that no tower has to make again.

A folder holds ``frame_features.npy`` [all frames, dim] (videos after each other),
``sentence_features.npy`` [all texts, dim] or ``sentence_features_int8.npy`` with
``sentence_scales.npy`` [all texts, 1], and ``index.json`` with ``video_ids``,
``frames_per_video``, ``captions_per_video`` and ``captions``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglenet import foreign
from eaglenet.data.annotation_files import read_json
from eaglenet.data.features import FeatureSplit
from eaglenet.data.records import RetrievalProtocol
from eaglenet.errors import DatasetError, NonFiniteError
from eaglenet.files import folder_written_whole, write_json
from eaglenet.types import FrameSpec, TextFeatures, VideoFeatures

FORMAT = 1
FRAMES_FILE = "frame_features.npy"
SENTENCES_FILE = "sentence_features.npy"
QUANTISED_FILE = "sentence_features_int8.npy"
SCALES_FILE = "sentence_scales.npy"
INDEX_FILE = "index.json"
# Rows looked at together when searching for NaN: bounds the memory, not the result.
CHECK_ROWS = 65536
METADATA = ("format", "model", "frame_spec", "dataset", "split", "protocol")
MOST_OF_A_VIDEO = 100_000_000
"""Frames or captions: eleven days of film at 100 frames a second."""
PER_VIDEO = ("video_ids", "frames_per_video", "captions_per_video", "captions")


def load_feature_folder(folder: Path | str) -> FeatureSplit:
    """Read and check a feature folder."""
    folder = Path(folder)
    index = read_index(folder)
    frames = read_array(folder / FRAMES_FILE, (np.float16, np.float32))
    quantised = folder / QUANTISED_FILE
    if quantised.exists():
        sentences = read_array(quantised, (np.int8,))
        scales = read_array(folder / SCALES_FILE, (np.float16, np.float32))
        if scales.shape != (len(sentences), 1):
            raise DatasetError(
                f"{folder / SCALES_FILE}: shape {tuple(scales.shape)}, expected "
                f"({len(sentences)}, 1), one scale for each row of {QUANTISED_FILE}"
            )
    else:
        sentences = read_array(folder / SENTENCES_FILE, (np.float16, np.float32))
        scales = None
    frame_count = torch.tensor(index["frames_per_video"], dtype=torch.int64)
    text_count = torch.tensor(index["captions_per_video"], dtype=torch.int64)
    check_total(folder / FRAMES_FILE, len(frames), int(frame_count.sum()), "frames_per_video")
    check_total(folder, len(sentences), int(text_count.sum()), "captions_per_video")
    metadata = {key: value for key, value in index.items() if key in METADATA}
    captions = tuple(caption for group in index["captions"] for caption in group)
    video_ids = tuple(index["video_ids"])
    family = str(metadata.get("protocol") or f"features of {folder.name}")
    protocol = RetrievalProtocol(
        family, "every stored caption is a query; the gallery is every video"
    )
    return FeatureSplit(
        packed_frames=frames,
        packed_sentences=sentences,
        sentence_scales=scales,
        frame_start=frame_count.cumsum(0) - frame_count,
        frame_count=frame_count,
        text_row=torch.arange(len(sentences)),
        video_of_text=torch.repeat_interleave(torch.arange(len(video_ids)), text_count),
        video_ids=video_ids,
        captions=captions,
        protocol=protocol.sized(len(sentences), len(video_ids)),
        max_frames=int(frame_count.max()),
        metadata=metadata,
    )


def save_feature_folder(
    folder: Path | str,
    texts: TextFeatures,
    videos: VideoFeatures,
    *,
    video_of_text: Tensor,
    video_ids: Sequence[str],
    captions: Sequence[str],
    frame_spec: FrameSpec,
    model: str,
    dataset: str = "",
    split: str = "",
    protocol: str = "",
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write features in the form :func:`load_feature_folder` reads; all of it or nothing.

    Stores sentence and frame vectors, not words or patches. ``video_of_text`` must be grouped by
    video in order, as :class:`~eaglenet.data.records.Split` gives it.
    """
    folder = Path(folder)
    if folder.exists():
        raise DatasetError(f"{folder} exists; features are never overwritten, give another folder")
    owner = video_of_text.cpu()
    text_count = torch.bincount(owner, minlength=len(video_ids))
    expected = torch.repeat_interleave(torch.arange(len(video_ids)), text_count)
    if len(owner) != len(texts) or len(owner) != len(captions) or not torch.equal(owner, expected):
        raise DatasetError("texts must be grouped by video in the order of video_ids, one row each")
    if len(videos) != len(video_ids):
        raise DatasetError(f"{len(videos)} rows of video features for {len(video_ids)} video_ids")
    mask = videos.mask.cpu()
    frame_count = mask.sum(dim=1)
    groups = np.split(np.array(captions, dtype=object), text_count.cumsum(0)[:-1].numpy())
    index = {
        "format": FORMAT,
        "model": model,
        "frame_spec": dataclasses.asdict(frame_spec),
        "dataset": dataset,
        "split": split,
        "protocol": protocol,
        "video_ids": list(video_ids),
        "frames_per_video": frame_count.tolist(),
        "captions_per_video": text_count.tolist(),
        "captions": [group.tolist() for group in groups],
    }
    with folder_written_whole(folder) as temporary:
        frames = videos.frames.detach().cpu().to(dtype)[mask]
        np.save(temporary / FRAMES_FILE, frames.numpy())
        np.save(temporary / SENTENCES_FILE, texts.sentence.detach().cpu().to(dtype).numpy())
        write_json(temporary / INDEX_FILE, index, indent=None)
        # What cannot be read back is not kept: NaN, empty videos, overflow in float16.
        load_feature_folder(temporary)
    return folder


def read_index(folder: Path) -> dict[str, Any]:
    """``index.json``, checked: the lists agree, ids are unique, counts are positive."""
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder; give one that holds {INDEX_FILE}")
    path = folder / INDEX_FILE
    index = read_json(path)
    if not isinstance(index, dict):
        raise DatasetError(f"{path}: expected an object, found {type(index).__name__}")
    for key in PER_VIDEO:
        if not isinstance(index.get(key), list):
            raise DatasetError(f"{path}: key {key!r} is missing or not a list")
    ids = index["video_ids"]
    if not ids:
        raise DatasetError(f"{path}: no videos; the split is empty")
    for key in PER_VIDEO:
        if len(index[key]) != len(ids):
            raise DatasetError(f"{path}: {len(index[key])} {key} but {len(ids)} video_ids")
    if not all(isinstance(video_id, str) and video_id for video_id in ids):
        raise DatasetError(f"{path}: video_ids must be non-empty strings")
    if len(set(ids)) != len(ids):
        twice = next(video_id for video_id in ids if ids.count(video_id) > 1)
        raise DatasetError(f"{path}: video id {twice!r} appears more than once")
    for key in ("frames_per_video", "captions_per_video"):
        for video_id, count in zip(ids, index[key], strict=True):
            if not isinstance(count, int) or not 1 <= count <= MOST_OF_A_VIDEO:
                raise DatasetError(
                    f"{path}: {key} of {video_id!r} is {count!r:.40}, expected 1 or more, and at "
                    f"most {MOST_OF_A_VIDEO:,}"
                )
    for video_id, group, count in zip(
        ids, index["captions"], index["captions_per_video"], strict=True
    ):
        if not isinstance(group, list) or len(group) != count:
            raise DatasetError(
                f"{path}: captions of {video_id!r} do not have the {count} entries that "
                "captions_per_video gives"
            )
    return index


def read_array(path: Path, dtypes: Sequence[Any]) -> Tensor:
    """A two-axis array of one of ``dtypes`` with only finite numbers."""
    try:
        array = foreign.read_array(path)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; a feature folder needs it") from None
    except (ValueError, EOFError, OSError) as error:
        raise DatasetError(f"{path} cannot be read as a .npy array: {error}") from error
    if array.ndim != 2 or array.dtype not in [np.dtype(kind) for kind in dtypes]:
        expected = " or ".join(np.dtype(kind).name for kind in dtypes)
        raise DatasetError(
            f"{path}: {array.dtype.name} array of shape {array.shape}, "
            f"expected {expected} with two axes"
        )
    if array.dtype.kind == "f":
        for start in range(0, len(array), CHECK_ROWS):
            finite = np.isfinite(array[start : start + CHECK_ROWS]).all(axis=1)
            if not finite.all():
                row = start + int(np.flatnonzero(~finite)[0])
                raise NonFiniteError(
                    f"{path}: row {row} holds NaN or infinity; extract the features again"
                )
    return torch.from_numpy(array)


def check_total(path: Path, found: int, expected: int, key: str) -> None:
    if found != expected:
        raise DatasetError(
            f"{path}: {found} rows stored, but {key} of {INDEX_FILE} sums to {expected}"
        )


def made_otherwise(trained: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Where two folders say that they were made from other frames or by another model.

    Features of another tower give other scores without any error.
    """
    return [
        f"these features have {key} {given[key]}, those of the training {trained[key]}: "
        "scores will differ"
        for key in ("model", "frame_spec")
        if key in trained and key in given and trained[key] != given[key]
    ]
