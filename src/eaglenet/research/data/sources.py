"""Sources of data for training and evaluation.

:func:`add_source` registers a kind of data, :func:`add_dataset` a dataset of video files.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.core.files import expand_home
from eaglenet.core.progress import Progress
from eaglenet.core.registry import Registry
from eaglenet.core.text import pluralize
from eaglenet.core.types import Clips, FrameSpec, PairBatch, TextFeatures, Tokens, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.research.data.frame_cache import (
    FrameCache,
    cache_folder,
    estimate,
    needs_decoding,
    read_journal,
)
from eaglenet.research.data.records import DATASETS, DatasetSpec, Split, VideoRecord

SELECTION_NOTES = {
    "val": "the epoch was chosen on the validation split",
    "test": "the epoch was chosen on the TEST split, as published rows do: not an unbiased score",
}
ONLY_EPOCH_NOTES = {
    "val": "the only epoch that was evaluated, on the validation split",
    "test": "the only epoch that was evaluated, on the TEST split",
}
FEW_VIDEOS = 10
"""Number of videos, or of texts of moments, below which recalls mean little."""
FEW_TO_CHOOSE = 30
"""Number of videos below which the best epoch is a matter of chance: each is 3 points of R@1."""


@dataclass(frozen=True)
class DataChoice:
    """Data of an experiment.

    dataset: name in :data:`SOURCES`: a dataset of videos, ``demo`` (rendered in memory),
        ``features`` (a features folder), ...
    root: folder of annotations, videos or features.
    options: options of the dataset's loader.
    max_words: tokens per text.
    cache: folder for decoded frames; if empty, in the run folder.
    val_videos: videos of a features folder held out for validation.
    jitter: number of frames to decode for each frame that a training step uses. If more than 1,
        each step uses other frames, evenly spaced between a random start and end (CLIP-ViP).
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
        """Return the path of ``root`` (default: that of the data); raise if it does not exist."""
        name = self.root if root is None else root
        if not name:
            raise DatasetError(f"--data {self.dataset} needs a folder: add --root FOLDER")
        folder = expand_home(name)
        if not folder.exists():
            raise DatasetError(f"--root {name}: no such folder or file")
        return folder

    def for_training(self, split: str) -> DataChoice:
        """Return the data as a run opens a split: with ``jitter`` times the frames of ``train``."""
        if split != "train":
            return self
        num_frames = self.jitter * self.frames.num_frames
        return replace(self, frames=replace(self.frames, num_frames=num_frames))

    def refuse_options(self, known_names: set[str]) -> None:
        """Raise if ``options`` has a name that is not in ``known_names``."""
        for name in self.options:
            if name not in known_names:
                listing = ", ".join(sorted(known_names))
                raise ConfigError(
                    f"data.options.{name}: {self.dataset} has no such option (known: {listing}); "
                    "--set data.options={} clears the options of a recipe"
                )


@dataclass(frozen=True)
class Source:
    """A split whose texts and videos are fetched by index.

    missing: ids of videos that the annotations list but that were not found.
    """

    texts: Callable[[Tensor], Tokens | TextFeatures]
    videos: Callable[[Tensor], Clips | VideoFeatures]
    video_of_text: Tensor
    captions: Sequence[str]
    video_ids: Sequence[str]
    protocol: Any
    missing: tuple[str, ...] = ()

    def pairs(self, indices: Sequence[int] | Tensor) -> PairBatch:
        """Return texts by index, each with its video."""
        texts = torch.as_tensor(indices, dtype=torch.int64, device=self.video_of_text.device)
        videos = self.video_of_text[texts]
        return PairBatch(self.texts(texts), self.videos(videos), videos)

    @property
    def num_texts(self) -> int:
        return len(self.video_of_text)

    @property
    def num_videos(self) -> int:
        return len(self.video_ids)

    def describe(self) -> dict[str, Any]:
        """Describe the split for the manifest of a run."""
        return {
            "protocol": str(getattr(self.protocol, "name", self.protocol)),
            "texts": self.num_texts,
            "videos_found": self.num_videos,
            "videos_missing": len(self.missing),
            "missing_videos": list(self.missing[:20]),
        }


@dataclass(frozen=True)
class OpenContext:
    """Context for opening a split: the model that reads it, the folder for frames, the device."""

    reader: Method
    cache: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Progress | None = None


@dataclass(frozen=True)
class SplitSummary:
    """Summary of a split, made without decoding videos."""

    description: Mapping[str, Any]
    video_of_text: Tensor


@dataclass(frozen=True)
class SourceSpec:
    """A registered kind of data.

    open: opens a split.
    inspect: summarises a split without decoding it; None if opening it is fast.
    splits: names of the splits; empty if they depend on the data.
    open_all: opens a whole folder, for a model trained elsewhere; None if a split is required.
    default_split: returns the split that is evaluated by default.
    needs_folder: the data is read from a folder (``--root``).
    is_features: the data is stored features, without texts to tokenise or frames to decode.
    gives_features: the data computes features for models that read features.
    keeps_frames: decoded frames are kept in a folder, which several runs can share.
    max_words: default number of tokens per text.
    """

    name: str
    title: str
    open: Callable[[DataChoice, str, OpenContext], Source]
    inspect: Callable[[DataChoice, str], SplitSummary] | None = None
    splits: Sequence[str] = ()
    open_all: Callable[[Path, Method], Source] | None = None
    default_split: Callable[[DataChoice], str] = lambda data: "test"
    needs_folder: bool = True
    is_features: bool = False
    gives_features: bool = False
    keeps_frames: bool = False
    max_words: int = 32


