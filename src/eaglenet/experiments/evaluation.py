"""Evaluate what was trained: a run on its own data, any model on any dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglenet.data.features import (
    INDEX_FILE,
    FeatureSplit,
    load_feature_folder,
    made_otherwise,
    read_index,
)
from eaglenet.data.records import hold_out_ids
from eaglenet.errors import UsageError
from eaglenet.evaluation.evaluate import EvaluationResult
from eaglenet.experiments.build import (
    DEMO,
    FEATURES,
    check_features,
    load_source,
)
from eaglenet.experiments.experiment import DataChoice, Experiment
from eaglenet.experiments.runs import SELECTION_NOTES, frames_folder, load_run
from eaglenet.methods.base import Method
from eaglenet.methods.folder import load
from eaglenet.training.distributed import (
    World,
    join,
    leave,
)
from eaglenet.training.logbook import Progress
from eaglenet.training.rounds import evaluate_source
from eaglenet.training.sources import Source, feature_source


def evaluate_run(
    folder: Path,
    *,
    split: str | None = None,
    features: Path | None = None,
    noise_seeds: Sequence[int] | None = None,
    device: str = "auto",
    backend: str = "auto",
    precision: str = "fp32",
    scores_file: Path | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate the selected model of a run on a split, or on any features folder of its form.

    ``split`` is ``test`` unless the run's data has none.
    """
    experiment, method = load_run(folder)
    notes = [SELECTION_NOTES[experiment.training.select]]
    world = join(device)
    try:
        method = method.to(world.device)
        if features is not None:
            given = check_features(load_feature_folder(features), method)
            source = feature_source(given)
            notes += feature_notes(experiment, given)
        else:
            name = split or default_split(experiment)
            notes += split_notes(experiment, name)
            cache = frames_folder(folder)
            source = load_source(
                experiment.data,
                name,
                method,
                cache=cache,
                device=world.device,
                progress=progress,
            )
        result = evaluate_source(
            method,
            source,
            world,
            noise_seeds=noise_seeds,
            backend=backend,
            precision=precision,
            scores_file=scores_file,
            progress=progress,
        )
    finally:
        leave(world)
    return dataclasses.replace(result, notes=(*result.notes, *notes))


def split_notes(experiment: Experiment, split: str) -> list[str]:
    """What a split was to the run, where that makes its score too good."""
    if split == "train":
        return ["the run was trained on this split: not a score on unseen videos"]
    if split == experiment.training.select == "val":
        return ["this split chose the epoch: somewhat high for unseen videos"]
    return []


def feature_notes(experiment: Experiment, given: FeatureSplit) -> list[str]:
    """What of a features folder was part of the training, and how it was made otherwise."""
    data = experiment.data
    root = Path(data.root).expanduser()
    if data.dataset != FEATURES or not (root / INDEX_FILE).is_file():
        return []
    index = read_index(root)
    ids, video_ids = index["video_ids"], given.video_ids
    held_out = hold_out_ids(ids, data.val_videos)
    notes = made_otherwise(index, given.metadata)
    for name, known in (("trained on", set(ids) - held_out), ("selected on", held_out)):
        count = len(known.intersection(video_ids))
        if count:
            notes.append(
                f"{count:,} of the {len(video_ids):,} videos are among those that the run was "
                f"{name}: not a score on unseen videos"
            )
    return notes


def default_split(experiment: Experiment) -> str:
    """``test``, or the held-out part of a features folder that names no other."""
    data = experiment.data
    return "val" if data.dataset == FEATURES and not data.options.get("test_root") else "test"


def evaluate_model(
    name_or_folder: str,
    dataset: str,
    root: str,
    *,
    split: str = "test",
    options: Mapping[str, Any] | None = None,
    noise_seeds: Sequence[int] | None = None,
    device: str = "auto",
    backend: str = "auto",
    precision: str = "fp32",
    scores_file: Path | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate any model on any dataset, with the frames that the model was made for.

    ``options`` are what the dataset's loader takes, ``video_folders`` among them.
    """
    method = load(name_or_folder)
    world = join(device)
    try:
        if dataset == FEATURES:
            source = feature_source(check_features(load_feature_folder(root), method))
        else:
            source = dataset_source(method, dataset, root, split, options, world, progress)
        return evaluate_source(
            method.to(world.device),
            source,
            world,
            noise_seeds=noise_seeds,
            backend=backend,
            precision=precision,
            scores_file=scores_file,
            progress=progress,
        )
    finally:
        leave(world)


def dataset_source(
    method: Method,
    dataset: str,
    root: str,
    split: str,
    options: Mapping[str, Any] | None,
    world: World,
    progress: Progress | None = None,
) -> Source:
    """A split with the frames that a model was made for."""
    if not root and dataset != DEMO:
        raise UsageError(f"no folder of {dataset} is given; say where it lies with --root FOLDER")
    encoder: Any = method.encoder
    words = min(encoder.config.text.context_length, 64 if dataset == "didemo" else 32)
    data = DataChoice(dataset, root, options or {}, method.frame_spec, max_words=words)
    cache = user_cache(data)
    return load_source(data, split, method, cache=cache, device=world.device, progress=progress)


def user_cache(data: DataChoice) -> Path:
    """Where frames of a dataset are kept when no run folder owns them."""
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    key = f"{Path(data.root).resolve()} {data.frames}".encode()
    return base / "eaglenet" / "frames" / hashlib.sha256(key).hexdigest()[:16]
