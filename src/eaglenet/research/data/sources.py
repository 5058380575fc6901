"""One table of data: a name -> a split, ready for batches and for scoring alike.

A row is one :func:`add_source`. Datasets of video files need none of their own: see
:func:`eaglenet.research.data.sources.add_dataset`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.core.progress import Progress
from eaglenet.core.registry import Registry
from eaglenet.core.types import (
    Clips,
    Encoder,
    FrameSpec,
    PairBatch,
    TextFeatures,
    Tokens,
    VideoFeatures,
)
from eaglenet.research.data.frame_cache import FrameCache, cache_folder, estimate
from eaglenet.research.data.records import DATASETS, DatasetSpec, Split

FEW_VIDEOS = 10


@dataclass(frozen=True)
class DataChoice:
    """A dataset and how its videos become frames.

    dataset: a row of :data:`SOURCES`: a dataset of videos, ``demo`` (rendered in memory),
        ``features`` (a folder of them), ...
    root: the folder with annotations, videos or features. options: what the dataset's loader takes.
    cache: the folder for decoded frames; empty means beside the run.
    val_videos: videos held out where a folder of features has no validation part.
    jitter: frames decoded for training for each one that is shown; with more than 1 a step shows
        others each time, evenly spaced from a random start to a random end (CLIP-ViP).
    """

    dataset: str
    root: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    frames: FrameSpec = field(default_factory=FrameSpec)
    max_words: int = 32
    cache: str = ""
    workers: int = 4
    val_videos: int = 500
    jitter: int = 1

    def folder(self, root: str | None = None) -> Path:
        """The root (or another one), which must be there."""
        given = self.root if root is None else root
        if not given:
            raise DatasetError(
                f"where the dataset {self.dataset} lies is not given; say it with --root FOLDER"
            )
        folder = Path(given).expanduser()
        if not folder.exists():
            raise DatasetError(f"--root {given}: no such folder or file")
        return folder

    def refuse_options(self, known: set[str]) -> None:
        """Stop at an option that is not ``known``."""
        for name in self.options:
            if name not in known:
                listed = ", ".join(sorted(known))
                raise ConfigError(
                    f"data.options.{name}: {self.dataset} has no such option (known: {listed}); "
                    "--set data.options={} clears what a recipe sets"
                )


@dataclass(frozen=True)
class Source:
    """Texts and videos of a split, fetched by index."""

    texts: Callable[[Tensor], Tokens | TextFeatures]
    videos: Callable[[Tensor], Clips | VideoFeatures]
    video_of_text: Tensor
    sentences: Sequence[str]
    video_ids: Sequence[str]
    protocol: Any
    missing: tuple[str, ...] = ()
    """Ids that the split lists and whose video was not found."""

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        """Texts of these indices with their videos, on the device of ``video_of_text``."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.video_of_text.device)
        owners = self.video_of_text[rows]
        return PairBatch(self.texts(rows), self.videos(owners), owners)

    @property
    def num_texts(self) -> int:
        return len(self.video_of_text)

    @property
    def num_videos(self) -> int:
        return len(self.video_ids)

    def describe(self) -> dict[str, Any]:
        """What the manifest says of this split."""
        return {
            "protocol": str(getattr(self.protocol, "name", self.protocol)),
            "texts": self.num_texts,
            "videos_found": self.num_videos,
            "videos_missing": len(self.missing),
            "missing_videos": list(self.missing[:20]),
        }


@runtime_checkable
class Reader(Protocol):
    """What a source needs to know of the model that will read it; a method is one."""

    @property
    def config(self) -> Any: ...

    @property
    def encoder(self) -> Encoder: ...

    def tokenize(self, texts: Sequence[str], max_length: int | None = None) -> Tokens: ...


@dataclass(frozen=True)
class Opening:
    """For whom a split is opened, where its frames are kept and where its tensors lie."""

    reader: Reader
    cache: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Progress | None = None


@dataclass(frozen=True)
class Findings:
    """What is found of a split before any video is decoded."""

    description: Mapping[str, Any]
    video_of_text: Tensor


def always_test(data: DataChoice) -> str:
    """What is evaluated unless one says otherwise."""
    return "test"