SOURCES: Registry[SourceSpec] = Registry("dataset", is_open=True)


def add_source(spec: SourceSpec) -> SourceSpec:
    """Register a kind of data for training, evaluation and all commands."""
    return SOURCES.add(spec.name, spec)


def clip_source(records: Split, tokens: Tokens, clips: Callable[[Tensor], Clips]) -> Source:
    """Make a source from tokens in memory and a function that returns clips by index."""
    return Source(
        texts=lambda indices: tokens[indices],
        videos=clips,
        video_of_text=records.video_of_text,
        captions=records.texts,
        video_ids=records.video_ids,
        protocol=records.protocol,
        missing=tuple(entry.video_id for entry in records.left_out),
    )


def few_videos(count: int, noun: str = "video") -> tuple[str, ...]:
    """Return a warning if there are so few videos or texts that recalls are high by chance."""
    if count >= FEW_VIDEOS:
        return ()
    verb = "is" if count == 1 else "are"
    return (f"{pluralize(count, noun)} {verb} too few for recalls to mean much",)


def selection_note(split: str, *, is_choice: bool, num_videos: int = FEW_TO_CHOOSE) -> str:
    """Describe the split that chose the epoch, with a warning if it is too small.

    is_choice: whether several epochs were evaluated.
    """
    if not is_choice:
        return ONLY_EPOCH_NOTES[split]
    note = SELECTION_NOTES[split]
    if num_videos >= FEW_TO_CHOOSE:
        return note
    return f"{note}: {num_videos} videos are too few to choose by, so another epoch may be as good"


logger = logging.getLogger(__name__)


def add_dataset(spec: DatasetSpec) -> DatasetSpec:
    """Register a dataset of video files for training, evaluation and all commands."""
    DATASETS.add(spec.name, spec)
    add_source(
        SourceSpec(
            spec.name,
            spec.title,
            open=open_videos,
            inspect=inspect_videos,
            keeps_frames=True,
            max_words=spec.max_words,
        )
    )
    return spec


def open_videos(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open the videos that have a file; frames that are not in the cache are decoded into it."""
    records = load_records(data, split).select_present()
    folder = _frames_folder(data, context.cache)
    size = estimate(records, data.frames)
    logger.info("frames of %s: up to %.2f GB in %s", split, size / 1e9, folder)
    frames = FrameCache.build(
        records, data.frames, folder, workers=data.workers, progress=context.progress
    )
    return cached_source(records, frames, context.reader.tokenize, data.max_words)


def _frames_folder(data: DataChoice, cache: Path) -> Path:
    """Return the folder of decoded frames, in ``data.cache`` or else in ``cache``."""
    base = expand_home(data.cache) if data.cache else cache
    return cache_folder(base, data.dataset, data.frames)


def videos_to_decode(data: DataChoice, split: str, cache: Path) -> list[VideoRecord]:
    """Return the videos of a split with a file whose frames are not in the cache."""
    folder = _frames_folder(data, cache)
    contents = read_journal(folder)
    return [
        video
        for video in load_records(data, split).select_present().videos
        if needs_decoding(video, contents, retry_skipped=False)
    ]


def inspect_videos(data: DataChoice, split: str) -> SplitSummary:
    records = load_records(data, split)
    return summarise_split(records, records.select_present().video_of_text, len(records.missing))


def summarise_split(records: Split, video_of_text: Tensor, num_missing: int) -> SplitSummary:
    """Summarise a split with ``num_missing`` videos that cannot be read."""
    description = {
        "protocol": records.protocol.name,
        "texts": len(records.texts),
        "videos_found": len(video_of_text.unique()),
        "videos_missing": num_missing,
    }
    return SplitSummary(description, video_of_text)


def load_records(data: DataChoice, split: str) -> Split:
    """Read the annotations of a split and find its video files."""
    spec = DATASETS[data.dataset]
    names = {*inspect.signature(spec.load).parameters, "video_folders"}
    data.refuse_options(names - {"root", "split", "finder"})
    return spec.load(data.folder(), split, **data.options)


def cached_source(
    split: Split, cache: FrameCache, tokenize: Callable[..., Tokens], max_words: int = 32
) -> Source:
    """Make a source from cached frames; videos that are not in the cache are left out."""
    is_cached = replace(cache, split=split).cached_mask
    if not is_cached.any():
        raise DatasetError(
            f"{cache.folder}: none of the {len(split)} videos of {split.dataset} {split.name} "
            "is in the cache; build it for this split"
        )
    if not is_cached.all():
        pairs = zip(split.videos, is_cached, strict=True)
        cached_ids = [video.video_id for video, is_present in pairs if is_present]
        logger.warning(
            "%s %s: %d of %d videos are in the frame cache",
            split.dataset,
            split.name,
            len(cached_ids),
            len(split),
        )
        split = split.only(cached_ids, "not in the frame cache")
    tokens = tokenize(split.texts, max_length=max_words)
    return clip_source(split, tokens, replace(cache, split=split).clips)
