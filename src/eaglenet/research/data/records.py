"""What a dataset is once its files are read: videos, their captions and a protocol."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.registry import Registry
from eaglenet.core.settings import read_options

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VideoRecord:
    """One video: its id, every caption that belongs to it, its file and the part of it meant.

    ``path`` is ``None`` where no file was found; ``window`` is (start, end) in seconds.
    """

    video_id: str
    captions: tuple[str, ...]
    path: Path | None = None
    window: tuple[float, float] | None = None


@dataclass(frozen=True)
class VideoProblem:
    """A video that a split leaves out or that cannot be decoded, and the reason."""

    video_id: str
    reason: str


@dataclass(frozen=True)
class RetrievalProtocol:
    """Which texts meet which videos. ``name`` is printed with every score.

    ``family`` is the name without sizes, so that a smaller gallery can be named after it.
    """

    name: str
    description: str
    family: str = ""

    def sized(
        self, num_texts: int, num_videos: int, num_listed: int | None = None
    ) -> RetrievalProtocol:
        """The same protocol, its name saying how many texts met how many videos.

        ``num_listed`` is how many videos the dataset names; a smaller gallery says so.
        """
        family = self.family or self.name
        of = f" of {num_listed:,}" if num_listed not in (None, num_videos) else ""
        size = f"{num_texts:,} texts x {num_videos:,}{of} videos"
        return replace(self, name=f"{family} ({size})", family=family)


@dataclass(frozen=True)
class Split:
    """Videos in a fixed order. A video's captions follow each other in ``texts``.

    Refuses what would become a wrong score later: no videos, one id twice, a video without
    captions, an empty caption.
    """

    dataset: str
    name: str
    protocol: RetrievalProtocol
    videos: tuple[VideoRecord, ...]
    left_out: tuple[VideoProblem, ...] = ()

    def __post_init__(self) -> None:
        title = f"{self.dataset} {self.name}"
        if not self.videos:
            why = f"; {len(self.left_out)} were left out" if self.left_out else ""
            raise DatasetError(
                f"{title}: the split is empty{why}; check the split file and the captions file"
            )
        counts = Counter(video.video_id for video in self.videos)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise DatasetError(
                f"{title}: {len(twice)} video ids appear more than once, first {twice[0]!r}; "
                "an id may be listed once (put several captions in one record)"
            )
        for video in self.videos:
            if not video.video_id:
                raise DatasetError(f"{title}: a video has an empty id")
            if not video.captions or not all(caption.strip() for caption in video.captions):
                raise DatasetError(f"{title}: video {video.video_id!r} has an empty caption")

    @cached_property
    def texts(self) -> list[str]:
        """Every caption, grouped by video in the order of ``videos``."""
        return [caption for video in self.videos for caption in video.captions]

    @cached_property
    def video_of_text(self) -> Tensor:
        """[texts] int64: the index of the video that each text belongs to."""
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

    def only(self, video_ids: Iterable[str], reason: str = "not chosen") -> Split:
        """The videos of these ids, in this split's order; the others are recorded as left out.

        The protocol's name then says "n of N videos", so no score hides what was missing.
        """
        wanted = set(video_ids)
        kept = tuple(video for video in self.videos if video.video_id in wanted)
        dropped = tuple(
            VideoProblem(video.video_id, reason)
            for video in self.videos
            if video.video_id not in wanted
        )
        num_texts = sum(len(video.captions) for video in kept)
        protocol = self.protocol.sized(num_texts, len(kept), self.num_listed)
        return replace(self, videos=kept, protocol=protocol, left_out=self.left_out + dropped)

    def present(self) -> Split:
        """The videos whose file was found; a warning counts the others."""
        if not self.missing:
            return self
        found = [video.video_id for video in self.videos if video.path is not None]
        logger.warning(
            "%s %s: %d of %d videos present; %d files were not found, first %r",
            self.dataset,
            self.name,
            len(found),
            len(self),
            len(self.missing),
            self.missing[0].video_id,
        )
        if not found:
            raise DatasetError(
                f"{self.dataset} {self.name}: none of the {len(self)} video files was found; "
                "give the folder that holds them as video_folders"
            )
        return self.only(found, "no file found")

    @property
    def num_listed(self) -> int:
        """How many videos the split names, left-out ones included."""
        return len(self.videos) + len({entry.video_id for entry in self.left_out})


Loader = Callable[..., Split]


@dataclass(frozen=True)
class DatasetSpec:
    """What the registry knows of a dataset: ``load(root, split, **options)`` and its splits."""

    name: str
    title: str
    load: Loader
    splits: tuple[str, ...] = ("train", "val", "test")
    options: Mapping[str, str] = field(default_factory=dict)
    """Option name -> one line that says what it does."""
    max_words: int = 32
    """Words of a caption that models read unless they say otherwise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "load", with_checked_options(self.name, self.load))


