"""Recipes that make towers instead of training a method on towers that exist."""

from __future__ import annotations

from eaglenet.experiments.pair_run import PairExperiment
from eaglenet.training.pairs.config import PairTrainingConfig

_FURTHER = (
    "lr_towers=1e-4 lr_heads=5e-4 warmup_steps=60 word_dropout=0.15 drop_path=0.1 crop=0.3 "
    "machine_share=0.4 video_share=0.33 average=0.998 evaluate_every=250"
)
_INGREDIENT = "lr_heads=5e-4 warmup_steps=40 steps=850 average=0.995 evaluate_every=200"

_AGREEING = "lr_towers=8e-5 unlabelled_items=768 steps=900 seed=31"
_FINISHING = (
    "lr_towers=3e-5 lr_heads=1e-4 warmup_steps=20 steps=230 patch_dropout=0 crop=0.6 "
    "drop_path=0.05 word_dropout=0.15 machine_share=0.4 video_share=0.4 average=0.99 "
    "evaluate_every=100"
)

TOWER_RECIPES: dict[str, PairExperiment] = {
    # 1,100 s on an H200: models/small/README.md.
    "small": PairExperiment(
        "small",
        beginning=PairTrainingConfig(
            steps=450,
            lr_towers=1e-4,
            layer_decay=0.85,
            warmup_steps=80,
            video_share=0.25,
            text_dropout=0.1,
            drop_path=0.05,
            patch_dropout=0.5,
            average=0.99,
            evaluate_every=150,
        ),
        ingredients=(
            f"{_INGREDIENT} lr_towers=7e-5 seed=1",
            f"{_INGREDIENT} lr_towers=1e-4 layer_decay=0.8 video_share=0.33 "
            "word_dropout=0.15 seed=2",
            f"{_INGREDIENT} lr_towers=7e-5 crop=0.3 machine_share=0.5 seed=3",
        ),
        further=(
            f"{_FURTHER} steps=1200 seed=1",
            f"{_FURTHER} steps=1100 frames_per_video=3 seed=3",
        ),
        agreeing=(f"{_FURTHER} {_AGREEING}",),
        finishing=(f"{_FINISHING} frames_per_video=3 seed=23", f"{_FINISHING} seed=24"),
    )
}
"""Name -> what `eaglenet train` runs; folders and starting weights are set on the command line."""
