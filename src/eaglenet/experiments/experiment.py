"""A whole experiment as one frozen value: what is trained, on what, how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eaglenet import foreign
from eaglenet.errors import CheckpointError, ConfigError
from eaglenet.methods import METHODS
from eaglenet.plain_values import from_plain, override, to_plain
from eaglenet.training.config import TrainingConfig
from eaglenet.types import FrameSpec

EncoderKind = Literal["pretrained", "clip", "features"]


@dataclass(frozen=True)
class EncoderChoice:
    """Where features come from.

    kind: ``pretrained`` CLIP towers (``source``: a name on the hub or a folder), ``clip`` towers of
        shape ``config`` from random weights, or ``features``: adapters of shape ``config`` over
        stored features.
    source: for ``clip``, whose tokenizer to use: a folder, or ``demo``.
    logit_scale: where the temperature of a softmax loss starts (its logarithm); None leaves the
        encoder's own, CLIP's ln 100, which is too sharp for weights that know nothing yet.
    """

    kind: EncoderKind
    source: str = ""
    config: Any = None
    logit_scale: float | None = None


@dataclass(frozen=True)
class DataChoice:
    """A dataset and how its videos become frames.

    dataset: a name that `eaglenet data` knows, ``demo`` (rendered in memory) or ``features``.
    root: the folder with annotations, videos or features. options: what the dataset's loader takes.
    cache: the folder for decoded frames; empty means beside the run.
    val_videos: videos held out where a folder of features has no validation part.
    """

    dataset: str
    root: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    frames: FrameSpec = field(default_factory=FrameSpec)
    max_words: int = 32
    cache: str = ""
    workers: int = 4
    val_videos: int = 500


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

    def save(self, path: Path) -> None:
        from eaglenet.experiments.environment import write_json

        write_json(path, self.to_plain())

    @staticmethod
    def load(path: Path) -> Experiment:
        try:
            plain = foreign.read_json(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as an experiment ({error})") from error
        return Experiment.from_plain(plain)

    def override(self, assignments: Iterable[str]) -> Experiment:
        """With `a.b=c` settings applied in order, each read as the type of its field.

        Setting ``method`` gives that method's default configuration.
        """
        changed = self
        for assignment in assignments:
            path, equals, text = assignment.partition("=")
            if not equals or not path:
                raise ConfigError(
                    f"cannot read the setting {assignment!r}; write it as section.field=value, "
                    "for example training.epochs=3"
                )
            if path == "method":
                changed = dataclasses.replace(
                    changed, method=text, method_config=METHODS[text].config_class()
                )
            else:
                changed = override(changed, path, text)
        return changed


def encoder_config_class(kind: EncoderKind) -> type[Any] | None:
    """The dataclass that describes an encoder of this kind; pretrained ones bring their own."""
    from eaglenet.encoders.clip import ClipConfig
    from eaglenet.encoders.features import FeatureConfig

    classes: dict[str, type[Any]] = {"clip": ClipConfig, "features": FeatureConfig}
    return classes.get(kind)


def _with_config(choice: EncoderChoice) -> EncoderChoice:
    kind = encoder_config_class(choice.kind)
    if kind is None or not isinstance(choice.config, Mapping):
        return choice
    return dataclasses.replace(
        choice, config=from_plain(kind, choice.config, where="encoder.config")
    )
