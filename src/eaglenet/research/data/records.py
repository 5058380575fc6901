"""Records of datasets: videos with captions, splits and protocols."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.registry import Registry
from eaglenet.core.settings import read_options
from eaglenet.core.text import pluralize

logger = logging.getLogger(__name__)
LEFT_OUT = "%s %s: left out %s (%s), first %r"


@dataclass(frozen=True)
class VideoRecord:
    """A video of a dataset.

    path: None if the file is missing. window: start and end in seconds; None for the whole video.
    """

    video_id: str
    captions: tuple[str, ...]
    path: Path | None = None
    window: tuple[float, float] | None = None


@dataclass(frozen=True)
class VideoProblem:
    """A video that is left out of a split or cannot be decoded, with the reason."""

    video_id: str
    reason: str


@dataclass(frozen=True)
class RetrievalProtocol:
    """Protocol of an evaluation; ``name`` is printed with every score.

    family: name of the protocol without the numbers of texts and videos.
    """

    name: str
    family: str = ""

    def with_counts(
        self, num_texts: int, num_videos: int, num_listed: int | None = None
    ) -> RetrievalProtocol:
        """Return the protocol with the numbers of texts and videos in its name.

        ``num_listed``, the number of videos that the dataset lists, is included if it differs.
        """
        family = self.family or self.name
        videos = pluralize(num_videos, "video")
        if num_listed is not None and num_listed != num_videos:
            videos = f"{num_videos:,} of {pluralize(num_listed, 'video')}"
        size = f"{pluralize(num_texts, 'text')} x {videos}"
        return replace(self, name=f"{family} ({size})", family=family)


@dataclass(frozen=True)
class Split:
    """Videos of a split in a fixed order, with their captions.

    Raises:
        DatasetError: there is no video, an id is repeated, or a caption is missing or empty.
    """

    dataset: str
    name: str
    protocol: RetrievalProtocol
    videos: tuple[VideoRecord, ...]
    left_out: tuple[VideoProblem, ...] = ()

    def __post_init__(self) -> None:
        title = f"{self.dataset} {self.name}"
        if not self.videos:
            note = f"; {len(self.left_out)} were left out" if self.left_out else ""
            raise DatasetError(
                f"{title}: the split is empty{note}; check the split file and the captions file"
            )
        counts = Counter(video.video_id for video in self.videos)
        duplicates = [name for name, count in counts.items() if count > 1]
        if duplicates:
            raise DatasetError(
                f"{title}: {len(duplicates)} video ids appear more than once, "
                f"first {duplicates[0]!r}; list each once (a record takes several captions)"
            )
        for video in self.videos:
            if not video.video_id:
                raise DatasetError(f"{title}: a video has an empty id")
            if not video.captions or not all(caption.strip() for caption in video.captions):
                raise DatasetError(f"{title}: video {video.video_id!r} has an empty caption")

    @cached_property
    def texts(self) -> list[str]:
        """All captions, grouped by video in the order of ``videos``."""
        return [caption for video in self.videos for caption in video.captions]

    @cached_property
    def video_of_text(self) -> Tensor:
        """Index of the video of each text, int64."""
        counts = torch.tensor([len(video.captions) for video in self.videos])
        return torch.repeat_interleave(torch.arange(len(self.videos)), counts)

    @property
    def video_ids(self) -> list[str]:
        return [video.video_id for video in self.videos]

    @property
    def missing(self) -> tuple[VideoRecord, ...]:
        """Videos without a file."""
        return tuple(video for video in self.videos if video.path is None)

    def __len__(self) -> int:
        return len(self.videos)

    def only(self, video_ids: Iterable[str], reason: str = "not selected") -> Split:
        """Select videos by id, in the order of this split; record the others as left out.

        The name of the protocol then says "n of N videos".
        """
        ids = set(video_ids)
        videos = tuple(video for video in self.videos if video.video_id in ids)
        left_out = tuple(
            VideoProblem(video.video_id, reason)
            for video in self.videos
            if video.video_id not in ids
        )
        num_texts = sum(len(video.captions) for video in videos)
        protocol = self.protocol.with_counts(num_texts, len(videos), self.num_listed)
        left_out = self.left_out + left_out
        return replace(self, videos=videos, protocol=protocol, left_out=left_out)

    def select_present(self) -> Split:
        """Select the videos that have a file; log a warning about the others."""
        if not self.missing:
            return self
        ids = [video.video_id for video in self.videos if video.path is not None]
        logger.warning(
            "%s %s: %d of %d videos present; %s not found, first %r",
            self.dataset,
            self.name,
            len(ids),
            len(self),
            pluralize(len(self.missing), "file"),
            self.missing[0].video_id,
        )
        if not ids:
            raise DatasetError(
                f"{self.dataset} {self.name}: none of the {len(self)} video files was found; "
                "name their folder: --videos FOLDER, or --set data.options.video_folders=FOLDER"
            )
        return self.only(ids, "no file found")

    @property
    def num_listed(self) -> int:
        """Number of videos that the annotations list, including those left out."""
        return len(self.videos) + len({entry.video_id for entry in self.left_out})


Loader = Callable[..., Split]


@dataclass(frozen=True)
class DatasetSpec:
    """A registered dataset, with its loader ``load(root, split, **options)``.

    max_words: default number of tokens per caption that models read.
    """

    name: str
    title: str
    load: Loader
    splits: tuple[str, ...] = ("train", "val", "test")
    max_words: int = 32

    def __post_init__(self) -> None:
        load = self.load

        @wraps(load)
        def load_checked(root: Path | str, split: str, **options: Any) -> Split:
            return load(root, split, **check_options(self.name, load, options))

        object.__setattr__(self, "load", load_checked)


DATASETS: Registry[DatasetSpec] = Registry("dataset", is_open=True)

FILE_OPTIONS = ("finder", "video_folders")
"""Options that may be passed for every dataset; dropped if the loader does not take them."""


def check_options(
    name: str, load: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the ``options`` that ``load`` takes; raise for unknown names and wrong types."""
    parameters = [key for key in inspect.signature(load).parameters if key not in ("root", "split")]
    files = {key: options[key] for key in FILE_OPTIONS if key in options and key in parameters}
    settings = {key: value for key, value in options.items() if key not in FILE_OPTIONS}
    known_names = [key for key in parameters if key not in FILE_OPTIONS]
    return {**read_options(load, settings, name, known_names), **files}


