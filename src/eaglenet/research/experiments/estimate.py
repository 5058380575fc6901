"""Estimates of the cost of a run: time and memory of training steps, time to prepare videos."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.platform import num_cores
from eaglenet.core.text import format_hours, pluralize
from eaglenet.core.types import Clips, FrameSpec, PairBatch, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig
from eaglenet.encoders.hardware import autocast_for
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from eaglenet.research.data.frame_folder import FRAMES
from eaglenet.research.data.records import DATASETS, VideoRecord
from eaglenet.research.data.sources import SOURCES, DataChoice, videos_to_decode
from eaglenet.research.evaluation.run_records import peak_memory, reset_peak_memory
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.stored_data import (
    are_features_stored,
    tower_precision,
    towers_of,
)
from eaglenet.research.training.distributed import World
from eaglenet.research.training.optimizer import halve_towers
from eaglenet.research.training.step import training_losses

FIRST_PAIRS = 4
"""Pairs in the first step timed on a CPU, where a whole batch may take minutes."""
ENOUGH_SECONDS = 2.0
"""Seconds of a step from which to extrapolate; after a shorter step, twice the pairs are timed."""
MakeBatch = Callable[[int], PairBatch]
"""Returns a batch with this number of pairs."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of training, without evaluation and compilation.

    seconds: time for all steps. memory_bytes: peak memory; None if unknown.
    """

    num_steps: int
    seconds: float
    memory_bytes: int | None

    def __str__(self) -> str:
        memory = f", {self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else ""
        length = format_hours(self.seconds / 3600)
        return f"{self.num_steps:,} steps in about {length}{memory}, without evaluation"


@dataclass(frozen=True)
class Preparation:
    """Decoding (and for a head, encoding) of videos before training.

    num_videos: videos of the run. parts: seconds by what is stored, such as the frames of a split;
    runs of a comparison share equal parts.
    """

    num_videos: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    is_encoding: bool = False

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        return {"num_videos": self.num_videos, "seconds": self.seconds}

    def __str__(self) -> str:
        work = "decoding and encoding" if self.is_encoding else "decoding"
        length = format_hours(self.seconds / 3600)
        return f"{work} {pluralize(self.num_videos, 'video')} once in about {length}"


def estimate_run(
    experiment: Experiment,
    method: Method,
    make_batch: MakeBatch,
    num_steps: int,
    device: torch.device,
) -> Estimate:
    """Time a few training steps and extrapolate to the run. Changes the weights of ``method``.

    ``method`` is prepared for training (`training.trainer.prepare_method`).
    """
    training = experiment.training
    method = method.to(device).train()
    if training.precision == "fp16_weights":
        halve_towers(method)
    optimizer = training.make_optimizer(method)

    def time_step(pairs: int) -> float:
        batch = make_batch(pairs).to(device)
        # Chunks as large as in training; at least two, since chunks are encoded twice.
        num_chunks = max(2, -(-training.accumulate * pairs // training.batch_size))
        accumulate = min(num_chunks, training.accumulate, pairs)
        timed_training = dataclasses.replace(training, accumulate=accumulate, augment="none")
        start = time.perf_counter()
        training_losses(method, batch, timed_training, World(device=device), seed=0)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    pairs = training.batch_size if device.type == "cuda" else FIRST_PAIRS
    pairs = min(pairs, training.batch_size)
    reset_peak_memory(device)
    base = peak_memory(device)
    seconds = time_step(pairs)
    if seconds < 5 * ENOUGH_SECONDS:
        seconds = time_step(pairs)  # The first step also allocated memory.
    while pairs < training.batch_size and seconds < ENOUGH_SECONDS:
        pairs = min(2 * pairs, training.batch_size)
        seconds = time_step(pairs)
    peak = peak_memory(device)
    scale = training.batch_size / pairs
    memory = None
    if peak is not None and base is not None:
        memory = round(base + (peak - base) * scale)
    return Estimate(num_steps, seconds * scale * num_steps, memory)


def blank_batch(data: DataChoice, method: Method, pairs: int) -> PairBatch:
    """Make a batch of blank frames and one-word texts, in the sizes of training."""
    spec = data.frames
    frames = torch.zeros(pairs, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(pairs, spec.num_frames, dtype=torch.bool)
    seconds = torch.arange(spec.num_frames, dtype=torch.float32).expand(pairs, -1)
    tokens = method.tokenize(["a"] * pairs, data.max_words)
    return PairBatch(tokens, Clips(frames, mask, seconds), torch.arange(pairs))


def blank_features(data: DataChoice, config: FeatureConfig, pairs: int) -> PairBatch:
    """Make a batch of random features of texts, tokens and frames, in the sizes of training."""
    num_frames = data.frames.num_frames
    words = torch.randn(pairs, data.max_words, config.text_dim)
    text = TextFeatures(
        torch.randn(pairs, config.text_dim), words, torch.ones(words.shape[:2], dtype=torch.bool)
    )
    video = VideoFeatures(
        torch.randn(pairs, num_frames, config.frame_dim),
        torch.ones(pairs, num_frames, dtype=torch.bool),
    )
    return PairBatch(text, video, torch.arange(pairs))


SAMPLES = (0.1, 0.3, 0.5, 0.7)
"""Quantiles of the file size at which files are decoded to measure the time."""
SAMPLE_SECONDS = 20.0
"""Seconds after which no further file is decoded."""


def estimate_preparation(
    data: DataChoice,
    counts: Mapping[str, int],
    cache: Path,
    device: torch.device,
    *,
    is_encoding: bool,
) -> Preparation:
    """Estimate the time before the first step.

    Times the decoding of a few videos, by the bytes of their files, and the encoding of one video
    by the frozen towers. Videos in the cache take no time.

    counts: number of videos of each split.
    """
    # The demo world is a dataset of files for other commands, but runs render it in memory.
    has_files = data.dataset in DATASETS and SOURCES[data.dataset].keeps_frames
    if not has_files and not (is_encoding and data.dataset == FRAMES):
        return Preparation()
    num_videos = 0
    new_videos: dict[str, list[VideoRecord]] = {}
    parts: dict[str, float] = {}
    for split, count in counts.items():
        split_data = data.for_training(split)
        if is_encoding and are_features_stored(split_data, split, cache):
            continue
        key = f"{data.dataset} {split} {split_data.frames}"
        new_videos[key] = videos_to_decode(split_data, split, cache) if has_files else []
        num_videos += count if is_encoding else len(new_videos[key])
        if is_encoding and count:
            seconds = encoding_seconds(towers_of(data), data.frames, device)
            parts[f"features, {data.max_words} words, {key}"] = count * seconds
    sizes = {
        video.path: video.path.stat().st_size
        for videos in new_videos.values()
        for video in videos
        if video.path is not None
    }
    if sizes:
        paths = sorted(sizes, key=sizes.__getitem__)
        samples = tuple(dict.fromkeys(paths[int(rank * len(paths))] for rank in SAMPLES))
        workers = min(data.workers, num_cores()) or 1
        seconds_per_byte = decoding_seconds(samples, data.frames) / workers
        for key, videos in new_videos.items():
            total = sum(sizes[video.path] for video in videos if video.path is not None)
            if total:
                parts[f"frames, {key}"] = total * seconds_per_byte
    if not num_videos:
        return Preparation()
    return Preparation(num_videos, parts, is_encoding)


@functools.cache
def decoding_seconds(paths: tuple[Path, ...], spec: FrameSpec) -> float:
    """Measure the seconds per byte for decoding files in one process, without its start."""
    from eaglenet.video.decoding import DecodeRequest, decode_many, without_skip_warnings

    requests = [DecodeRequest(str(path), path) for path in (paths[0], *paths)]
    num_bytes = 0
    start = first = end = time.perf_counter()
    with without_skip_warnings():
        for number, outcome in enumerate(decode_many(requests, spec, workers=1)):
            end = time.perf_counter()
            if number == 0:  # Its time includes the start of the process.
                first = end
                continue
            num_bytes += Path(outcome.request.path).stat().st_size
            if end - start > SAMPLE_SECONDS:
                break
    return (end - first) / max(num_bytes, 1)


@functools.cache
def encoding_seconds(name: str, frames: FrameSpec, device: torch.device) -> float:
    """Measure the seconds for encoding one video with frozen towers."""
    towers = load(name, device=device)
    spec = dataclasses.replace(frames, size=towers.frame_spec.size, resize=towers.frame_spec.resize)
    videos = blank_batch(DataChoice("", frames=spec), towers, 1).videos
    assert isinstance(videos, Clips)
    # Equal frames would be encoded once.
    noise = torch.randint(0, 256, videos.frames.shape, generator=torch.Generator().manual_seed(0))
    videos = dataclasses.replace(videos, frames=noise.to(torch.uint8)).to(device)
    seconds = 0.0
    with torch.inference_mode(), autocast_for(device, tower_precision(device)):
        for _ in range(2):  # The first time also allocates.
            start = time.perf_counter()
            towers.encode_video(videos).to("cpu")
            seconds = time.perf_counter() - start
    return seconds
