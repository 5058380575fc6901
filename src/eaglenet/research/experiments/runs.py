"""Run folders: train, resume, extend and load runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import (
    CheckpointError,
    ConfigError,
    EagleNetError,
    UnknownNameError,
    UsageError,
)
from eaglenet.core.files import LockHeldError, expand_home, hold_lock, read_json, write_json
from eaglenet.core.progress import Progress
from eaglenet.core.registry import imported_modules
from eaglenet.core.settings import differences
from eaglenet.methods.base import Method
from eaglenet.models.files import EXPERIMENT, MODEL
from eaglenet.models.folder import load
from eaglenet.research.data import SOURCES
from eaglenet.research.data.records import DATASETS
from eaglenet.research.data.sources import Source, few_videos, selection_note
from eaglenet.research.evaluation.run_records import (
    MANIFEST,
    RESULT,
    describe_environment,
    read_log,
    reset_peak_memory,
)
from eaglenet.research.experiments.build import (
    build_method,
    check_data,
    check_fit,
    count_parameters,
    inspect_split,
    load_source,
    splits_of,
)
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.experiments.stored_data import save_with_towers
from eaglenet.research.training.checkpoint import Position, check_boards
from eaglenet.research.training.distributed import (
    World,
    barrier,
    join,
    sum_over_ranks,
    wait_for_main,
)
from eaglenet.research.training.epochs import pair_samplers
from eaglenet.research.training.trainer import Trainer

logger = logging.getLogger(__name__)
LOCK = ".lock"


@dataclass(frozen=True)
class Run:
    """A run folder with its ``result.json``; ``was_finished`` if nothing had to be trained."""

    folder: Path
    experiment: Experiment
    result: dict[str, Any]
    was_finished: bool = False


def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    device: str = "auto",
    progress: Progress | None = None,
    boards: Sequence[str] = (),
) -> Run:
    """Train into ``folder``, or resume the same experiment there.

    A finished run is extended if ``experiment`` differs from it only in a larger number of epochs.
    ``boards`` (tensorboard, wandb, trackio) show the records of ``log.jsonl``.
    """
    folder = expand_home(folder)
    experiment = with_absolute_paths(experiment)
    check_boards(boards)
    with join(device) as world:
        result = find_result(experiment, folder)
        if result is not None:
            return Run(folder, experiment, result, was_finished=True)
        # Built before anything is written, so that a refused run leaves nothing behind.
        method = build_checked(experiment, world)
        with run_lock(folder, world):
            with remove_refused_run(folder, world):
                begin_run(experiment, folder, world)
                sources = open_splits(experiment, folder, method, world, progress)
                trainer = Trainer(
                    experiment.training,
                    method,
                    sources["train"],
                    sources[experiment.training.select],
                    folder,
                    world,
                    experiment=experiment.to_plain(),
                    progress=progress,
                    boards=boards,
                )
                if world.is_main:
                    # The trainer has frozen and adapted the towers, whose parameters it counts.
                    write_manifest(experiment, folder, sources, method, world)
            reset_peak_memory(world.device)
            with deterministic_kernels(world.device, experiment.training.deterministic):
                position = trainer.fit()
            result = summarise(experiment, position, method)
            split = experiment.training.select
            result["selection"] = selection_note(
                split,
                is_choice=len(position.history) > 1,
                num_videos=sources[split].num_videos,
            )
            if world.is_main:
                if method.tokenizer is None and experiment.data.dataset in DATASETS:
                    # Raises for methods with adapters, which need stored features.
                    with suppress(UsageError):
                        save_with_towers(folder)
                for name in ("train", "val", "test"):
                    # An evaluation of the model that was selected before.
                    (folder / f"evaluation-{name}.json").unlink(missing_ok=True)
                write_json(folder / RESULT, result)
            barrier(world, "waiting for rank 0 to write the result")
        return Run(folder, experiment, result)


@contextmanager
def deterministic_kernels(device: torch.device, is_on: bool) -> Iterator[None]:
    """Use deterministic kernels on a GPU within the block; those of a CPU always are.

    An operation without such a kernel raises. If it only warned, PyTorch would still use the
    non-deterministic backward pass of attention.
    """
    if device.type != "cuda" or not is_on:
        yield
        return
    # cuBLAS reads it at its start. Without it, products may use another algorithm each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    previous = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(previous)


def frames_folder(folder: Path) -> Path:
    """Return the folder of decoded frames: that of the run, or of the comparison it belongs to.

    Runs of a comparison are in ``METHOD/seed-0``, those of its search in ``search/METHOD/VALUE``.
    """
    candidates = (parent / "frames" for parent in folder.absolute().parents[1:3])
    return next((candidate for candidate in candidates if candidate.is_dir()), folder / "frames")


def build_checked(experiment: Experiment, world: World) -> Method:
    """Build the method; raise if its data cannot be read, does not fit it, or fills no batch."""
    check_data(experiment.data)
    if SOURCES[experiment.data.dataset].inspect is not None:
        summary = inspect_split(experiment.data, "train", None)
        pair_samplers(experiment.training, summary.video_of_text, world)
    method = build_method(experiment)
    check_fit(method, experiment.data)
    return method


def open_splits(
    experiment: Experiment,
    folder: Path,
    method: Method,
    world: World,
    progress: Progress | None = None,
) -> dict[str, Source]:
    """Open the splits; rank 0 decodes first, then the other ranks read its cache."""
    names = splits_of(experiment)
    sources: dict[str, Source] = {}
    for is_main in (True, False):
        if world.is_main == is_main:
            for name in names:
                sources[name] = load_source(
                    experiment.data.for_training(name),
                    name,
                    method,
                    cache=frames_folder(folder),
                    device=world.device,
                    progress=progress if world.is_main else None,
                )
        wait_for_main(world, "waiting for rank 0 to prepare the data")
    if world.is_main:
        for name in names:
            for warning in few_videos(sources[name].num_videos):
                logger.warning("%s: %s", name, warning)
    return sources


def find_result(experiment: Experiment, folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished run; None if there is something to train.

    A run that has not made a step may be started again with other settings.

    Raises:
        ConfigError: the folder contains another experiment, or is not a run folder.
    """
    path = folder / EXPERIMENT
    experiment = with_absolute_paths(experiment)
    if path.exists() and has_begun(folder):
        old_experiment = with_absolute_paths(Experiment.load(path))
        if is_extension(old_experiment, experiment):
            return None
        old, new = old_experiment.to_plain(), experiment.to_plain()
        if old["method"] != new["method"]:
            # The settings of two methods always differ, and so do the names of the runs.
            for plain in (old, new):
                del plain["method_config"], plain["name"]
        lines = differences(old, new)
        if lines:
            raise ConfigError(
                f"{folder} contains another experiment; it differs in {'; '.join(lines)} "
                "(there -> requested). Choose another --output or the same settings"
            )
    elif (
        not path.exists()
        and folder.is_dir()
        and any(not path.name.startswith(".") for path in folder.iterdir())
    ):
        raise ConfigError(f"{folder} is not empty and not a run; choose another --output")
    if not (folder / RESULT).exists():
        return None
    result: dict[str, Any] = read_json(folder / RESULT)
    return result


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """Return an experiment whose data is also found from other folders."""
    data = experiment.data
    if not SOURCES[data.dataset].needs_folder:
        return experiment
    options = dict(data.options)
    for name in ("test_root", "video_folders"):
        paths = options.get(name)
        if isinstance(paths, list | tuple):
            options[name] = [_absolute(path) for path in paths]
        elif paths:
            options[name] = _absolute(paths)
    root, cache = _absolute(data.root), _absolute(data.cache)
    return replace(experiment, data=replace(data, root=root, cache=cache, options=options))


