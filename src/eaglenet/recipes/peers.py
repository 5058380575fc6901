"""The compared methods on the datasets for which their authors gave settings.

Rates are those of the originals that train fp32 weights; methods that inherit the fp16 recipe
(rate 1e-7, see `benchmarks.RELEASED`) get 1e-6 for CLIP instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eaglenet.experiments.experiment import DataChoice, EncoderChoice, Experiment
from eaglenet.methods import METHODS
from eaglenet.recipes.benchmarks import TOWERS
from eaglenet.recipes.configs import HEADS, method_config, with_head
from eaglenet.recipes.registry import add_recipe
from eaglenet.training.config import TrainingConfig
from eaglenet.types import FrameSpec

DIM = 512
FIELD_SAMPLING: Mapping[str, Any] = {"sampling": "per_second", "short": "mask"}


@dataclass(frozen=True)
class Change:
    """What an original does differently on one dataset."""

    training: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    num_frames: int | None = None
    max_words: int | None = None


@dataclass(frozen=True)
class PeerSettings:
    """What an original says of its training; ``changes`` by dataset, or by dataset and tower."""

    training: Mapping[str, Any]
    datasets: tuple[str, ...] = ("msrvtt", "didemo", "msvd", "vatex")
    frames: Mapping[str, Any] = field(default_factory=dict)
    max_words: int = 32
    changes: Mapping[str, Change] = field(
        default_factory=lambda: {"didemo": Change(num_frames=64, max_words=64)}
    )


FIELD_TRAINING: Mapping[str, Any] = {"batch_size": 128, "lr_encoder": 1e-6, "freeze": "embeddings"}
VIDEO_EPOCHS: Mapping[str, Any] = {"captions": "one", "warmup": 0.01, "batch_size": 128}
SETTINGS: dict[str, PeerSettings] = {
    "clip4clip": PeerSettings(FIELD_TRAINING, frames=FIELD_SAMPLING),
    "xpool": PeerSettings(
        {"batch_size": 32, "lr_head": 3e-5},
        datasets=("msrvtt", "msvd"),
        changes={"msvd": Change(training={"lr_head": 1e-5}, config={"dropout": 0.4})},
    ),
    "tmass": PeerSettings(
        {"batch_size": 32, "lr_head": 3e-5},
        changes={
            "didemo": Change(
                training={"lr_head": 1e-5},
                config={"support_weight": 0.0, "dropout": 0.4},
                max_words=64,
            )
        },
    ),
    "ts2net": PeerSettings(FIELD_TRAINING, frames=FIELD_SAMPLING),
    "clipvip": PeerSettings(
        {**VIDEO_EPOCHS, "epochs": 100, "lr_head": 1e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        changes={"didemo": Change(training={"epochs": 20})},
    ),
    "tvproxynet": PeerSettings(
        {**VIDEO_EPOCHS, "epochs": 120, "lr_head": 2e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        changes={
            "msrvtt-b16": Change(config={"text_sign": -1.0, "leader_sign": -1.0}),
            "didemo": Change(
                training={"epochs": 20, "batch_size": 24, "lr_encoder": 2e-6, "lr_head": 4e-6},
                config={"num_read": 1, "proxy_weight": 1.0},
                num_frames=32,
                max_words=70,
            ),
        },
    ),
    "video_colbert": PeerSettings(FIELD_TRAINING, frames=FIELD_SAMPLING),
    "drl": PeerSettings(
        FIELD_TRAINING, datasets=("msrvtt", "didemo", "msvd"), frames=FIELD_SAMPLING
    ),
}


def peer_experiment(method: str, dataset: str, tower: str) -> Experiment:
    """A compared method with its authors' settings."""
    settings = SETTINGS[method]
    change = settings.changes.get(f"{dataset}-{tower}", settings.changes.get(dataset, Change()))
    frames = change.num_frames or 12
    return Experiment(
        name=f"{dataset}-{tower}/{method}",
        method=method,
        method_config=method_config(method, dim=DIM, num_frames=frames, **change.config),
        encoder=EncoderChoice("pretrained", TOWERS[tower]),
        data=DataChoice(
            dataset,
            frames=FrameSpec(num_frames=frames, **settings.frames),
            max_words=change.max_words or settings.max_words,
        ),
        training=TrainingConfig(**{**settings.training, **change.training}),
        notes="Settings of the original; 1e-6 for CLIP where it trained fp16 weights at 1e-7.",
    )


def register() -> None:
    for method, settings in SETTINGS.items():
        for dataset in settings.datasets:
            for tower in TOWERS:
                add_recipe(
                    f"{dataset}-{tower}/{method}",
                    partial(peer_experiment, method, dataset, tower),
                    f"{METHODS[method].paper}: settings of the original on {dataset}.",
                )
    for name, head in HEADS.items():
        for dataset in SETTINGS["clip4clip"].datasets:
            for tower in TOWERS:
                base = partial(peer_experiment, "clip4clip", dataset, tower)
                add_recipe(
                    f"{dataset}-{tower}/{name}",
                    partial(with_head, base, head),
                    f"{METHODS['clip4clip'].paper}: settings of the original on {dataset}.",
                )
