"""Methods over several experts on the demo world that `eaglenet data demo-experts` writes.

Make:      eaglenet data demo-experts --output FOLDER
Train:     eaglenet train experts/ce --root FOLDER --output RUN
Compare:   eaglenet compare ce mmt clip4clip --dataset experts --root FOLDER --output OUT

A folder of other experts needs encoder.config.experts (name -> width), encoder.config.frames,
encoder.config.text_dim and encoder.config.words_dim; a wrong one is an error that names the right.
Methods that read frames alone get the expert that shows moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.features import ExpertConfig, FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.demo.dataset import vocabulary
from eaglenet.research.data.demo.experts import FRAMES_EXPERT, TOKENS, WIDTHS, WORDS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes.configs import approximate_note, method_config
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.recipes.stored_features import NEED_TOWERS
from eaglenet.research.training.config import TrainingConfig

DIM = 64
FRAMES = FrameSpec(num_frames=TOKENS[FRAMES_EXPERT])
EXPERTS = ExpertConfig(WIDTHS, FRAMES_EXPERT, text_dim=24, words_dim=WORDS["glove"], dim=DIM)
TRAINING = TrainingConfig(
    epochs=12,
    batch_size=64,
    lr_head=2e-3,
    lr_encoder=2e-3,
    weight_decay=1e-3,
    log_every=20,
    checkpoint_every=0,
    eval_every=2,
    select_by="R@1",
)
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "ce": {"text_centres": 8, "centres": {"colour": 2, "sound": 2}, "margin": 0.2},
    "mmt": {"num_layers": 2, "hidden_dim": 128, "text_layers": 1, "margin": 0.2},
    "t2vlad": {"num_centres": 5},
    "supportset": {
        "text_layers": 1,
        "hidden_dim": 128,
        "vocabulary_size": 3 + len(vocabulary()),
        "caption_weight": 1.0,
    },
    "clipbert": {"num_layers": 1, "num_heads": 4, "hidden_dim": 128, "frames_per_clip": 3},
    "hit": {
        "num_layers": 2,
        "text_layers": 1,
        "hidden_dim": 128,
        "bank_size": 256,
        "momentum": 0.95,
    },
    "teachtext": {"student_config": {"text_centres": 8, "margin": 0.2}},
}


def expert_experiment(method: str) -> Experiment:
    """``method`` on the demo world's experts; every method gets the same data and budget."""
    if METHODS[method].reads_experts:
        encoder = EncoderChoice("experts", config=EXPERTS)
    else:
        adapters = FeatureConfig(EXPERTS.text_dim, EXPERTS.frame_dim, DIM, scaling="layer_norm")
        encoder = EncoderChoice("features", config=adapters, logit_scale=2.66)
    return Experiment(
        name=f"experts/{method}",
        method=method,
        method_config=method_config(
            method, dim=DIM, num_frames=FRAMES.num_frames, **CHANGES.get(method, {})
        ),
        encoder=encoder,
        data=DataChoice("features", frames=FRAMES, val_videos=100),
        training=TRAINING,
        notes="The demo world as five experts see it; 100 videos held out choose the epoch.",
    )


def register() -> None:
    source = "Experts of the demo world (eaglenet data demo-experts), small heads."
    for method in METHODS:
        if method not in NEED_TOWERS:
            add_recipe(
                f"experts/{method}",
                partial(expert_experiment, method),
                source + approximate_note(method),
            )