def _absolute(path: str | Path) -> str:
    return str(expand_home(path).absolute()) if path else ""


def is_extension(old: Experiment, new: Experiment) -> bool:
    """Return whether ``new`` is ``old`` with more epochs."""
    training = replace(old.training, epochs=new.training.epochs)
    is_same = replace(old, training=training).to_plain() == new.to_plain()
    return is_same and new.training.epochs > old.training.epochs


def has_begun(folder: Path) -> bool:
    return any(entry.event == "step" for entry in read_log(folder))


@contextmanager
def run_lock(folder: Path, world: World) -> Iterator[None]:
    """Lock the run folder for training; rank 0 does so for all ranks."""
    with ExitStack() as stack:
        holder = None
        if world.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(hold_lock(folder / LOCK))
            except LockHeldError as error:
                holder = str(error)
        if sum_over_ranks(torch.tensor(int(holder is not None)), world):
            raise UsageError(
                f"{folder} is being trained by {holder or 'another eaglenet'}; wait until it has "
                "finished, or choose another --output"
            )
        yield


@contextmanager
def remove_refused_run(folder: Path, world: World) -> Iterator[None]:
    """Remove the files of a new run if its data or settings turn out to be unusable.

    A folder with other files, such as decoded frames, remains a run that can be continued.
    """
    try:
        yield
    except EagleNetError:
        files = {path.name for path in folder.iterdir()} - {LOCK}
        if world.is_main and files <= {EXPERIMENT, MANIFEST}:
            for name in files:
                (folder / name).unlink()
        raise


