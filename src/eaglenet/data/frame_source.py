"""A folder of frames (`data.frame_folder`) as a dataset of videos to train and evaluate on.

The splits train, val and test are the items of ``train``, ``validation`` and ``test`` in the
folder's index; ``data.options.test_root`` names another folder for the last. Every caption of the
kind ``data.options.captions`` is a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from eaglenet.data.checks import CheckReport, SplitReport, VideoProblem
from eaglenet.data.frame_folder import CAPTION_KINDS, FrameFolder, FrameItem, decode_jpeg
from eaglenet.data.records import (
    LeftOut,
    RetrievalProtocol,
    Split,
    VideoRecord,
    check_split_name,
    make_split,
)
from eaglenet.data.sources import DataChoice, Findings, Opening, Source
from eaglenet.errors import DatasetError, UsageError
from eaglenet.types import Clips, PairBatch, Tokens

FRAMES = "frames"
SPLITS: Mapping[str, str] = {"train": "train", "val": "validation", "test": "test"}
"""Our names of splits -> those of the index."""
OPTIONS = {"captions", "test_root", "towers"}
PROTOCOL = "every caption is a query; the gallery is every item of the split"


def load_items(data: DataChoice, split: str) -> tuple[FrameFolder, Split, list[FrameItem]]:
    """The folder, its split as records, and the items of those records in the same order."""
    check_split_name(FRAMES, split, tuple(SPLITS))
    data.refuse_options(OPTIONS)
    kind = str(data.options.get("captions", CAPTION_KINDS[0]))
    if kind not in CAPTION_KINDS:
        raise UsageError(f"data.options.captions={kind}: give one of {', '.join(CAPTION_KINDS)}")
    other = str(data.options.get("test_root") or "") if split == "test" else ""
    folder = FrameFolder.open(data.folder(other or None))
    records, items = split_records(folder, split, kind)
    return folder, records, items


def split_records(folder: FrameFolder, split: str, kind: str) -> tuple[Split, list[FrameItem]]:
    """The items of a split that have captions of ``kind``; the others are left out and told."""
    listed = [item for item in folder.items if item.split == SPLITS[split]]
    if not listed:
        has = ", ".join(f"{name} ({count})" for name, count in sorted(folder.splits.items()))
        raise DatasetError(
            f"{folder.folder}: no item of split {SPLITS[split]!r}; it has {has}. Another folder "
            "for the test split is named with data.options.test_root"
        )
    kept = [item for item in listed if _captions(item, kind)]
    without = [LeftOut(item.id, f"no caption of {kind}") for item in listed if item not in kept]
    protocol = RetrievalProtocol(f"frames of {folder.folder.name}, {split}", PROTOCOL)
    videos = [VideoRecord(item.id, _captions(item, kind)) for item in kept]
    return make_split(FRAMES, split, protocol, videos, without), kept


def _captions(item: FrameItem, kind: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in item.captions.get(kind, ()) if text.strip())


def chosen_frames(count: int, most: int) -> Int[Tensor, "frames"]:
    """Which of ``count`` frames are shown: all, or the middles of ``most`` equal parts."""
    if count <= most:
        return torch.arange(count)
    return (2 * torch.arange(most) + 1) * count // (2 * most)


class FramePictures:
    """The pictures of a split in memory, given as clips.

    An item with fewer pictures than a model takes is padded with frames that its mask leaves out,
    whatever ``FrameSpec.short`` says of videos: a picture shown twice would count twice.
    """

    def __init__(
        self,
        frames: UInt8[Tensor, "rows 3 size size"],
        counts: Sequence[int],
        num_frames: int,
    ) -> None:
        self.frames = frames
        self.rows = torch.zeros(len(counts), num_frames, dtype=torch.int64)
        self.mask = torch.zeros(len(counts), num_frames, dtype=torch.bool)
        start = 0
        for place, count in enumerate(counts):
            chosen = chosen_frames(count, num_frames)
            self.rows[place, : len(chosen)] = start + chosen
            self.mask[place, : len(chosen)] = True
            start += count

    def clips(self, rows: Tensor) -> Clips:
        """The clips of these items; the pictures' numbers stand for times, which are unknown."""
        chosen = rows.cpu()
        mask = self.mask[chosen]
        pictures = self.frames[self.rows[chosen].flatten()]
        pictures = pictures.unflatten(0, mask.shape).masked_fill(~mask[..., None, None, None], 0)
        seconds = torch.arange(mask.shape[1], dtype=torch.float32).expand(mask.shape)
        return Clips(pictures, mask, seconds.contiguous())


