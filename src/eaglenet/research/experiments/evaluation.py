"""Evaluate runs and models on data, and store the features of their towers."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import UsageError
from eaglenet.core.files import expand_home
from eaglenet.core.platform import cache_folder
from eaglenet.core.progress import Progress
from eaglenet.core.settings import differences, override, split_assignment, to_plain
from eaglenet.core.types import Expert, FrameSpec
from eaglenet.methods.base import Method
from eaglenet.methods.early.teachtext import teaching_vectors
from eaglenet.models.folder import load
from eaglenet.research.data import SOURCES
from eaglenet.research.data.experts import save_teacher
from eaglenet.research.data.sources import DataChoice, Source, selection_note
from eaglenet.research.evaluation.evaluate import EvaluationResult, check_abilities
from eaglenet.research.evaluation.metrics import EvaluationOptions
from eaglenet.research.evaluation.run_records import is_unfinished
from eaglenet.research.experiments.build import check_data, default_split, load_source
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.runs import frames_folder, load_run
from eaglenet.research.experiments.stored_data import (
    encode_batches,
    feature_notes,
    feature_source,
    read_features,
    refuse_selection_videos,
    write_features,
)
from eaglenet.research.training.distributed import World, join
from eaglenet.research.training.epochs import evaluate_source, fetch_batches, index_chunks


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
    """Evaluate the selected model of a run on a split, or on a features folder.

    split: see :func:`evaluated_split`. frames: see :func:`evaluate_model`. The precision ``auto``
    is ``fp16`` after training with fp16 weights, and ``fp32`` otherwise.
    """
    experiment, method = load_run(folder)
    is_choice = experiment.training.chooses_epoch
    notes = [selection_note(experiment.training.select, is_choice=is_choice)]
    if is_unfinished(expand_home(folder)):
        notes.append("training is not finished; run the command of the run again to continue it")
    spec, frame_notes = other_frames(experiment.data.frames, frames)
    data = dataclasses.replace(experiment.data, frames=spec)
    notes += frame_notes
    options = options or EvaluationOptions()
    if options.precision == "auto":
        precision = "fp16" if experiment.training.precision == "fp16_weights" else "fp32"
        options = dataclasses.replace(options, precision=precision)
    check_abilities(method, options)
    if options.sinkhorn and features is not None:
        raise UsageError(
            "Sinkhorn offsets need training videos: leave out --features or --sinkhorn"
        )
    name = "" if features is not None else evaluated_split(experiment, split)
    training = None
    with join(device) as world:
        method = method.to(world.device)
        start = time.perf_counter()
        if features is not None:
            feature_split = read_features(expand_home(features), method)
            source = feature_source(feature_split)
            notes += feature_notes(data, feature_split)
        else:
            if name == "train":
                notes.append("the run was trained on this split: not a score on unseen videos")
            elif name == experiment.training.select == "val" and is_choice:
                notes.append("this split chose the epoch: somewhat high for unseen videos")
            cache = frames_folder(expand_home(folder))
            source = load_source(
                data, name, method, cache=cache, device=world.device, progress=progress
            )
            if options.sinkhorn:
                training = load_source(
                    data, "train", method, cache=cache, device=world.device, progress=progress
                )
            if name == "test":
                refuse_selection_videos(data, source.video_ids)
        seconds = time.perf_counter() - start
        result = evaluate_source(
            method, source, world, options, training=training, progress=progress
        )
    notes = [*result.notes, *notes]
    return dataclasses.replace(result, split=name, notes=tuple(notes), preparation_seconds=seconds)


def evaluated_split(experiment: Experiment, split: str | None) -> str:
    """Return ``split``, or the default split of the experiment's data.

    Raises:
        UsageError: ``split`` is None and stored features have no test split. Their validation
            videos chose the epoch, so they are scored only on request.
    """
    if split is not None:
        return split
    name = default_split(experiment.data)
    if name != "test" and SOURCES[experiment.data.dataset].is_features:
        raise UsageError(
            "the features of this run have no test split; score other videos with --features "
            "FOLDER, or the videos that chose the epoch with --split val"
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

    data_options: arguments of the dataset's loader, such as ``video_folders``. frames: changes to
    the model's ``FrameSpec`` as ``name=value``; the result has a note on each.
    """
    method = load(name_or_folder)
    if options is not None:
        check_abilities(method, options)
    method.frame_spec, notes = other_frames(method.frame_spec, frames)
    with join(device) as world:
        start = time.perf_counter()
        source = dataset_source(method, dataset, root, split, data_options, world, progress)
        training = None
        if options is not None and options.sinkhorn:
            training = dataset_source(method, dataset, root, "train", data_options, world, progress)
        seconds = time.perf_counter() - start
        result = evaluate_source(
            method.to(world.device), source, world, options, training=training, progress=progress
        )
    return dataclasses.replace(result, notes=(*result.notes, *notes), preparation_seconds=seconds)