def begin_run(experiment: Experiment, folder: Path, world: World) -> None:
    """Save the experiment of a new run; archive the results of a run that is extended."""
    path = folder / EXPERIMENT
    if world.is_main:
        if not has_begun(folder):
            experiment.save(path)
        elif is_extension(old := with_absolute_paths(Experiment.load(path)), experiment):
            archive = folder / f"epochs-{old.training.epochs}"
            archive.mkdir(exist_ok=True)
            for pattern in (RESULT, "evaluation*.json", "ranks*.npz", "scoring-*.json"):
                for file in folder.glob(pattern):
                    file.replace(archive / file.name)
            experiment.save(path)
    barrier(world, "opening the run folder")


def write_manifest(
    experiment: Experiment, folder: Path, sources: dict[str, Source], method: Method, world: World
) -> None:
    """Write versions, hardware, command and data of this attempt, and list the earlier ones."""
    path = folder / MANIFEST
    earlier: list[Any] = []
    if path.exists():
        old = read_json(path)
        earlier = [*old.pop("earlier", []), {"started": old["started"], "command": old["command"]}]
    write_json(
        path,
        {
            "experiment": experiment.name,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **describe_environment(),
            "imports": list(imported_modules()),
            "processes": world.size,
            "device": str(world.device),
            "data": {name: source.describe() for name, source in sources.items()},
            "selection": selection_note(
                experiment.training.select, is_choice=experiment.training.chooses_epoch
            ),
            "parameters": count_parameters(method),
            "earlier": earlier,
        },
    )


def summarise(experiment: Experiment, position: Position, method: Method) -> dict[str, Any]:
    """Make the content of ``result.json``; time and memory cover all attempts of the run."""
    best = [record for record in position.history if record["epoch"] == position.best_epoch]
    return {
        "experiment": experiment.name,
        "method": experiment.method,
        "seed": experiment.training.seed,
        "selected_epoch": position.best_epoch,
        "selected_on": experiment.training.select,
        "metrics": best[0] if best else None,
        "history": position.history,
        "parameters": count_parameters(method),
        "pairs": position.pairs,
        "seconds": round(position.seconds, 2),
        "epoch_seconds": position.epoch_seconds,
        "peak_memory_bytes": position.peak_bytes,
    }


def load_run(folder: str | Path) -> tuple[Experiment, Method]:
    """Load the experiment and the selected model of a run."""
    folder = expand_home(folder)
    experiment = load_experiment(folder)
    if not (folder / MODEL).is_dir():
        raise CheckpointError(
            f"{folder} has no model yet: it is saved after the first evaluation; resume the run "
            "with the same `eaglenet train` command"
        )
    return experiment, load(str(folder / MODEL))


def load_experiment(folder: Path) -> Experiment:
    """Load the experiment of a run folder.

    Raises:
        CheckpointError: ``folder`` is not a run folder.
        UnknownNameError: the experiment needs a module that is not imported.
    """
    advice = "to evaluate a model by its name or folder, name the data with --data"
    if not folder.exists():
        raise CheckpointError(f"{folder}: no such run folder; {advice}")
    if not (folder / EXPERIMENT).exists():
        raise CheckpointError(f"{folder} is not a run folder: it has no {EXPERIMENT}; {advice}")
    try:
        return Experiment.load(folder / EXPERIMENT)
    except UnknownNameError as error:
        manifest = folder / MANIFEST
        modules = read_json(manifest).get("imports", []) if manifest.exists() else []
        if not modules:
            raise
        options = " ".join(f"--import {module}" for module in modules)
        raise UnknownNameError(
            f"{folder} was trained with {options}; add it to the command ({error})"
        ) from error
