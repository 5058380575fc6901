"""Datasets of video files as data to train and evaluate on: frames are decoded once and kept."""

from __future__ import annotations

import logging
from pathlib import Path

from eaglenet.data.batches import CachedPairs
from eaglenet.data.frame_cache import FrameCache, cache_folder, estimate
from eaglenet.data.records import DATASETS, DatasetSpec, Split
from eaglenet.data.sources import (
    DataChoice,
    Findings,
    Opening,
    Source,
    SourceSpec,
    add_source,
)

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
    return cached_source(
        CachedPairs(records, frames, opening.reader.tokenize, max_words=data.max_words)
    )


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


def cached_source(pairs: CachedPairs) -> Source:
    """Cached frames and sentences tokenised once."""
    tokens = pairs.tokenizer(pairs.split.texts, max_length=pairs.max_words)
    return Source(
        pairs=pairs,
        texts=lambda rows: tokens[rows],
        videos=pairs.cache.clips,
        sentences=pairs.split.texts,
        video_ids=pairs.split.video_ids,
        protocol=pairs.split.protocol,
        missing=tuple(entry.video_id for entry in pairs.split.left_out),
    )
