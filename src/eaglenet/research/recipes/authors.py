"""Training settings published by the authors of each compared method.

Learning rates are those for fp32 weights; where the authors train fp16 weights at 1e-7, CLIP gets
1e-6. The pre-training of methods before CLIP (HowTo100M, CC3M + WebVid-2M, COCO + Visual Genome) is
not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglenet.research.experiments.experiment import Settings

CLIP4CLIP_FRAMES: Settings = {"sampling": "whole_rate", "square_pixels": True, "short": "mask"}
"""Frames as CLIP4Clip and most methods read them: every int(rate)-th frame, padding masked."""
DRL_FRAMES: Settings = {**CLIP4CLIP_FRAMES, "sampling": "rounded_rate"}
"""Frames as DRL reads them: the rate is rounded."""
FROZEN_FRAMES: Settings = {**CLIP4CLIP_FRAMES, "sampling": "middle_frames"}
"""Frames as Frozen reads them: the middles of equal runs."""
CLIPVIP_FRAMES: Settings = {"sampling": "first_to_last", "square_pixels": True, "resize": "stretch"}
"""Frames as CLIP-ViP reads them: evenly spaced from the first to the last."""
CLIP4CLIP_TRAINING: Settings = {"batch_size": 128, "lr_encoder": 1e-6, "freeze": "embeddings"}
"""Training of CLIP4Clip, which most methods adopt (rates: E.4 of the EagleNet paper)."""
XPOOL_TRAINING: Settings = {
    "batch_size": 32, "lr_head": 3e-5, "decay": "all", "second_beta": 0.999, "augment": "crop_flip",
}  # fmt: skip
VIDEO_EPOCHS: Settings = {"captions": "one", "warmup": 0.01, "batch_size": 128}
ADAPTERS: Settings = {
    "lr_encoder": 6e-4, "lr_head": 6e-4, "precision": "auto", "freeze": "none",
}  # fmt: skip
"""Learning rate of TempMe. The method freezes the towers itself; its adapters stay in fp32."""
FROZEN: Settings = {
    "lr_encoder": 3e-5, "lr_head": 3e-5, "weight_decay": 0.0, "schedule": "epochs",
    "rate_decay": 1.0, "warmup": 0.0, "batch_size": 16, "epochs": 100, "captions": "one",
    "patience": 10, "augment": "crop_flip",
}  # fmt: skip
CLIPBERT: Settings = {
    "lr_encoder": 5e-5, "lr_head": 5e-5, "weight_decay": 1e-3, "clip_norm": 5.0, "batch_size": 64,
    "epochs": 20, "schedule": "linear",
}  # fmt: skip
CLIP_TOWERS = ("clip-b32", "clip-b16")
LONG: dict[str, Any] = {"num_frames": 64, "max_words": 64}
"""Sizes for the paragraphs of DiDeMo and ActivityNet in most methods."""
DIDEMO: dict[str, Any] = {**LONG, "options": {"window": "first_31_seconds"}}
"""DiDeMo as CLIP4Clip, and the methods based on its code, read it."""


@dataclass(frozen=True)
class Change:
    """Settings that differ for a dataset, a tower, or both.

    options: options of the dataset's loader.
    """

    training: Settings = field(default_factory=dict)
    config: Settings = field(default_factory=dict)
    options: Settings = field(default_factory=dict)
    frames: Settings = field(default_factory=dict)
    num_frames: int | None = None
    max_words: int | None = None


@dataclass(frozen=True)
class Original:
    """Published settings of a method.

    jitter: frames to decode per frame that CLIP-ViP's jittered sampling uses.
    changes: changes for a dataset, a tower, or both ("msrvtt clip-b16"); the most specific is
        applied last.
    """

    training: Settings
    datasets: tuple[str, ...] = ("msrvtt", "didemo", "msvd", "vatex")
    towers: tuple[str, ...] = CLIP_TOWERS
    frames: Settings = field(default_factory=dict)
    num_frames: int = 12
    max_words: int = 32
    jitter: int = 1
    changes: Mapping[str, Change] = field(default_factory=lambda: {"didemo": Change(**DIDEMO)})

    def changes_for(self, dataset: str, tower: str) -> list[Change]:
        """Return the changes that apply, the most general first."""
        keys = (dataset, tower, f"{dataset} {tower}")
        return [self.changes[key] for key in keys if key in self.changes]

    def inputs_with(self, num_frames: int) -> tuple[Settings, int]:
        """Return the frames and the tokens per text of a dataset with this number of frames."""
        for change in self.changes.values():
            if change.num_frames == num_frames and change.max_words is not None:
                return {**self.frames, **change.frames}, change.max_words
        return self.frames, self.max_words


CLIP4CLIP = Original(CLIP4CLIP_TRAINING, frames=CLIP4CLIP_FRAMES)
ORIGINALS: Mapping[str, Original] = {
    "clip4clip": Original(
        CLIP4CLIP_TRAINING,
        datasets=("msrvtt", "didemo", "msvd", "vatex", "lsmdc", "activitynet"),
        frames=CLIP4CLIP_FRAMES,
        changes={"didemo": Change(**DIDEMO), "activitynet": Change(**LONG)},
    ),
    "xpool": Original(
        XPOOL_TRAINING,
        datasets=("msrvtt", "msvd"),
        frames={**FROZEN_FRAMES, "short": "repeat_last"},
        max_words=77,
        changes={"msvd": Change({"lr_head": 1e-5}, {"dropout": 0.4})},
    ),
    "tmass": Original(
        XPOOL_TRAINING,
        datasets=("msrvtt", "didemo", "vatex"),
        frames={**FROZEN_FRAMES, "short": "repeat_last"},
        max_words=77,
        changes={"didemo": Change({"lr_head": 1e-5}, {"support_weight": 0.0, "dropout": 0.4})},
    ),
    "ts2net": Original(CLIP4CLIP_TRAINING, ("msrvtt", "didemo", "vatex"), frames=CLIP4CLIP_FRAMES),
    "clipvip": Original(
        {**VIDEO_EPOCHS, "epochs": 100, "lr_head": 1e-6},
        datasets=("msrvtt", "didemo", "activitynet"),
        frames=CLIPVIP_FRAMES,
        max_words=50,
        jitter=3,
        changes={
            "didemo": Change({"epochs": 20}),
            "activitynet": Change({"epochs": 20}, num_frames=32, max_words=70),
        },
    ),
    "tvproxynet": Original(
        {**VIDEO_EPOCHS, "epochs": 120, "lr_head": 2e-6},
        datasets=("msrvtt", "didemo", "activitynet"),
        frames=CLIPVIP_FRAMES,
        max_words=50,
        jitter=3,
        changes={
            # One GPU for these two datasets.
            "didemo": Change(
                {"epochs": 20, "lr_encoder": 2e-6, "lr_head": 4e-6, "batch_size": 64},
                {"num_read": 1, "proxy_weight": 1.0, "dash": "linear"},
            ),
            "activitynet": Change(
                {"epochs": 20, "lr_encoder": 2e-6, "lr_head": 4e-6, "batch_size": 24},
                {"num_read": 1, "proxy_weight": 0.75, "dash": "linear"},
                num_frames=32,
                max_words=70,
            ),
            # 56 pairs on each of two GPUs.
            "msrvtt clip-b16": Change(
                {"batch_size": 112}, {"text_sign": -1.0, "leader_sign": -1.0}
            ),
        },
    ),
    "video_colbert": CLIP4CLIP,
    "ucofia": Original(
        {**CLIP4CLIP_TRAINING, "epochs": 15},
        frames=CLIP4CLIP_FRAMES,
        changes={"didemo": Change(config={"num_words": 64}, **DIDEMO)},
    ),
    "prost": Original(CLIP4CLIP_TRAINING, ("msrvtt", "didemo"), frames=CLIP4CLIP_FRAMES),
    "glscl": Original(
        CLIP4CLIP_TRAINING,
        ("msrvtt", "didemo", "msvd"),
        frames=DRL_FRAMES,
        changes={
            "didemo": Change(
                {"batch_size": 32}, {"consistency": 0.005}, frames=CLIP4CLIP_FRAMES, **DIDEMO
            ),
            "msvd": Change(config={"consistency": 0.005}),
        },
    ),
    "tempme": Original(
        {"batch_size": 128, **ADAPTERS, "augment": "rand_augment"},
        datasets=("msrvtt", "didemo"),
        frames={**DRL_FRAMES, "short": "spread"},
    ),
    # Known only from their abstracts: the usual batch and epochs, TempMe's rate for adapters.
    "rap": Original({"batch_size": 128, **ADAPTERS}, ("msrvtt", "didemo", "msvd")),
    "tfvl": Original({"batch_size": 128, **ADAPTERS}, ("msrvtt",)),
    "shenet": Original(CLIP4CLIP_TRAINING, ("msrvtt", "didemo", "msvd"), frames=CLIP4CLIP_FRAMES),
    "drl": Original(
        CLIP4CLIP_TRAINING,
        ("msrvtt", "didemo", "msvd"),
        frames=DRL_FRAMES,
        changes={
            "didemo": Change(**LONG),
            # The authors' scripts use 0.14 for B/32, and the default 0.11 for B/16.
            "clip-b32": Change(config={"diagonal_weight": 0.14}),
        },
    ),
    # Methods before CLIP, here on the towers of CLIP.
    **{
        method: Original(
            FROZEN,
            datasets,
            ("clip-b16",),
            frames={**FROZEN_FRAMES, "sampling": sampling},
            num_frames=4,
            changes={"didemo": Change(max_words=64)},
        )
        for method, datasets, sampling in (
            ("frozen", ("msrvtt", "didemo", "msvd"), "middle_frames"),
            ("bridgeformer", ("msrvtt", "didemo"), "before_middle"),
            ("tvmm", ("msrvtt", "didemo"), "middle_frames"),
        )
    },
    "clipbert": Original(
        CLIPBERT,
        ("msrvtt", "didemo"),
        ("clip-b32",),
        frames={"sampling": "second_pairs", "square_pixels": True},
        num_frames=16,
        max_words=20,
        changes={
            # Trained on 7k videos, validated on 1k others, tested on 1k-A.
            "msrvtt": Change(options={"train": "7k"}),
            # 8 pairs on each of four GPUs, 4 accumulated steps. The authors' text encoder reads 100
            # tokens, CLIP's 77.
            "didemo": Change({"batch_size": 128, "accumulate": 4}, max_words=77),
        },
    ),
}

MASKS_FRAMES = frozenset({"clip4clip", "drl", "glscl", "ts2net", "ucofia"})
"""Methods whose official code masks the blank frames of short videos."""


@dataclass(frozen=True)
class ExpertRow:
    """Published settings of a method that reads the features of several experts.

    experts: widths by name. frames: expert with one feature per frame. words_dim: width of token
    and text features.
    """

    experts: Mapping[str, int]
    frames: str
    words_dim: int
    config: Settings
    training: Settings


CE_EXPERTS = {
    "audio": 128, "face": 512, "i3d": 1024, "ocr": 300, "r2p1d": 512, "resnext": 2048,
    "scene": 2208, "senet": 2048, "speech": 300,
}  # fmt: skip
SILENT_CE_EXPERTS = {k: v for k, v in CE_EXPERTS.items() if k not in ("audio", "speech")}
"""Experts of MSVD, which has no sound."""
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
STEPS: Settings = {"schedule": "epochs", "warmup": 0.0, "captions": "one"}
CE_TRAINING: Settings = {
    **STEPS, "optimizer": "ranger", "rate_decay": 0.95, "lr_encoder": 0.0, "lr_head": 0.1,
    "weight_decay": 1e-3, "batch_size": 64, "epochs": 100,
}  # fmt: skip
MMT_TRAINING: Settings = {
    **STEPS, "lr_head": 5e-5, "weight_decay": 0.0, "batch_size": 32, "epochs": 50,
}  # fmt: skip

EXPERT_ROWS: Mapping[tuple[str, str], ExpertRow] = {
    ("ce", "msrvtt"): ExpertRow(
        CE_EXPERTS, "senet", 768,
        {"dim": 768, "centres": {"audio": 8, "ocr": 43, "speech": 19}, "sequential": True},
        CE_TRAINING,
    ),
    ("ce", "didemo"): ExpertRow(
        CE_EXPERTS, "senet", 768,
        {"dim": 768, "text_centres": 8, "text_ghosts": 0, "sequential": True, "margin": 0.1664,
         "centres": {"audio": 16, "ocr": 13, "speech": 55}},
        {**CE_TRAINING, "epochs": 30},
    ),
    ("ce", "msvd"): ExpertRow(
        SILENT_CE_EXPERTS, "senet", 768,
        {"dim": 768, "text_centres": 12, "text_ghosts": 0, "sequential": True, "margin": 0.3076,
         "centres": {"ocr": 75}},
        {**CE_TRAINING, "lr_head": 0.01, "weight_decay": 5e-5, "batch_size": 16, "epochs": 300},
    ),
    # 50 epochs of 1,000 steps.
    ("mmt", "msrvtt"): ExpertRow(
        MMT_EXPERTS, "rgb", 768, {"dim": 512}, {**MMT_TRAINING, "epoch_pairs": 32_000},
    ),
    ("t2vlad", "msrvtt"): ExpertRow(
        T2VLAD_EXPERTS, "rgb", 768, {"dim": 768},
        {**STEPS, "lr_head": 1e-4, "weight_decay": 1e-4, "rate_decay": 0.979, "clip_norm": 2.0,
         "batch_size": 64, "epochs": 150, "eval_every": 5},
    ),
    ("hit", "msrvtt"): ExpertRow(
        MMT_EXPERTS, "rgb", 768, {"dim": 512}, {**MMT_TRAINING, "batch_size": 128},
    ),
    ("teachtext", "msrvtt"): ExpertRow(
        TEACH_EXPERTS, "senet", 1600,
        {"dim": 768, "student_config": {"centres": {"audio": 8, "speech": 19},
                                        "sequential": True}},
        {**CE_TRAINING, "optimizer": "radam", "second_beta": 0.999, "lr_head": 1e-3,
         "weight_decay": 1e-5},
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
        {"schedule": "epochs", "lr_head": 1e-4, "weight_decay": 0.0, "rate_decay": 1.0,
         "warmup": 0.0, "batch_size": 64, "epochs": 50},
    ),
}  # fmt: skip
"""Settings on a folder of the authors' experts (docs/how-to/experts.md), by method and dataset."""
