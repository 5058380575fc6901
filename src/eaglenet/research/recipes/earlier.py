"""The rows of the paper's tables that came before CLIP, with the settings of their authors.

- ``msrvtt-experts/ce``, ...: on a folder of the authors' experts (docs/experts.md), whose names and
  widths these recipes expect; other ones are set as the error says.
- ``msrvtt-b16/frozen``, ``msrvtt-b32/clipbert``, ...: on videos, from CLIP's towers.

No pre-training of the published rows (HowTo100M, CC3M + WebVid-2M, COCO + Visual Genome) is here;
`evaluation.conditions` says which row had which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.features import ExpertConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes.benchmarks import TOWERS
from eaglenet.research.recipes.configs import approximate_note, method_config
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.training.config import TrainingConfig

CE_EXPERTS = {
    "audio": 128, "face": 512, "i3d": 1024, "ocr": 300, "r2p1d": 512, "resnext": 2048,
    "scene": 2208, "senet": 2048, "speech": 300,
}  # fmt: skip
MMT_EXPERTS = {
    "face": 512, "ocr": 300, "rgb": 2048, "s3d": 1024, "scene": 2208, "speech": 300, "vggish": 128,
}  # fmt: skip
T2VLAD_EXPERTS = {
    "audio": 128, "face": 512, "flow": 1024, "ocr": 300, "rgb": 2048, "s3d": 1024, "scene": 2208,
    "speech": 300,
}  # fmt: skip
TEACH_EXPERTS = {
    "audio": 128, "r2p1d": 512, "r2p1d-kinetics": 512, "resnext": 2048, "scene": 2208,
    "senet": 2048, "speech": 300,
}  # fmt: skip
SILENT = ("audio", "speech")
"""MSVD has no sound."""

RANGER: Mapping[str, Any] = {
    "optimizer": "ranger", "schedule": "epochs", "rate_decay": 0.95, "warmup": 0.0,
    "captions": "one", "lr_encoder": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class ExpertRow:
    """What the authors of a method over experts say of one dataset."""

    experts: Mapping[str, int]
    frames: str
    words_dim: int
    config: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def _without_sound(experts: Mapping[str, int]) -> dict[str, int]:
    return {name: width for name, width in experts.items() if name not in SILENT}


_CE_TRAINING = {**RANGER, "lr_head": 0.1, "weight_decay": 1e-3, "batch_size": 64, "epochs": 100}
ROWS: Mapping[tuple[str, str], ExpertRow] = {
    ("ce", "msrvtt"): ExpertRow(
        CE_EXPERTS, "senet", 768,
        {"dim": 768, "centres": {"audio": 8, "ocr": 43, "speech": 19}, "sequential": True},
        _CE_TRAINING,
    ),
    ("ce", "didemo"): ExpertRow(
        CE_EXPERTS, "senet", 768,
        {"dim": 768, "text_centres": 8, "text_ghosts": 0, "sequential": True, "margin": 0.1664,
         "centres": {"audio": 16, "ocr": 13, "speech": 55}},
        {**_CE_TRAINING, "epochs": 30},
    ),
    ("ce", "msvd"): ExpertRow(
        _without_sound(CE_EXPERTS), "senet", 768,
        {"dim": 768, "text_centres": 12, "text_ghosts": 0, "sequential": True, "margin": 0.3076,
         "centres": {"ocr": 75}},
        {**_CE_TRAINING, "lr_head": 0.01, "weight_decay": 5e-5, "batch_size": 16, "epochs": 300},
    ),
    ("mmt", "msrvtt"): ExpertRow(
        MMT_EXPERTS, "rgb", 768, {"dim": 512},
        # 50,000 steps, the rate falling by 5% every 1,000: 50 epochs of 32,000 samples, which are
        # 188 passes over the 8,500 training videos.
        {"lr_head": 5e-5, "weight_decay": 0.0, "schedule": "epochs", "warmup": 0.0,
         "rate_decay": 0.95 ** (8_500 / 32_000), "batch_size": 32, "epochs": 188,
         "captions": "one"},
    ),
    ("t2vlad", "msrvtt"): ExpertRow(
        T2VLAD_EXPERTS, "rgb", 768, {"dim": 768},
        {"lr_head": 1e-4, "weight_decay": 1e-4, "schedule": "epochs", "rate_decay": 0.979,
         "warmup": 0.0, "clip_norm": 2.0, "batch_size": 64, "epochs": 150, "captions": "one",
         "eval_every": 5},
    ),
    ("hit", "msrvtt"): ExpertRow(
        MMT_EXPERTS, "rgb", 768, {"dim": 512},
        {"lr_head": 5e-5, "weight_decay": 0.0, "schedule": "epochs", "warmup": 0.0,
         "batch_size": 128, "epochs": 50, "captions": "one"},
    ),
    ("teachtext", "msrvtt"): ExpertRow(
        TEACH_EXPERTS, "senet", 1600,
        {"dim": 768, "student_config": {"centres": {"audio": 8, "speech": 19},
                                        "sequential": True}},
        {**_CE_TRAINING, "lr_head": 1e-3, "weight_decay": 1e-5},
    ),
    **{
        ("supportset", dataset): ExpertRow(
            {"r2p1d": 512, "resnet152": 2048}, "resnet152", 768,
            {"dim": 1024, "num_heads": 8, "vocabulary_size": 32128},
            {"lr_head": 5e-5, "weight_decay": 1e-4, "batch_size": 64, "epochs": 50,
             "captions": "one"},
        )
        for dataset in ("msrvtt", "msvd", "vatex")
    },
    ("hgr", "vatex"): ExpertRow(
        {"i3d": 1024}, "i3d", 300, {"dim": 1024},
        {"lr_head": 1e-4, "weight_decay": 0.0, "schedule": "epochs", "rate_decay": 1.0,
         "warmup": 0.0, "batch_size": 64, "epochs": 50},
    ),
}  # fmt: skip

FROZEN: Mapping[str, Any] = {
    "lr_encoder": 3e-5, "lr_head": 3e-5, "weight_decay": 0.0, "schedule": "epochs",
    "rate_decay": 1.0, "warmup": 0.0, "batch_size": 16, "epochs": 100, "captions": "one",
    "patience": 10, "augment": "crop_flip",
}  # fmt: skip
CLIPBERT: Mapping[str, Any] = {
    "lr_encoder": 5e-5, "lr_head": 5e-5, "weight_decay": 1e-3, "clip_norm": 5.0, "batch_size": 64,
    "epochs": 20,
}  # fmt: skip


@dataclass(frozen=True)
class EarlierRow:
    """A method that reads videos: its tower, its frames, how it is trained, and where."""

    tower: str
    num_frames: int
    training: Mapping[str, Any]
    datasets: tuple[str, ...]


TOWER_ROWS: Mapping[str, EarlierRow] = {
    "frozen": EarlierRow("b16", 4, FROZEN, ("msrvtt", "didemo", "msvd")),
    "bridgeformer": EarlierRow("b16", 4, FROZEN, ("msrvtt", "didemo")),
    "tvmm": EarlierRow("b16", 4, FROZEN, ("msrvtt", "didemo")),
    "clipbert": EarlierRow("b32", 16, CLIPBERT, ("msrvtt", "didemo")),
}


def expert_row(method: str, dataset: str) -> Experiment:
    """A method over its authors' experts."""
    row = ROWS[method, dataset]
    dim = int(row.config["dim"])
    encoder = ExpertConfig(row.experts, row.frames, row.words_dim, row.words_dim, dim=dim)
    frames = FrameSpec(num_frames=30)
    return Experiment(
        name=f"{dataset}-experts/{method}",
        method=method,
        method_config=method_config(
            method, **{"dim": dim, "num_frames": frames.num_frames, **row.config}
        ),
        encoder=EncoderChoice("experts", config=encoder),
        data=DataChoice("features", frames=frames),
        training=TrainingConfig(**row.training),
        notes="Settings of its authors on their experts; 500 videos held out choose the epoch.",
    )


