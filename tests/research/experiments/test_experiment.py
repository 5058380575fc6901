"""Settings travel through JSON and command lines, and mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglenet.core.errors import ConfigError, UnknownNameError
from eaglenet.core.settings import differences
from eaglenet.research.experiments.experiment import Experiment
from tiny import tiny_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """A whole experiment on stored features."""
    return tiny_experiment(tmp_path)


def test_an_experiment_survives_json(experiment: Experiment) -> None:
    assert Experiment.from_plain(json.loads(json.dumps(experiment.to_plain()))) == experiment


def test_an_experiment_survives_its_file(experiment: Experiment, tmp_path: Path) -> None:
    experiment.save(tmp_path / "experiment.json")
    assert Experiment.load(tmp_path / "experiment.json") == experiment


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("training.epochs=7", lambda e: e.training.epochs == 7),
        ("training.lr_head=1e-3", lambda e: e.training.lr_head == 1e-3),
        ("training.lr_head=1", lambda e: e.training.lr_head == 1.0),
        ("training.compile=true", lambda e: e.training.compile is True),
        ("training.select=test", lambda e: e.training.select == "test"),
        ("method_config.energy=none", lambda e: e.method_config.energy is None),
        ("method_config.energy=mlp", lambda e: e.method_config.energy == "mlp"),
        ("encoder.config.scaling=unit", lambda e: e.encoder.config.scaling == "unit"),
        ("data.frames.fast=true", lambda e: e.data.frames.fast is True),
        ("data.options.train=7k", lambda e: e.data.options == {"train": "7k"}),
        ("data.options.hold_out=3", lambda e: e.data.options == {"hold_out": 3}),
        ("data.root=a=b", lambda e: e.data.root == "a=b"),
        ("data.frames.num_frames=3", lambda e: e.method_config.num_frames == 3),
    ],
)
def test_an_override_is_read_as_the_type_of_its_field(
    experiment: Experiment, assignment: str, read: Callable[..., Any]
) -> None:
    assert read(experiment.override([assignment]))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.epoch=3", "did you mean 'epochs'"),
        ("training.epochs=three", "expected a whole number"),
        ("training.epochs=2.5", "expected a whole number"),
        ("training.compile=7", "expected true or false"),
        ("training.select=train", "'val' or 'test'"),
        ("training.epochs=0", "expected 1 or more"),
        ("training.warmup=1.5", "expected a fraction"),
        ("training", "for example training.epochs=3"),
        ("training=3", "set one of its fields"),
        ("training.epochs.x=3", "no inner settings"),
        ("method_config.energy=quantum", "'cosine' or 'bilinear' or 'mlp' or none"),
    ],
)
def test_a_wrong_override_says_what_was_expected(
    experiment: Experiment, assignment: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment.override([assignment])


def test_an_unknown_method_lists_the_known_ones(experiment: Experiment) -> None:
    with pytest.raises(UnknownNameError, match="eaglenet"):
        Experiment.from_plain({**experiment.to_plain(), "method": "eaglenett"})


def test_differences_name_the_path_and_both_values(experiment: Experiment) -> None:
    other = experiment.override(["training.seed=3", "data.frames.fast=true"])
    lines = differences(experiment.to_plain(), other.to_plain())
    assert lines == ["data.frames.fast: False -> True", "training.seed: 0 -> 3"]


def test_an_unknown_name_in_a_saved_experiment_is_an_error(experiment: Experiment) -> None:
    plain = experiment.to_plain()
    plain["training"]["speed"] = 9
    with pytest.raises(ConfigError, match="speed"):
        Experiment.from_plain(plain)