def make_split(
    dataset: str,
    name: str,
    protocol: RetrievalProtocol,
    videos: Sequence[VideoRecord],
    left_out: Sequence[VideoProblem] = (),
) -> Split:
    """Build a split with the sizes in its protocol, and log the videos left out."""
    num_texts = sum(len(video.captions) for video in videos)
    num_listed = len(videos) + len({entry.video_id for entry in left_out})
    if left_out:
        for reason, count in Counter(entry.reason for entry in left_out).items():
            first = next(entry.video_id for entry in left_out if entry.reason == reason)
            videos_left_out = pluralize(count, "video")
            logger.warning(LEFT_OUT, dataset, name, videos_left_out, reason, first)
    protocol = protocol.with_counts(num_texts, len(videos), num_listed)
    return Split(dataset, name, protocol, tuple(videos), tuple(left_out))


def clean_captions(captions: Iterable[object], where: str) -> tuple[tuple[str, ...], int]:
    """Strip captions; return those that are not empty, and the number of empty ones.

    Raises:
        DatasetError: a caption is not text or not valid Unicode.
    """
    texts = []
    num_empty = 0
    for caption in captions:
        if not isinstance(caption, str):
            raise DatasetError(
                f"{where}: a caption is {type(caption).__name__}, expected text: {caption!r:.80}"
            )
        try:
            caption.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(
                f"{where}: a caption has a lone surrogate at character {error.start} "
                "and cannot be written as UTF-8; re-save the annotations"
            ) from error
        text = caption.strip()
        if text:
            texts.append(text)
        else:
            num_empty += 1
    return tuple(texts), num_empty


def report_empty_captions(dataset: str, num_empty: int, file: Path) -> None:
    """Log the number of empty captions, which may come from broken annotations."""
    if num_empty:
        count = pluralize(num_empty, "empty caption")
        logger.warning("%s: skipped %s of %r", dataset, count, str(file))


def stable_order(video_ids: Iterable[str], seed: int = 0) -> list[str]:
    """Sort ids by a hash of each id and the seed.

    Adding or removing a video does not change the order of the others.
    """

    def key(video_id: str) -> tuple[bytes, str]:
        # File names that are not UTF-8 have surrogates.
        content = f"{seed}:{video_id}".encode(errors="surrogateescape")
        return hashlib.sha256(content).digest(), video_id

    return sorted(video_ids, key=key)


def hold_out_ids(video_ids: Sequence[str], num_videos: int, seed: int = 0) -> set[str]:
    """Select ``num_videos`` ids to hold out of training by a hash of each id."""
    if not 0 <= num_videos < len(video_ids):
        raise UsageError(
            f"cannot hold out {num_videos} of {len(video_ids)} videos; "
            f"expected 0 to {len(video_ids) - 1}"
        )
    return set(stable_order(video_ids, seed)[:num_videos])


def training_ids(dataset: str, split: str, video_ids: Sequence[str], hold_out: int) -> list[str]:
    """Return the ids of ``train`` or ``val`` for a dataset without a validation split.

    ``hold_out`` of the training videos are ``val``, the others ``train``.
    """
    if not 0 <= hold_out < len(video_ids):
        raise UsageError(
            f"{dataset}: hold_out={hold_out}, but there are {pluralize(len(video_ids), 'video')} "
            f"to train on; expected 0 to {max(len(video_ids) - 1, 0)}"
        )
    held_out = hold_out_ids(video_ids, hold_out)
    if split == "val" and not held_out:
        raise UsageError(
            f"{dataset}: hold_out=0 leaves no validation videos; check only the other splits "
            "(--split train --split test), or select on the test split: --set training.select=test"
        )
    return [video_id for video_id in video_ids if (video_id in held_out) == (split == "val")]


def check_id(video_id: object, where: str) -> None:
    """Raise if an id is not text or cannot be part of a file name."""
    if not isinstance(video_id, str):
        raise DatasetError(
            f"{where}: the video is {type(video_id).__name__}, expected text: {video_id!r:.80}"
        )
    try:
        video_id.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise DatasetError(
            f"{where}: the video {video_id!r:.80} has a lone surrogate; re-save the annotations"
        ) from None


def check_split_name(dataset: str, split: str, names: Sequence[str]) -> None:
    if split not in names:
        raise UsageError(f"{dataset} has no split {split!r}; known: {', '.join(names)}")
