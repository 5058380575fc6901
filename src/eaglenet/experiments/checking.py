"""A look at all that an experiment needs, without decoding or training: every fault at once.

A run stops at the first thing that is missing. Whoever sets a machine up wants the whole list: data
and model come from different places, and each may take an hour to fetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eaglenet.data import SOURCES
from eaglenet.data.sources import Findings
from eaglenet.errors import EagleNetError
from eaglenet.experiments.build import (
    build_method,
    check_data,
    check_fit,
    describe_findings,
    look_at_split,
)
from eaglenet.experiments.experiment import Experiment
from eaglenet.methods.base import Method
from eaglenet.training.distributed import World


class SeveralFaultsError(EagleNetError):
    """More than one thing is missing; a line for each."""


def check_experiment(experiment: Experiment, world: World) -> tuple[Method, dict[str, Any]]:
    """The method and what is found of each split; else an error that names all that is missing."""
    faults: list[EagleNetError] = []
    found = look_at_files(experiment, faults)
    method = None
    with gathered(faults):
        method = build_method(experiment)
        check_fit(method, experiment.data)
    if method is not None and not faults:
        for split in splits_of(experiment):
            if split not in found:
                with gathered(faults):
                    found[split] = look_at_split(experiment.data, split, method)
    described: dict[str, Any] = {}
    if "train" in found:
        with gathered(faults):
            described = describe_findings(experiment, found, world)
    if len(faults) > 1:
        told = "\n".join(f"  {fault}" for fault in faults)
        raise SeveralFaultsError(f"{len(faults)} things stand in the way of this run:\n{told}")
    if faults or method is None:
        raise faults[0]
    return method, described


def splits_of(experiment: Experiment) -> tuple[str, str]:
    """The splits that training needs."""
    return "train", experiment.training.select


def look_at_files(experiment: Experiment, faults: list[EagleNetError]) -> dict[str, Findings]:
    """What is found of the splits without a model, which alone can open stored features."""
    found: dict[str, Findings] = {}
    with gathered(faults):
        check_data(experiment.data)
        look = SOURCES[experiment.data.dataset].look
        for split in splits_of(experiment) if look is not None else ():
            with gathered(faults):
                found[split] = look_at_split(experiment.data, split, None)
    return found


@contextmanager
def gathered(faults: list[EagleNetError]) -> Iterator[None]:
    """Keep an error for later; the same one of two splits counts once."""
    try:
        yield
    except EagleNetError as error:
        if str(error) not in map(str, faults):
            faults.append(error)
