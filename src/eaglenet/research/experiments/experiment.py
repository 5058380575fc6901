"""A whole experiment as one frozen value: what is trained, on what, how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eaglenet.research.experiments.stored_data  # noqa: F401  (adds rows to SOURCES)
from eaglenet.core.errors import CheckpointError, ConfigError
from eaglenet.core.files import read_json, write_json
from eaglenet.core.settings import from_plain, override, split_assignment, to_plain
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.features import FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data import SOURCES
from eaglenet.research.data.features import stored_widths
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.training.config import TrainingConfig

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class EncoderChoice:
    """Origin of the features.

    kind: ``pretrained`` towers of any family (``source``: a name on the hub or a folder), or a
        family of ``ENCODERS``: ``clip`` and others are towers of shape ``config`` from random
        weights, ``features`` adapters of shape ``config`` over stored features, ``experts`` stored
        features of several models, of the widths in ``config``.
    source: for towers from random weights, the tokenizer: a folder, or ``demo``.
    logit_scale: initial temperature of a softmax loss (its logarithm); None keeps the encoder's
        own, CLIP's ln 100, which is too sharp for random weights.
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
            raise CheckpointError("not an experiment: it names no `method`")
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
        """Apply `a.b=c` settings in order, each read as the type of its field.

        The number of frames of a method follows ``data.frames.num_frames``, and widths of stored
        features follow the folder ``data.root``.

        Raises:
            ConfigError: an unknown or impossible setting, or one that would have no effect.
        """
        changed = self
        paths: list[str] = []
        for assignment in assignments:
            path, text = split_assignment(assignment, "training.epochs=3")
            if path in REFUSED:
                raise ConfigError(f"--set {assignment}: {REFUSED[path]}")
            changed = override(changed, path, text)
            paths.append(path)
        for path in paths:
            has_effect, reason = EFFECTS.get(path, (lambda experiment: True, ""))
            if not has_effect(changed):
                raise ConfigError(f"--set {path}=... would have no effect: {reason}")
        if "data.frames.num_frames" in paths and hasattr(changed.method_config, "num_frames"):
            config = dataclasses.replace(
                changed.method_config, num_frames=changed.data.frames.num_frames
            )
            changed = dataclasses.replace(changed, method_config=config)
        return fit_widths(changed, paths) if "data.root" in paths else changed


def _has_pixels(experiment: Experiment) -> bool:
    return not SOURCES[experiment.data.dataset].is_features


REFUSED: Mapping[str, str] = {
    "method": "choose the method as the first argument: eaglenet train METHOD",
    "method_config.num_frames": "it follows the data; set data.frames.num_frames instead",
}
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
        "Ranger has betas of its own",
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
"""Setting -> whether it changes anything in an experiment, and why not."""


def _with_config(choice: EncoderChoice) -> EncoderChoice:
    """Parse the config of an encoder's family; pretrained towers bring their own."""
    if choice.kind == PRETRAINED or not isinstance(choice.config, Mapping):
        return choice
    kind = ENCODERS[choice.kind].config_class
    return dataclasses.replace(
        choice, config=from_plain(kind, choice.config, where="encoder.config")
    )


def fit_widths(experiment: Experiment, settings: Collection[str] = ()) -> Experiment:
    """Widths of a features folder for the encoder, where ``settings`` name none.

    Features that are left as they are give the method their width too.
    """
    config, folder = experiment.encoder.config, Path(experiment.data.root).expanduser()
    is_fitting = experiment.data.dataset == "features" and isinstance(config, FeatureConfig)
    if not is_fitting or any(path.startswith("encoder.config.") for path in settings):
        return experiment
    widths = stored_widths(folder)
    if widths is None:
        return experiment
    text_dim, frame_dim = widths
    if config.identity and text_dim != frame_dim:
        raise ConfigError(
            f"--tower shared: sentences in {folder} are {text_dim} wide and frames {frame_dim}, so "
            "they do not share a space; choose --tower adapters"
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
