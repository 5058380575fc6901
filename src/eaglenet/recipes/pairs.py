"""Recipes that make towers instead of training a method on towers that exist."""

from __future__ import annotations

from eaglenet.experiments.pair_run import PairExperiment
from eaglenet.training.pairs.config import PairTrainingConfig

TOWER_RECIPES: dict[str, PairExperiment] = {
    # 330 s on an H200 with COCO, MSR-VTT frames and Flickr8k: models/small/README.md.
    "small": PairExperiment(
        "small",
        training=PairTrainingConfig(
            steps=2200,
            lr_towers=5e-5,
            video_share=0.33,
            average=0.999,
            crop=0.45,
            evaluate_every=300,
        ),
    )
}
"""Name -> what `eaglenet train` runs; folders and starting weights are set on the command line."""
