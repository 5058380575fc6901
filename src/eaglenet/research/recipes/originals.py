"""What the authors of each compared method say of their own training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglenet.methods.eaglenet_config import RELEASED_FRAMES

FIELD_FRAMES: Mapping[str, Any] = {**RELEASED_FRAMES, "short": "mask"}
"""CLIP4Clip's reader; most methods mask what it pads."""


@dataclass(frozen=True)
class Change:
    """Settings that differ on one dataset, by the number of frames of a video, or by tower."""

    training: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    by_frames: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    by_tower: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_frames: int | None = None
    max_words: int | None = None


@dataclass(frozen=True)
class Original:
    """What an original says of its training; ``changes`` by dataset, or by dataset and tower."""

    training: Mapping[str, Any]
    datasets: tuple[str, ...] = ("msrvtt", "didemo", "msvd", "vatex")
    frames: Mapping[str, Any] = field(default_factory=dict)
    max_words: int = 32
    jitter: int = 1
    changes: Mapping[str, Change] = field(
        default_factory=lambda: {"didemo": Change(num_frames=64, max_words=64)}
    )


FIELD_TRAINING: Mapping[str, Any] = {"batch_size": 128, "lr_encoder": 1e-6, "freeze": "embeddings"}
"""CLIP4Clip's, which most inherit (E.4 of the EagleNet paper names its rates)."""
XPOOL_TRAINING: Mapping[str, Any] = {
    "batch_size": 32,
    "lr_head": 3e-5,
    "decay": "all",
    "second_beta": 0.999,
    "augment": "crop_flip",
}
VIDEO_EPOCHS: Mapping[str, Any] = {"captions": "one", "warmup": 0.01, "batch_size": 128}
ADAPTERS: Mapping[str, Any] = {
    "lr_encoder": 6e-4,
    "lr_head": 6e-4,
    "precision": "auto",
    "freeze": "none",
}
"""TempMe's rate; its towers are frozen by the method itself, and what is added stays in fp32."""
JITTER = 3
"""Frames decoded for each one that CLIP-ViP's jittered sampling shows."""

ORIGINALS: dict[str, Original] = {
    "clip4clip": Original(FIELD_TRAINING, frames=FIELD_FRAMES),
    "xpool": Original(
        XPOOL_TRAINING,
        datasets=("msrvtt", "msvd"),
        max_words=77,
        changes={"msvd": Change(training={"lr_head": 1e-5}, config={"dropout": 0.4})},
    ),
    "tmass": Original(
        XPOOL_TRAINING,
        datasets=("msrvtt", "didemo", "vatex"),
        max_words=77,
        changes={
            "didemo": Change(
                training={"lr_head": 1e-5},
                config={"support_weight": 0.0, "dropout": 0.4},
            )
        },
    ),
    "ts2net": Original(FIELD_TRAINING, datasets=("msrvtt", "didemo", "vatex"), frames=FIELD_FRAMES),
    "clipvip": Original(
        {**VIDEO_EPOCHS, "epochs": 100, "lr_head": 1e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        jitter=JITTER,
        changes={"didemo": Change(training={"epochs": 20})},
    ),
    "tvproxynet": Original(
        {**VIDEO_EPOCHS, "epochs": 120, "lr_head": 2e-6},
        datasets=("msrvtt", "didemo"),
        frames={"resize": "stretch"},
        max_words=50,
        jitter=JITTER,
        changes={
            # 56 pairs on each of two GPUs, for ViT-B/32 64.
            "msrvtt-b16": Change(
                training={"batch_size": 112}, config={"text_sign": -1.0, "leader_sign": -1.0}
            ),
            "didemo": Change(
                training={"epochs": 20, "lr_encoder": 2e-6, "lr_head": 4e-6},
                config={"num_read": 1, "proxy_weight": 1.0, "dash": "linear"},
            ),
        },
    ),
    "video_colbert": Original(FIELD_TRAINING, frames=FIELD_FRAMES),
    "ucofia": Original({**FIELD_TRAINING, "epochs": 15}, frames=FIELD_FRAMES),
    "prost": Original(FIELD_TRAINING, datasets=("msrvtt", "didemo"), frames=FIELD_FRAMES),
    "glscl": Original(
        FIELD_TRAINING,
        datasets=("msrvtt", "didemo", "msvd"),
        frames=FIELD_FRAMES,
        changes={
            "didemo": Change(
                training={"batch_size": 32},
                config={"consistency": 0.005},
                num_frames=64,
                max_words=64,
            ),
            "msvd": Change(config={"consistency": 0.005}),
        },
    ),
    "tempme": Original(
        {"batch_size": 128, **ADAPTERS, "augment": "rand_augment"},
        datasets=("msrvtt", "didemo"),
        frames={"sampling": "whole_rate", "square_pixels": True},
    ),
    # From abstracts: batches and epochs of the field, rates of TempMe's adapters.
    "rap": Original({"batch_size": 128, **ADAPTERS}, datasets=("msrvtt", "didemo", "msvd")),
    "tfvl": Original({"batch_size": 128, **ADAPTERS}, datasets=("msrvtt",)),
    "shenet": Original(FIELD_TRAINING, datasets=("msrvtt", "didemo", "msvd"), frames=FIELD_FRAMES),
    "drl": Original(FIELD_TRAINING, datasets=("msrvtt", "didemo", "msvd"), frames=FIELD_FRAMES),
    # This project's own: under the paper's protocol alone.
    "wordframe": Original(FIELD_TRAINING, datasets=()),
}

MASKED_FRAMES = {"clip4clip", "drl", "glscl", "ts2net", "ucofia"}
"""Methods whose own code masks the frames that a short video lacks. EagleNet's counts them."""

PAPER_CHANGES: dict[str, Change] = {
    "drl": Change(by_tower={"b32": {"diagonal_weight": 0.14}}),
    "ucofia": Change(by_frames={64: {"num_words": 64}}),
    # A rate for CLIP would hardly move adapters that start at nothing.
    "tempme": Change(training=ADAPTERS),
    "rap": Change(training=ADAPTERS),
    "tfvl": Change(training=ADAPTERS),
}
"""What a method needs in the paper's protocol besides EagleNet's data and training."""