@dataclass(frozen=True)
class SourceSpec:
    """A row of the table.

    open: a split, ready for batches.
    look: what is found of a split without decoding it; None where opening it costs nothing.
    whole: all of a folder, for a model that was trained elsewhere; None where a split is asked for.
    is_features: stored features; no sentences to tokenise and no frames to show.
    gives_features: makes features for a model that reads those.
    keeps_frames: decoded frames are kept in a folder, which several runs may share.
    """

    name: str
    title: str
    open: Callable[[DataChoice, str, Opening], Source]
    look: Callable[[DataChoice, str], Findings] | None = None
    whole: Callable[[Path, Reader], Source] | None = None
    default_split: Callable[[DataChoice], str] = always_test
    needs_folder: bool = True
    is_features: bool = False
    gives_features: bool = False
    keeps_frames: bool = False
    max_words: int = 32
    """Words of a sentence that are read where a model does not say otherwise."""


SOURCES: Registry[SourceSpec] = Registry("dataset", is_open=True)


def add_source(spec: SourceSpec) -> SourceSpec:
    """Make a kind of data known by its name, to training, evaluation and every command."""
    return SOURCES.add(spec.name, spec)


def clip_source(records: Split, tokens: Tokens, clips: Callable[[Tensor], Clips]) -> Source:
    """Source over tokens in memory and clips that ``clips`` fetches by index."""
    return Source(
        texts=lambda rows: tokens[rows],
        videos=clips,
        video_of_text=records.video_of_text,
        sentences=records.texts,
        video_ids=records.video_ids,
        protocol=records.protocol,
        missing=tuple(entry.video_id for entry in records.left_out),
    )


def few_videos(num_videos: int) -> tuple[str, ...]:
    """A remark on a split so small that its recalls are high by chance."""
    if num_videos >= FEW_VIDEOS:
        return ()
    return (f"{num_videos} videos are too few for recalls to mean much",)


# Datasets of video files as data to train and evaluate on: frames are decoded once and kept.

logger = logging.getLogger(__name__)


def add_dataset(spec: DatasetSpec) -> DatasetSpec:
    """Make a dataset of video files known by its name, to training and every command."""
    DATASETS.add(spec.name, spec)
    add_source(
        SourceSpec(
            spec.name,
            spec.title,
            open=open_videos,
            look=look_at_videos,
            keeps_frames=True,
            max_words=spec.max_words,
        )
    )
    return spec


def open_videos(data: DataChoice, split: str, opening: Opening) -> Source:
    """Frames of the videos that were found, decoded where they are not in the cache yet."""
    records = load_records(data, split).present()
    base = Path(data.cache).expanduser() if data.cache else opening.cache
    folder = cache_folder(base, records.dataset, data.frames)
    size = estimate(records, data.frames)
    logger.info("frames of %s: up to %.2f GB in %s", split, size / 1e9, folder)
    frames = FrameCache.build(
        records, data.frames, folder, workers=data.workers, progress=opening.progress
    )
    return cached_source(records, frames, opening.reader.tokenize, data.max_words)


def look_at_videos(data: DataChoice, split: str) -> Findings:
    """Which files are there."""
    records = load_records(data, split)
    description = {
        "protocol": records.protocol.name,
        "texts": len(records.texts),
        "videos_found": len(records) - len(records.missing),
        "videos_missing": len(records.missing),
    }
    return Findings(description, records.present().video_of_text)


def load_records(data: DataChoice, split: str) -> Split:
    """The annotations of a split, with the files that were found."""
    spec = DATASETS[data.dataset]
    data.refuse_options({*spec.options, "video_folders"})
    return spec.load(data.folder(), split, **data.options)


def cached_source(
    split: Split, cache: FrameCache, tokenize: Callable[..., Tokens], max_words: int = 32
) -> Source:
    """Source over cached frames; videos that the cache had to skip leave the split."""
    is_cached = cache.bound_to(split).available
    if not is_cached.any():
        raise DatasetError(
            f"{cache.folder}: none of the {len(split)} videos of {split.dataset} {split.name} "
            "is in the cache; build it for this split"
        )
    if not is_cached.all():
        usable = [
            video.video_id for video, here in zip(split.videos, is_cached, strict=True) if here
        ]
        logger.warning(
            "%s %s: %d of %d videos are in the frame cache",
            split.dataset,
            split.name,
            len(usable),
            len(split),
        )
        split = split.only(usable, "not in the frame cache")
    tokens = tokenize(split.texts, max_length=max_words)
    return clip_source(split, tokens, cache.bound_to(split).clips)
