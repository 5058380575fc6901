"""Evaluation of a run on its own data, and of any model on any dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress
from eaglenet.core.settings import differences, override, split_assignment, to_plain
from eaglenet.core.types import FrameSpec
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from eaglenet.research.data import SOURCES
from eaglenet.research.data.sources import DataChoice, Source
from eaglenet.research.evaluation.evaluate import EvaluationResult
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.experiments.build import check_data, default_split, load_source
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import SELECTION_NOTES, frames_folder, load_run
from eaglenet.research.experiments.stored_data import (
    feature_notes,
    feature_source,
    read_features,
    refuse_selection_videos,
)
from eaglenet.research.training.distributed import World, join
from eaglenet.research.training.epochs import evaluate_source


def evaluate_run(
    folder: str | Path,
    *,
    split: str | None = None,
    features: str | Path | None = None,
    options: EvaluationOptions | None = None,
    frames: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate the selected model of a run on a split, or on any features folder of its form.

    ``split`` defaults to :func:`evaluated_split`; ``frames`` as in :func:`evaluate_model`. The
    precision ``auto`` is the one of training.
    """
    experiment, method = load_run(folder)
    notes = [SELECTION_NOTES[experiment.training.select]]
    spec, frame_notes = other_frames(experiment.data.frames, frames)
    data = dataclasses.replace(experiment.data, frames=spec)
    notes += frame_notes
    options = options or EvaluationOptions()
    if options.precision == "auto":
        trained = "fp16" if experiment.training.precision == "fp16_weights" else "fp32"
        options = dataclasses.replace(options, precision=trained)
    if options.sinkhorn and features is not None:
        raise UsageError(
            "Sinkhorn offsets need training videos: leave out --features or --sinkhorn"
        )
    name = "" if features is not None else evaluated_split(experiment, split)
    training = None
    with join(device) as world:
        method = method.to(world.device)
        if features is not None:
            stored = read_features(Path(features).expanduser(), method)
            source = feature_source(stored)
            notes += feature_notes(data, stored)
        else:
            if name == "train":
                notes.append("the run was trained on this split: not a score on unseen videos")
            elif name == experiment.training.select == "val":
                notes.append("this split chose the epoch: somewhat high for unseen videos")
            cache = frames_folder(Path(folder).expanduser())
            source = load_source(
                data,
                name,
                method,
                cache=cache,
                device=world.device,
                progress=progress,
            )
            if options.sinkhorn:
                training = load_source(
                    data, "train", method, cache=cache, device=world.device, progress=progress
                )
            if name == "test":
                refuse_selection_videos(data, source.video_ids)
        result = evaluate_source(
            method, source, world, options, training=training, progress=progress
        )
    return dataclasses.replace(result, split=name, notes=(*result.notes, *notes))


def evaluated_split(experiment: Experiment, split: str | None) -> str:
    """The split that an evaluation scores: ``split``, or test, or what frames hold out.

    Raises:
        UsageError: no split is named and the data has no test split. The validation videos chose
            the epoch, so they are scored on request only.
    """
    if split is not None:
        return split
    name = default_split(experiment.data)
    if name != "test" and SOURCES[experiment.data.dataset].is_features:
        raise UsageError(
            "the features of this run have no test split; score the features of other videos with "
            "--features FOLDER, or the videos that chose the epoch with --split val"
        )
    return name


def evaluate_model(
    name_or_folder: str | Path,
    dataset: str,
    root: str | Path,
    *,
    split: str | None = None,
    data_options: Mapping[str, Any] | None = None,
    options: EvaluationOptions | None = None,
    frames: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluate any model on any dataset, with the frames that the model was built for.

    ``data_options`` go to the dataset's loader, ``video_folders`` among them. ``frames`` are
    settings ``name=value`` of `FrameSpec`; a note lists those that differ from the model's.
    """
    method = load(name_or_folder)
    method.frame_spec, notes = other_frames(method.frame_spec, frames)
    with join(device) as world:
        source = dataset_source(method, dataset, root, split, data_options, world, progress)
        training = None
        if options is not None and options.sinkhorn:
            training = dataset_source(method, dataset, root, "train", data_options, world, progress)
        result = evaluate_source(
            method.to(world.device), source, world, options, training=training, progress=progress
        )
    return dataclasses.replace(result, notes=(*result.notes, *notes))


def other_frames(spec: FrameSpec, settings: Sequence[str]) -> tuple[FrameSpec, list[str]]:
    """``spec`` with settings ``name=value``, and a note on each that differs from the model's."""
    changed = spec
    for setting in settings:
        name, value = split_assignment(setting, "num_frames=24")
        changed = override(changed, name, value, where="frames")
    lines = differences(to_plain(spec), to_plain(changed))
    return changed, [f"frames differ from those the model was built for: {line}" for line in lines]


def dataset_source(
    method: Method,
    dataset: str,
    root: str | Path,
    split: str | None,
    options: Mapping[str, Any] | None,
    world: World,
    progress: Progress | None = None,
) -> Source:
    """Open a split with the model's own frames, or all of a folder that has no splits."""
    spec = SOURCES[dataset]
    usual = method.habits.max_words or spec.max_words
    words = min(method.encoder.context_length or usual, usual)
    data = DataChoice(dataset, str(root), options or {}, method.frame_spec, max_words=words)
    check_data(data)
    if spec.whole is not None:
        return spec.whole(data.folder(), method)
    split = split or spec.default_split(data)
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    key = f"{Path(data.root).resolve()} {data.frames}".encode()
    cache = base / "eaglenet" / "frames" / hashlib.sha256(key).hexdigest()[:16]
    return load_source(data, split, method, cache=cache, device=world.device, progress=progress)
