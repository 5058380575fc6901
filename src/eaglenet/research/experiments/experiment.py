"""A whole experiment as one frozen value: what is trained, on what, how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglenet.core.errors import CheckpointError
from eaglenet.core.files import read_json, write_json
from eaglenet.core.settings import from_plain, override, split_assignment, to_plain
from eaglenet.encoders import ENCODERS
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.training.config import TrainingConfig

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class EncoderChoice:
    """Where features come from.

    kind: ``pretrained`` towers of any family (``source``: a name on the hub or a folder), or a
        family of ``ENCODERS``: ``clip`` and others are towers of shape ``config`` from random
        weights, ``features`` adapters of shape ``config`` over stored features, ``experts`` what
        several models saw, of the widths in ``config``.
    source: for towers from random weights, whose tokenizer to use: a folder, or ``demo``.
    logit_scale: where the temperature of a softmax loss starts (its logarithm); None leaves the
        encoder's own, CLIP's ln 100, which is too sharp for weights that know nothing yet.
    """

    kind: str
    source: str = ""
    config: Any = None
    logit_scale: float | None = None

    def __post_init__(self) -> None:
        if self.kind != PRETRAINED:
            ENCODERS[self.kind]


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs; saved beside its results as JSON."""

    name: str
    method: str
    method_config: Any
    encoder: EncoderChoice
    data: DataChoice
    training: TrainingConfig = field(default_factory=TrainingConfig)
    notes: str = ""

    def to_plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @staticmethod
    def from_plain(plain: Any) -> Experiment:
        """Read what :meth:`to_plain` gave; unknown names are errors."""
        if not isinstance(plain, Mapping) or "method" not in plain:
            raise CheckpointError("not an experiment: no `method` is named in it")
        experiment: Experiment = from_plain(Experiment, plain)
        spec = METHODS[experiment.method]
        return dataclasses.replace(
            experiment,
            method_config=from_plain(
                spec.config_class, experiment.method_config, where="method_config"
            ),
            encoder=_with_config(experiment.encoder),
        )

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_plain())

    @staticmethod
    def load(path: str | Path) -> Experiment:
        try:
            plain = read_json(Path(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as an experiment ({error})") from error
        return Experiment.from_plain(plain)

    def override(self, assignments: Iterable[str]) -> Experiment:
        """With `a.b=c` settings applied in order, each read as the type of its field.

        Setting ``method`` gives that method's default configuration.
        """
        changed = self
        for assignment in assignments:
            path, text = split_assignment(assignment, "training.epochs=3")
            if path == "method":
                changed = dataclasses.replace(
                    changed, method=text, method_config=METHODS[text].config_class()
                )
            else:
                changed = override(changed, path, text)
        return changed


def _with_config(choice: EncoderChoice) -> EncoderChoice:
    """Pretrained towers bring their own config; others have that of their family."""
    if choice.kind == PRETRAINED or not isinstance(choice.config, Mapping):
        return choice
    kind = ENCODERS[choice.kind].config_class
    return dataclasses.replace(
        choice, config=from_plain(kind, choice.config, where="encoder.config")
    )
