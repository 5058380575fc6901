"""The compared methods on the datasets for which their authors gave settings.

Rates are those of the originals that train fp32 weights; methods that inherit the fp16 recipe
(rate 1e-7, see `benchmarks.RELEASED`) get 1e-6 for CLIP instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eaglenet.methods import METHODS
from eaglenet.recipes.benchmarks import TOWERS
from eaglenet.recipes.configs import method_config
from eaglenet.recipes.registry import add_recipe
from eaglenet.training.experiment import DataChoice, EncoderChoice, Experiment, TrainingConfig
from eaglenet.types import FrameSpec

DIM = 512
FIELD_SAMPLING: Mapping[str, Any] = {"sampling": "per_second", "short": "mask"}


@dataclass(frozen=True)
class PeerSettings:
    """What an original says of its training; ``didemo`` are the changes for long videos."""

    training: Mapping[str, Any]
    datasets: tuple[str, ...] = ("msrvtt", "didemo", "msvd", "vatex")
    config: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[str, Any] = field(default_factory=dict)
    max_words: int = 32
    didemo: Mapping[str, Any] = field(default_factory=dict)
    didemo_frames: int = 64
    didemo_words: int = 64


R0: Mapping[str, Any] = {"batch_size": 128, "lr_encoder": 1e-6, "freeze": "embeddings"}
VIDEO_EPOCHS: Mapping[str, Any] = {"captions": "one", "warmup": 0.01, "batch_size": 128}
SETTINGS: dict[str, PeerSettings] = {
    "clip4clip": PeerSettings(R0, frames=FIELD_SAMPLING),
    "xpool": PeerSettings(
        {"batch_size": 32, "lr_head": 3e-5},
        datasets=("msrvtt", "msvd"),
    ),
    "tmass": PeerSettings(
        {"batch_size": 32, "lr_head": 3e-5},
        didemo={"lr_head": 1e-5},
        didemo_frames=12,
    ),
    "ts2net": PeerSettings(R0, frames=FIELD_SAMPLING),
    "clipvip": PeerSettings(
        {**VIDEO_EPOCHS, "epochs": 100, "lr_head": 1e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        didemo={"epochs": 20},
        didemo_frames=12,
        didemo_words=50,
    ),
    "tvproxynet": PeerSettings(
        {**VIDEO_EPOCHS, "epochs": 120, "lr_head": 2e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        didemo={"epochs": 20, "batch_size": 24, "lr_encoder": 2e-6, "lr_head": 4e-6},
        didemo_frames=32,
        didemo_words=70,
    ),
    "video_colbert": PeerSettings(R0, frames=FIELD_SAMPLING),
    "drl": PeerSettings(R0, datasets=("msrvtt", "didemo", "msvd"), frames=FIELD_SAMPLING),
    "ucofia": PeerSettings({**R0, "epochs": 15}, frames=FIELD_SAMPLING),
    "prost": PeerSettings(R0, frames=FIELD_SAMPLING),
    "glscl": PeerSettings(R0, datasets=("msrvtt", "didemo"), frames=FIELD_SAMPLING),
}


def peer_experiment(method: str, dataset: str, tower: str) -> Experiment:
    """A compared method with its authors' settings."""
    settings = SETTINGS[method]
    is_long = dataset == "didemo"
    frames = settings.didemo_frames if is_long else 12
    training = {**settings.training, **(settings.didemo if is_long else {})}
    return Experiment(
        name=f"{dataset}-{tower}/{method}",
        method=method,
        method_config=method_config(method, dim=DIM, num_frames=frames, **settings.config),
        encoder=EncoderChoice("pretrained", TOWERS[tower]),
        data=DataChoice(
            dataset,
            frames=FrameSpec(num_frames=frames, **settings.frames),
            max_words=settings.didemo_words if is_long else settings.max_words,
        ),
        training=TrainingConfig(**training),
        notes="Settings of the original; 1e-6 for CLIP where it trained fp16 weights at 1e-7.",
    )


def register() -> None:
    for method, settings in SETTINGS.items():
        if method not in METHODS:
            continue
        for dataset in settings.datasets:
            for tower in TOWERS:
                add_recipe(
                    f"{dataset}-{tower}/{method}",
                    partial(peer_experiment, method, dataset, tower),
                    f"{METHODS[method].paper}: settings of the original on {dataset}.",
                )