DATASETS: Registry[DatasetSpec] = Registry("dataset", is_open=True)

# Given to every dataset by those who look for files; one that makes its own has no use for them.
FILE_OPTIONS = ("finder", "video_folders")


def with_checked_options(name: str, load: Loader) -> Loader:
    """``load`` that answers a wrong option with the right ones instead of a traceback."""

    @wraps(load)
    def checked(root: Path | str, split: str, **options: Any) -> Split:
        return load(root, split, **check_options(name, load, options))

    return checked


def check_options(
    name: str, load: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The ``options`` that ``load`` takes; an unknown one, or one of another type, is an error."""
    taken = [key for key in inspect.signature(load).parameters if key not in ("root", "split")]
    files = {key: options[key] for key in FILE_OPTIONS if key in options and key in taken}
    given = {key: value for key, value in options.items() if key not in FILE_OPTIONS}
    known = [key for key in taken if key not in FILE_OPTIONS]
    return {**read_options(load, given, name, known), **files}


def make_split(
    dataset: str,
    name: str,
    protocol: RetrievalProtocol,
    videos: Sequence[VideoRecord],
    left_out: Sequence[VideoProblem] = (),
) -> Split:
    """A split whose protocol name carries its sizes; what was left out is logged with counts."""
    num_texts = sum(len(video.captions) for video in videos)
    num_listed = len(videos) + len({entry.video_id for entry in left_out})
    if left_out:
        for reason, count in Counter(entry.reason for entry in left_out).items():
            first = next(entry.video_id for entry in left_out if entry.reason == reason)
            logger.warning(
                "%s %s: left out %d videos (%s), first %r", dataset, name, count, reason, first
            )
    sized = protocol.sized(num_texts, len(videos), num_listed)
    return Split(dataset, name, sized, tuple(videos), tuple(left_out))


def clean_captions(captions: Iterable[object], where: str) -> tuple[tuple[str, ...], int]:
    """Captions without outer space, and how many were empty. Long ones are kept whole.

    A caption that is not text, or that no UTF-8 can hold, is an error that names ``where``.
    """
    kept = []
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
                f"{where}: a caption holds a lone surrogate at character {error.start} "
                "and cannot be written as UTF-8; re-save the annotations"
            ) from error
        text = caption.strip()
        if text:
            kept.append(text)
        else:
            num_empty += 1
    return tuple(kept), num_empty


def report_empty_captions(dataset: str, num_empty: int, file: Path) -> None:
    """Say how many empty captions were skipped; silence would hide broken annotations."""
    if num_empty:
        logger.warning("%s: skipped %d empty captions of %s", dataset, num_empty, file)


def stable_order(video_ids: Iterable[str], seed: int = 0) -> list[str]:
    """Ids in an order that depends on each id and the seed alone: the same on every machine.

    Adding or losing a video does not move the others against each other.
    """

    def key(video_id: str) -> tuple[bytes, str]:
        # File names need not be UTF-8; the system hands their bytes over as surrogates.
        content = f"{seed}:{video_id}".encode(errors="surrogateescape")
        return hashlib.sha256(content).digest(), video_id

    return sorted(video_ids, key=key)


def hold_out_ids(video_ids: Sequence[str], num_videos: int, seed: int = 0) -> set[str]:
    """``num_videos`` ids to keep away from training, chosen by a hash of each id."""
    if not 0 <= num_videos < len(video_ids):
        raise UsageError(
            f"cannot hold out {num_videos} of {len(video_ids)} videos; "
            f"give a number from 0 to {len(video_ids) - 1}"
        )
    return set(stable_order(video_ids, seed)[:num_videos])


def training_ids(dataset: str, split: str, video_ids: Sequence[str], hold_out: int) -> list[str]:
    """Ids of ``train``, or the ``hold_out`` ids of ``val`` that are taken out of the same list.

    For datasets whose official files have no validation videos beside those that are reported.
    """
    held = hold_out_ids(video_ids, hold_out)
    if split == "val" and not held:
        raise UsageError(
            f"{dataset}: hold_out=0 leaves no validation videos; name the other splits (--split "
            "train --split test), or select on the test set by name"
        )
    return [video_id for video_id in video_ids if (video_id in held) == (split == "val")]


def check_id(video_id: object, where: str) -> None:
    """Refuse an id that is not text, or that no file name can hold."""
    if not isinstance(video_id, str):
        raise DatasetError(
            f"{where}: the video is {type(video_id).__name__}, expected text: {video_id!r:.80}"
        )
    try:
        video_id.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise DatasetError(
            f"{where}: the video {video_id!r:.80} holds a lone surrogate; re-save the annotations"
        ) from None


def check_split_name(dataset: str, split: str, known: Sequence[str]) -> None:
    if split not in known:
        raise UsageError(f"{dataset} has no split {split!r}; known: {', '.join(known)}")
