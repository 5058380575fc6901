"""Sources: named data whose splits serve both training and evaluation.

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
from eaglenet.core.progress import Progress
from eaglenet.core.registry import Registry
from eaglenet.core.types import (
    Clips,
    FrameSpec,
    PairBatch,
    TextFeatures,
    Tokens,
    VideoFeatures,
)
from eaglenet.methods.base import Method
from eaglenet.research.data.frame_cache import FrameCache, cache_folder, estimate
from eaglenet.research.data.records import DATASETS, DatasetSpec, Split

SELECTION_NOTES = {
    "val": "the epoch was chosen on the validation split",
    "test": "the epoch was chosen on the TEST split, as published rows do: not an unbiased score",
}
FEW_VIDEOS = 10
FEW_TO_CHOOSE = 30
"""Videos below which an epoch is chosen by chance: with 30, one video more is 3 points of R@1."""


@dataclass(frozen=True)
class DataChoice:
    """A dataset, and the frames and words that are read from it.

    dataset: a name in :data:`SOURCES`: a dataset of videos, ``demo`` (rendered in memory),
        ``features`` (a folder of them), ...
    root: folder with annotations, videos or features. options: options of the dataset's loader.
    cache: folder for decoded frames; empty: in the run folder.
    val_videos: videos of a features folder that are held out for validation.
    jitter: frames decoded for training per frame that a step shows. With more than 1, each step
        shows others, evenly spaced from a random start to a random end (CLIP-ViP).
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
        """Path of ``root`` (default: of the dataset), which must exist."""
        name = self.root if root is None else root
        if not name:
            raise DatasetError(
                f"--data {self.dataset} needs the folder of its files: add --root FOLDER"
            )
        folder = Path(name).expanduser()
        if not folder.exists():
            raise DatasetError(f"--root {name}: no such folder or file")
        return folder

    def refuse_options(self, known: set[str]) -> None:
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
    """Ids in the split whose video is missing."""

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
        """Description of the split for the manifest of a run."""
        return {
            "protocol": str(getattr(self.protocol, "name", self.protocol)),
            "texts": self.num_texts,
            "videos_found": self.num_videos,
            "videos_missing": len(self.missing),
            "missing_videos": list(self.missing[:20]),
        }


@dataclass(frozen=True)
class Opening:
    """Context in which a split is opened: model, cache folder of frames, device."""

    reader: Method
    cache: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Progress | None = None


@dataclass(frozen=True)
class Findings:
    """Contents of a split, known before any video is decoded."""

    description: Mapping[str, Any]
    video_of_text: Tensor


@dataclass(frozen=True)
class SourceSpec:
    """A registered kind of data.

    open: opens a split.
    look: inspects a split without decoding it; None where opening it is cheap.
    whole: opens all of a folder, for a model trained elsewhere; None where splits are needed.
    default_split: split that is evaluated by default.
    is_features: the data is stored features, without sentences to tokenise or frames to decode.
    gives_features: computes features for a model that reads those.
    keeps_frames: stores decoded frames in a folder, which several runs may share.
    """

    name: str
    title: str
    open: Callable[[DataChoice, str, Opening], Source]
    look: Callable[[DataChoice, str], Findings] | None = None
    whole: Callable[[Path, Method], Source] | None = None
    default_split: Callable[[DataChoice], str] = lambda data: "test"
    needs_folder: bool = True
    is_features: bool = False
    gives_features: bool = False
    keeps_frames: bool = False
    max_words: int = 32
    """Tokens of a text that a model reads by default."""


SOURCES: Registry[SourceSpec] = Registry("dataset", is_open=True)


def add_source(spec: SourceSpec) -> SourceSpec:
    """Register a kind of data for training, evaluation and every command."""
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
    """Note on a split so small that its recalls are high by chance."""
    if num_videos >= FEW_VIDEOS:
        return ()
    return (f"{num_videos} videos are too few for recalls to mean much",)


def selection_note(split: str, num_videos: int) -> str:
    """Note on the split that chose the epoch, and on its size if that is too small."""
    note = SELECTION_NOTES[split]
    if num_videos >= FEW_TO_CHOOSE:
        return note
    return f"{note}: {num_videos} videos are too few to choose by, so another epoch may be as good"


logger = logging.getLogger(__name__)


def add_dataset(spec: DatasetSpec) -> DatasetSpec:
    """Register a dataset of video files for training and every command."""
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
    """Open the videos that have a file; frames that the cache lacks are decoded."""
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
    records = load_records(data, split)
    return findings_of(records, records.present().video_of_text, len(records.missing))


def findings_of(records: Split, video_of_text: Tensor, num_missing: int) -> Findings:
    """Findings of a split of which ``num_missing`` videos cannot be read."""
    videos = len(video_of_text.unique())
    description = {
        "protocol": records.protocol.name,
        "texts": len(records.texts),
        "videos_found": videos,
        "videos_missing": num_missing,
    }
    return Findings(description, video_of_text)


def load_records(data: DataChoice, split: str) -> Split:
    """Read the annotations of a split and find its files."""
    spec = DATASETS[data.dataset]
    names = {*inspect.signature(spec.load).parameters, "video_folders"}
    data.refuse_options(names - {"root", "split", "finder"})
    return spec.load(data.folder(), split, **data.options)


def cached_source(
    split: Split, cache: FrameCache, tokenize: Callable[..., Tokens], max_words: int = 32
) -> Source:
    """Source over cached frames; videos that the cache had to skip leave the split."""
    is_cached = replace(cache, split=split).available
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
    return clip_source(split, tokens, replace(cache, split=split).clips)
