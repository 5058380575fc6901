"""Run folders: train into one, resume it, open it."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import CheckpointError, ConfigError, UsageError
from eaglenet.core.files import LockHeldError, hold_lock, read_json, write_json
from eaglenet.core.progress import Progress
from eaglenet.core.run_folder import EXPERIMENT, MANIFEST, MODEL, RESULT
from eaglenet.core.settings import differences
from eaglenet.methods.base import Method
from eaglenet.models.folder import load
from eaglenet.research.data.sources import DataChoice, Source, few_videos
from eaglenet.research.environment import describe_environment
from eaglenet.research.experiments.build import build_method, check_data, check_fit, load_source
from eaglenet.research.experiments.experiment import Experiment
from eaglenet.research.training.checkpoint import Position, check_board, read_log
from eaglenet.research.training.distributed import (
    World,
    barrier,
    join,
    leave,
    sum_over_ranks,
    wait_for_main,
)
from eaglenet.research.training.memory import reset_peak_memory
from eaglenet.research.training.trainer import Trainer

# The same bits again on a GPU.


@contextmanager
def repeatable(device: torch.device, is_on: bool) -> Iterator[None]:
    """On a GPU choose kernels whose sums do not depend on timing; a CPU's never do.

    An operation without such a kernel raises. Only warning of it would not do: PyTorch then leaves
    the backward pass of attention as it is, too.
    """
    if device.type != "cuda" or not is_on:
        yield
        return
    # Read when cuBLAS starts; without it matrix products may choose another algorithm each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


logger = logging.getLogger(__name__)
LOCK = ".lock"
SELECTION_NOTES = {
    "val": "the epoch was chosen on the validation split",
    "test": "the epoch was chosen on the TEST split, as published rows do: not an unbiased score",
}


@dataclass(frozen=True)
class Run:
    """A run folder and what `result.json` says of it."""

    folder: Path
    experiment: Experiment
    result: dict[str, Any]
    was_finished: bool = False
    """The run was there, finished: nothing was trained."""


def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    device: str = "auto",
    progress: Progress | None = None,
    tensorboard: bool = False,
) -> Run:
    """Train into ``folder``, or go on where the same experiment stopped there."""
    folder = Path(folder).expanduser()
    if tensorboard:
        check_board()
    world = join(device)
    try:
        finished = find_result(experiment, folder)
        if finished is not None:
            return Run(folder, experiment, finished, was_finished=True)
        with run_lock(folder, world):
            begin_run(experiment, folder, world)
            result = _train(experiment, folder, world, progress, tensorboard)
        return Run(folder, experiment, result)
    finally:
        leave(world)


def _train(
    experiment: Experiment,
    folder: Path,
    world: World,
    progress: Progress | None,
    tensorboard: bool,
) -> dict[str, Any]:
    method, sources = prepare(experiment, folder, world, progress)
    if world.is_main:
        write_manifest(experiment, folder, sources, method, world)
    trainer = Trainer(
        experiment.training,
        method,
        sources["train"],
        sources[experiment.training.select],
        folder,
        world,
        experiment=experiment.to_plain(),
        progress=progress,
        tensorboard=tensorboard,
    )
    reset_peak_memory(world.device)
    with repeatable(world.device, experiment.training.deterministic):
        position = trainer.fit()
    result = summarise(experiment, position, method)
    if world.is_main:
        write_json(folder / RESULT, result)
    barrier(world, "waiting for rank 0 to write the result")
    return result


def frames_folder(folder: Path) -> Path:
    """Where a run's frames are cached: in it, or where its comparison keeps them for all.

    Runs of a comparison are at ``METHOD/seed-0``, those of its search at ``search/METHOD/VALUE``.
    """
    shared = (candidate / "frames" for candidate in folder.absolute().parents[1:3])
    return next((candidate for candidate in shared if candidate.is_dir()), folder / "frames")


def with_jitter(data: DataChoice) -> DataChoice:
    """The data of training: more frames than a step shows, where ``data.jitter`` asks for them."""
    num_frames = data.jitter * data.frames.num_frames
    return dataclasses.replace(data, frames=dataclasses.replace(data.frames, num_frames=num_frames))


def prepare(
    experiment: Experiment, folder: Path, world: World, progress: Progress | None = None
) -> tuple[Method, dict[str, Source]]:
    """Method and splits, built and checked; rank 0 decodes first, the others find its cache."""
    check_data(experiment.data)
    method = build_method(experiment)
    check_fit(method, experiment.data)
    names = ("train", experiment.training.select)
    sources: dict[str, Source] = {}
    for turn in ("first", "others"):
        if world.is_main == (turn == "first"):
            for name in names:
                data = experiment.data
                sources[name] = load_source(
                    with_jitter(data) if name == "train" else data,
                    name,
                    method,
                    cache=frames_folder(folder),
                    device=world.device,
                    progress=progress if world.is_main else None,
                )
        wait_for_main(world, "waiting for rank 0 to prepare the data")
    if world.is_main:
        for name in names:
            for remark in few_videos(sources[name].num_videos):
                logger.warning("%s: %s", name, remark)
    return method, sources


def find_result(experiment: Experiment, folder: Path) -> dict[str, Any] | None:
    """Check that the folder is free or holds this experiment. Gives the result if finished.

    A folder in which no step was made (a wrong path, say) may be started with other settings.
    """
    path = folder / EXPERIMENT
    if path.exists() and has_begun(folder):
        lines = differences(Experiment.load(path).to_plain(), experiment.to_plain())
        if lines:
            raise ConfigError(
                f"{folder} holds another experiment; it differs in {'; '.join(lines)} "
                "(there -> asked). Choose another --output or the same settings"
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


def has_begun(folder: Path) -> bool:
    return any(entry.event == "step" for entry in read_log(folder))


@contextmanager
def run_lock(folder: Path, world: World) -> Iterator[None]:
    """Hold the run folder for training, or say who does: rank 0 does so for all ranks."""
    with ExitStack() as held:
        holder = None
        if world.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(hold_lock(folder / LOCK))
            except LockHeldError as error:
                holder = str(error)
        if sum_over_ranks(torch.tensor(int(holder is not None)), world):
            raise UsageError(
                f"{folder} is being trained by {holder or 'another eaglenet'}; wait for it to "
                "finish, or choose another --output"
            )
        yield


def begin_run(experiment: Experiment, folder: Path, world: World) -> None:
    """Write down what is trained, where that was not done yet."""
    if world.is_main and not has_begun(folder):
        experiment.save(folder / EXPERIMENT)
    barrier(world, "opening the run folder")


def write_manifest(
    experiment: Experiment, folder: Path, sources: dict[str, Source], method: Method, world: World
) -> None:
    """What made this run; a resumed run lists the attempts before it under ``earlier``."""
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
            "processes": world.size,
            "device": str(world.device),
            "data": {name: source.describe() for name, source in sources.items()},
            "selection": SELECTION_NOTES[experiment.training.select],
            "parameters": count_parameters(method),
            "earlier": earlier,
        },
    )


def count_parameters(method: Method) -> dict[str, int]:
    """Scalars in the encoder and in the rest, and how many of all are trained."""
    total = sum(parameter.numel() for parameter in method.parameters())
    in_encoder = sum(parameter.numel() for parameter in method.encoder.parameters())
    trained = sum(parameter.numel() for parameter in method.parameters() if parameter.requires_grad)
    return {"encoder": in_encoder, "head": total - in_encoder, "trained": trained}


def summarise(experiment: Experiment, position: Position, method: Method) -> dict[str, Any]:
    """`result.json`: the selected epoch's metrics, the history, time and memory.

    Seconds and peak are of all attempts together where a run was interrupted.
    """
    best = [record for record in position.history if record["epoch"] == position.best_epoch]
    return {
        "experiment": experiment.name,
        "method": experiment.method,
        "seed": experiment.training.seed,
        "selected_epoch": position.best_epoch,
        "selected_on": experiment.training.select,
        "selection": SELECTION_NOTES[experiment.training.select],
        "metrics": best[0] if best else None,
        "history": position.history,
        "parameters": count_parameters(method),
        "pairs": position.pairs,
        "seconds": round(position.seconds, 2),
        "epoch_seconds": position.epoch_seconds,
        "peak_memory_bytes": position.peak_bytes,
    }


def load_run(folder: str | Path) -> tuple[Experiment, Method]:
    """A finished (or at least once evaluated) run's experiment and selected model."""
    folder = Path(folder).expanduser()
    path = folder / EXPERIMENT
    if not folder.exists():
        raise CheckpointError(
            f"{folder}: there is no such run folder; to evaluate a model by its name or folder say "
            "on what with --dataset"
        )
    if not path.exists():
        raise CheckpointError(
            f"{folder} is not a run folder: it has no {EXPERIMENT}; to evaluate a model by "
            "its name or folder say on what with --dataset"
        )
    if not (folder / MODEL).is_dir():
        raise CheckpointError(
            f"{folder} has no selected model yet: it is saved after the first evaluation; resume "
            "the run with the same `eaglenet train` command"
        )
    return Experiment.load(path), load(str(folder / MODEL))