class PicturePairs:
    """Pairs of sentences and pictures that lie in memory."""

    def __init__(self, tokens: Tokens, pictures: FramePictures, video_of_text: Tensor) -> None:
        self.tokens, self.pictures, self.video_of_text = tokens, pictures, video_of_text

    def pairs(self, indices: Any) -> PairBatch:
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        owners = self.video_of_text[chosen]
        return PairBatch(self.tokens[chosen], self.pictures.clips(owners), owners)


def open_pictures(data: DataChoice, split: str, opening: Opening) -> Source:
    """A split whose pictures are read into memory at the model's size."""
    folder, records, items = load_items(data, split)
    frames, _ = folder.read_frames(items, data.frames.size, threads=max(data.workers, 1))
    pictures = FramePictures(frames, [item.frames for item in items], data.frames.num_frames)
    tokens = opening.reader.tokenize(records.texts, data.max_words)
    return Source(
        pairs=PicturePairs(tokens, pictures, records.video_of_text),
        texts=lambda rows: tokens[rows],
        videos=pictures.clips,
        sentences=records.texts,
        video_ids=records.video_ids,
        protocol=records.protocol,
        missing=tuple(entry.video_id for entry in records.left_out),
    )


def look_at_pictures(data: DataChoice, split: str) -> Findings:
    """What the index says; no picture is read."""
    _, records, _ = load_items(data, split)
    description = {
        "protocol": records.protocol.name,
        "texts": len(records.texts),
        "videos_found": len(records),
        "videos_missing": len(records.left_out),
    }
    return Findings(description, records.video_of_text)


def check_frames(
    root: Path,
    *,
    splits: Sequence[str] | None = None,
    captions: str = CAPTION_KINDS[0],
    decode: bool = False,
) -> CheckReport:
    """Compare the index with the shards; with ``decode`` every picture is decoded too.

    Looked at are the splits that the folder has, or those asked for.
    """
    folder = FrameFolder.open(root)
    known = {ours: theirs for ours, theirs in SPLITS.items() if folder.splits.get(theirs)}
    names = tuple(splits or known)
    if not names:
        has = ", ".join(sorted(folder.splits)) or "none"
        raise DatasetError(f"{root}: its splits are {has}; expected {', '.join(SPLITS.values())}")
    found, broken = _look_at_shards(folder, _decoded if decode else None)
    reports = []
    for name in names:
        check_split_name(FRAMES, name, tuple(SPLITS))
        records, items = split_records(folder, name, captions)
        missing = [item.id for item in items if found.get(item.id, 0) < item.frames]
        reports.append(
            SplitReport(
                name=name,
                protocol=records.protocol.name,
                num_videos=records.num_listed,
                num_captions=len(records.texts),
                num_found=len(items) - len(missing),
                missing=tuple(missing),
                undecodable=tuple(
                    VideoProblem(item.id, broken[item.id]) for item in items if item.id in broken
                ),
                left_out=tuple(
                    VideoProblem(entry.video_id, entry.reason) for entry in records.left_out
                ),
                longest_caption=max(len(text) for text in records.texts),
            )
        )
    return CheckReport(FRAMES, str(root), tuple(reports), decoded=decode)


def _look_at_shards(
    folder: FrameFolder, look: Callable[[bytes], str | None] | None
) -> tuple[dict[str, int], dict[str, str]]:
    """Pictures of each item, and of those that cannot be read why."""
    found: dict[str, int] = {}
    broken: dict[str, str] = {}
    pictures: Iterable[tuple[str, bytes]] = folder.read_jpegs()
    for name, data in pictures:
        item = name.rpartition("/")[0]
        found[item] = found.get(item, 0) + 1
        reason = look(data) if look is not None else None
        if reason is not None:
            broken.setdefault(item, reason)
    return found, broken


def _decoded(data: bytes) -> str | None:
    try:
        decode_jpeg(data, 16)
    except (OSError, ValueError) as error:
        return f"a picture cannot be decoded ({error})"
    return None