def other_frames(spec: FrameSpec, settings: Sequence[str]) -> tuple[FrameSpec, list[str]]:
    """Apply settings ``name=value`` to ``spec``; also return a note on each difference."""
    new_spec = spec
    for setting in settings:
        name, value = split_assignment(setting, "num_frames=24")
        new_spec = override(new_spec, name, value, where="frames")
    lines = differences(to_plain(spec), to_plain(new_spec))
    return new_spec, [f"frames differ from those the model was built for: {line}" for line in lines]


def dataset_source(
    method: Method,
    dataset: str,
    root: str | Path,
    split: str | None,
    options: Mapping[str, Any] | None,
    world: World,
    progress: Progress | None = None,
) -> Source:
    """Open a split with the frames of the model, or a whole folder of data without splits."""
    spec = SOURCES[dataset]
    max_words = method.habits.max_words or spec.max_words
    max_words = min(method.encoder.context_length or max_words, max_words)
    data = DataChoice(dataset, str(root), options or {}, method.frame_spec, max_words=max_words)
    check_data(data)
    if spec.open_all is not None:
        return spec.open_all(data.folder(), method)
    split = split or spec.default_split(data)
    key = f"{Path(data.root).resolve()} {data.frames}".encode()
    cache = cache_folder() / "frames" / hashlib.sha256(key).hexdigest()[:16]
    return load_source(data, split, method, cache=cache, device=world.device, progress=progress)


def export_features(
    name_or_folder: str,
    dataset: str,
    root: str | Path,
    output: str | Path,
    *,
    split: str = "train",
    options: Mapping[str, Any] | None = None,
    experts: Mapping[str, str] | None = None,
    words: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Source:
    """Encode a split with the towers of a model into the new features folder ``output``.

    experts: further models, by name; their features of the frames are added. words: add token
    features, token ids and graphs of the texts, which ``experts`` adds too.
    """
    output = expand_home(output)
    if output.exists():
        raise UsageError(f"{output} exists and is not overwritten; choose another --output")
    with join(device) as world:
        if world.size > 1:
            raise UsageError("features are written by one process: run this without torchrun")

        def open_with(model: str) -> tuple[Method, Source]:
            method = load(model)
            source = dataset_source(method, dataset, root, split, options, world, progress)
            return method.to(world.device).eval(), source

        @torch.inference_mode()
        def encode_expert(model: str) -> Expert:
            """Encode the same videos with another model."""
            method, expert_source = open_with(model)
            if list(expert_source.video_ids) != list(source.video_ids):
                raise UsageError(
                    f"{model} read other videos of {dataset} {split} than the first model; decode "
                    "all of them first with `eaglenet data cache`"
                )
            chunks, title = index_chunks(source.num_videos, 32), f"encoding videos with {model}"
            batches = fetch_batches(expert_source.videos, chunks, title, progress)
            videos = encode_batches(method.encode_video, batches, world.device)
            return Expert(videos.frames, videos.mask)

        method, source = open_with(name_or_folder)
        write_features(
            method,
            source,
            output,
            model=name_or_folder,
            dataset=dataset,
            split=split,
            experts={
                name: (model, encode_expert(model)) for name, model in (experts or {}).items()
            },
            words=words,
            progress=progress,
        )
    return source


def write_teacher(name_or_folder: str, folder: Path, name: str) -> tuple[int, int]:
    """Encode a features folder with a model, and store the vectors in it as a teacher.

    The teacher may read other token features of the folder than its student. Returns the numbers of
    texts and videos.
    """
    if not name.replace("-", "").isalnum():
        raise UsageError(f"teacher {name!r}: use only letters, digits and -")
    if (folder / f"teacher_{name}_text.npy").exists():
        raise UsageError(f"{folder} already has a teacher {name!r}; choose another --name")
    method = load(name_or_folder).eval()
    split = read_features(folder, method)
    with torch.inference_mode():
        texts = [
            teaching_vectors(method, method.encode_text(split.text_batch(chunk)))
            for chunk in index_chunks(split.num_texts, 256)
        ]
        videos = [
            teaching_vectors(method, method.encode_video(split.video_batch(chunk)))
            for chunk in index_chunks(split.num_videos, 64)
        ]
    save_teacher(folder, name, torch.cat(texts), torch.cat(videos))
    return split.num_texts, split.num_videos
