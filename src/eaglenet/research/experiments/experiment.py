"""Experiments: all settings of a run in one frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eaglenet.research.experiments.stored_data  # noqa: F401  (registers its sources)
from eaglenet.core.errors import CheckpointError, ConfigError
from eaglenet.core.files import expand_home, read_json, write_json
from eaglenet.core.settings import from_plain, override, split_assignment, to_plain
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data import SOURCES
from eaglenet.research.data.features import stored_widths
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.training.config import TrainingConfig

PRETRAINED = "pretrained"


class NoEffectError(ConfigError):
    """The setting at ``path`` changes nothing in an experiment."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"--set {path}=... would have no effect: {reason}")
        self.path = path


@dataclass(frozen=True)
class EncoderChoice:
    """Encoder of an experiment.

    kind: ``pretrained`` for pretrained towers of any family, or a family of ``ENCODERS``:
        ``features`` for stored features, ``experts`` for stored features of several models, another
        family (``clip``) for towers with random weights.
    source: for pretrained towers, a name on the hub or a folder; for random weights, the tokenizer:
        a folder, or ``demo``.
    config: configuration of the family; for stored features, their widths.
    logit_scale: logarithm of the initial temperature of a softmax loss. None keeps that of the
        encoder; CLIP's ln 100 is too high for random weights.
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
    """All settings of a run, saved as ``experiment.json`` in its folder."""

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
        """Build an experiment from the result of :meth:`to_plain`; raise on unknown names."""
        if not isinstance(plain, Mapping) or "method" not in plain:
            raise CheckpointError("not an experiment: `method` is missing")
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
        """Apply ``a.b=c`` settings in order, each parsed as the type of its field.

        ``data.frames.num_frames`` also sets the number of frames of the method, and ``data.root``
        the widths of stored features.

        Raises:
            ConfigError: a setting is unknown or impossible.
            NoEffectError: a setting would have no effect.
        """
        experiment = self
        paths: list[str] = []
        for assignment in assignments:
            path, text = split_assignment(assignment, "training.epochs=3")
            if path in REFUSED:
                raise ConfigError(f"--set {assignment}: {REFUSED[path]}")
            experiment = override(experiment, path, text)
            paths.append(path)
        for path in paths:
            has_effect, reason = EFFECTS.get(path, (lambda experiment: True, ""))
            if not has_effect(experiment):
                raise NoEffectError(path, reason)
        if "data.frames.num_frames" in paths and hasattr(experiment.method_config, "num_frames"):
            config = dataclasses.replace(
                experiment.method_config, num_frames=experiment.data.frames.num_frames
            )
            experiment = dataclasses.replace(experiment, method_config=config)
        return fit_widths(experiment, paths) if "data.root" in paths else experiment


def _has_pixels(experiment: Experiment) -> bool:
    return not SOURCES[experiment.data.dataset].is_features


REFUSED: Mapping[str, str] = {
    "method": "choose the method as the first argument: eaglenet train METHOD",
    "method_config.num_frames": "set data.frames.num_frames instead, which sets both",
}
"""Settings that cannot be overridden, with the reason."""
EFFECTS: Mapping[str, tuple[Callable[[Experiment], bool], str]] = {
    "training.coarse_batch_size": (
        lambda e: e.training.coarse_epochs > 0,
        "training.coarse_epochs is 0",
    ),
    "training.rate_decay": (
        lambda e: e.training.schedule == "epochs",
        "it needs training.schedule=epochs",
    ),
    "training.accumulation": (
        lambda e: e.training.accumulate > 1,
        "training.accumulate is 1",
    ),
    "training.checkpointed_blocks": (
        lambda e: e.training.checkpointing,
        "it needs training.checkpointing=true",
    ),
    "training.second_beta": (
        lambda e: e.training.optimizer != "ranger",
        "Ranger has its own betas",
    ),
    "data.val_videos": (
        lambda e: not _has_pixels(e),
        "only stored features hold videos out; other data has a validation split",
    ),
    **{
        f"data.{name}": (_has_pixels, "stored features are not decoded or tokenised")
        for name in ("max_words", "cache", "workers", "jitter", "frames.size")
    },
    "encoder.source": (
        lambda e: e.encoder.kind not in ("features", "experts"),
        "stored features need no tower",
    ),
}
"""Settings that may have no effect: a test of the experiment, and the reason if it fails."""


def _with_config(choice: EncoderChoice) -> EncoderChoice:
    """Parse the configuration of the encoder's family; pretrained towers have their own."""
    if choice.kind == PRETRAINED or not isinstance(choice.config, Mapping):
        return choice
    kind = ENCODERS[choice.kind].config_class
    return dataclasses.replace(
        choice, config=from_plain(kind, choice.config, where="encoder.config")
    )


def fit_widths(experiment: Experiment, settings: Collection[str] = ()) -> Experiment:
    """Set the widths of the encoder to those of its features folder, unless ``settings`` set them.

    Without adapters, the width of the method is set too.
    """
    config, folder = experiment.encoder.config, expand_home(experiment.data.root)
    is_fitting = experiment.data.dataset == "features" and isinstance(config, FeatureConfig)
    if not is_fitting or any(path.startswith("encoder.config.") for path in settings):
        return experiment
    widths = stored_widths(folder)
    if widths is None:
        return experiment
    text_dim, frame_dim = widths
    if config.identity and text_dim != frame_dim:
        raise ConfigError(
            f"--tower shared: texts in {folder} are {text_dim} wide and frames {frame_dim}, so "
            "they do not share a space; use --tower adapters"
        )
    dim = frame_dim if config.identity else config.dim
    encoder = dataclasses.replace(
        experiment.encoder,
        config=dataclasses.replace(config, text_dim=text_dim, frame_dim=frame_dim, dim=dim),
    )
    method_config = experiment.method_config
    if config.identity and hasattr(method_config, "dim"):
        method_config = dataclasses.replace(method_config, dim=dim)
    return dataclasses.replace(experiment, encoder=encoder, method_config=method_config)


Settings = Mapping[str, Any]
MethodSettings = Mapping[str, Settings]
"""Fields of each method that differ from its defaults, by method."""


@dataclass(frozen=True)
class Setup:
    """Data, towers and settings of a protocol.

    dim: width of the features. config: fields of the method's configuration that differ from their
    defaults.
    """

    encoder: EncoderChoice
    data: DataChoice
    training: TrainingConfig
    dim: int
    notes: str
    config: Settings = field(default_factory=dict)

    def experiment(self, name: str, method: str, changes: Settings) -> Experiment:
        """Make the experiment of ``method``; ``changes`` are fields that the variants set."""
        kind = METHODS[method].config_class
        names = {spec.name for spec in dataclasses.fields(kind)}
        sizes = {"dim": self.dim, "num_frames": self.data.frames.num_frames}
        own_sizes = {name: value for name, value in sizes.items() if name in names}
        return Experiment(
            name=name,
            method=method,
            method_config=kind(**{**own_sizes, **self.config, **changes}),
            encoder=self.encoder,
            data=self.data,
            training=self.training,
            notes=self.notes,
        )