def tower_row(method: str, dataset: str) -> Experiment:
    """A method over a video tower, from CLIP's weights."""
    row = TOWER_ROWS[method]
    frames = FrameSpec(num_frames=row.num_frames)
    return Experiment(
        name=f"{dataset}-{row.tower}/{method}",
        method=method,
        method_config=method_config(method, dim=512, num_frames=row.num_frames),
        encoder=EncoderChoice("pretrained", TOWERS[row.tower]),
        data=DataChoice(dataset, frames=frames, max_words=64 if dataset == "didemo" else 32),
        training=TrainingConfig(**row.training),
        notes="Settings of its authors, from CLIP's towers and without their pre-training.",
    )


def register() -> None:
    """One recipe for every row and dataset of the paper's tables 1 and 2."""
    for method, dataset in ROWS:
        add_recipe(
            f"{dataset}-experts/{method}",
            partial(expert_row, method, dataset),
            f"{METHODS[method].paper}: its authors' settings on {dataset}, on their experts."
            f"{approximate_note(method)}",
        )
    for method, row in TOWER_ROWS.items():
        for dataset in row.datasets:
            add_recipe(
                f"{dataset}-{row.tower}/{method}",
                partial(tower_row, method, dataset),
                f"{METHODS[method].paper}: its authors' settings on {dataset}, from CLIP."
                f"{approximate_note(method)}",
            )
