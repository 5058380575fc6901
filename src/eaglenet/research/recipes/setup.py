"""Everything of an experiment that stands beside its method: towers, data, training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.training.config import TrainingConfig

Settings = Mapping[str, Any]
MethodSettings = Mapping[str, Settings]
"""Method -> the fields that differ from its defaults."""


@dataclass(frozen=True)
class Setup:
    """Data, towers and settings that a protocol gives a method.

    dim: width of the features. config: fields of the method's configuration that differ from its
    defaults.
    """

    encoder: EncoderChoice
    data: DataChoice
    training: TrainingConfig
    dim: int
    notes: str
    config: Settings = field(default_factory=dict)

    def experiment(self, name: str, method: str, changes: Settings) -> Experiment:
        """The experiment of ``method``; ``changes`` are the fields that its variants set."""
        kind = METHODS[method].config_class
        names = {spec.name for spec in dataclasses.fields(kind)}
        sizes = {"dim": self.dim, "num_frames": self.data.frames.num_frames}
        fitting = {name: value for name, value in sizes.items() if name in names}
        return Experiment(
            name=name,
            method=method,
            method_config=kind(**{**fitting, **self.config, **changes}),
            encoder=self.encoder,
            data=self.data,
            training=self.training,
            notes=self.notes,
        )
