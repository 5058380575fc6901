"""The demo world: small towers from random weights, on two cores, in minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.recipes.ablations import register_tables
from eaglenet.research.recipes.benchmarks import LITERAL, edges_note
from eaglenet.research.recipes.configs import VARIANTS, approximate_note, method_config, variant
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.recipes.stored_features import NEED_EXPERTS
from eaglenet.research.training.config import TrainingConfig

FRAMES = FrameSpec(num_frames=8, size=32)
MAX_WORDS = 24
DIM = 64
TOWERS = ClipConfig(
    dim=DIM,
    vision=VisionConfig(
        image_size=32,
        patch_size=8,
        width=64,
        layers=3,
        heads=4,
        mlp_width=256,
        frame_positions=FRAMES.num_frames,
    ),
    text=TextConfig(
        vocabulary_size=690, context_length=32, width=64, layers=2, heads=4, mlp_width=256
    ),
)
CLIPS = {"train": 6000, "val": 200}
TRAINING = TrainingConfig(
    epochs=10,
    batch_size=64,
    lr_encoder=2e-3,
    lr_head=2e-3,
    weight_decay=0.05,
    captions="one",
    neighbours=True,
    select_by="R@1",
    eval_every=2,
    log_every=20,
)
# Few candidates and narrow heads keep a step of the pair-conditioned methods under half a second.
# Token shift: pooling over frames is blind to their order, so frames must see their neighbours.
# Softmax: the sigmoid loss learns more slowly with towers that know nothing yet (docs/lab/demo.md).
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "eaglenet": {
        "token_shift": True,
        "edge_weights": "activated",
        "num_candidates": 4,
        "prior": "uniform",
        "radius_bias": True,
        "support": "elementwise",
        "head_size": "split",
        "graph_dropout": 0.1,
        "pool_dropout": 0.1,
        "langevin_steps": 5,
        "loss": "softmax",
        "initial_temperature": 2.66,
        "initial_bias": -6.0,
    },
    # Towers from random weights have no score of their own yet that would be worth keeping.
    "wordframe": {"coarse": False, "bank": 0},
    "xpool": {"dropout": 0.1},
    "tmass": {"num_candidates": 4, "dropout": 0.1},
    "ce": {"text_centres": 8, "margin": 0.2},
    "mmt": {"num_layers": 2, "hidden_dim": 256, "margin": 0.2},
    "hit": {"num_layers": 2, "text_layers": 1, "hidden_dim": 256, "bank_size": 256},
    "clipbert": {"num_layers": 2, "num_heads": 4, "hidden_dim": 128, "frames_per_clip": 4},
    "supportset": {"hidden_dim": 128, "caption_weight": 1.0},
    "teachtext": {"student_config": {"text_centres": 8, "margin": 0.2}},
    # Towers from random weights must train, whatever an adapter would leave frozen.
    "tempme": {"frozen": False},
    "rap": {"frozen": False},
    "tfvl": {"frozen": False},
    "shenet": {"num_regions": 4},
    "video_colbert": {"num_query_tokens": MAX_WORDS},
}
# From random towers neither the margin over the hardest wrong pair nor a pair's yes or no leaves
# chance in ten epochs: for half of the budget the towers are brought together by mean pooling.
TRAINING_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "supportset": {"epochs": 5, "coarse_epochs": 5, "eval_every": 1},
    "clipbert": {"epochs": 5, "coarse_epochs": 5, "eval_every": 1},
}


def demo_experiment(method: str) -> Experiment:
    """``method`` on the demo world; every method gets the same towers, data and budget."""
    return Experiment(
        name=f"demo/{method}",
        method=method,
        method_config=method_config(
            method, dim=DIM, num_frames=FRAMES.num_frames, **CHANGES.get(method, {})
        ),
        encoder=EncoderChoice("clip", "demo", TOWERS, logit_scale=2.66),
        data=DataChoice("demo", options=CLIPS, frames=FRAMES, max_words=MAX_WORDS),
        training=replace(TRAINING, **TRAINING_CHANGES.get(method, {})),
        notes="Small towers from random weights on the demo world.",
    )


def without_shift() -> Experiment:
    """The demo's EagleNet with frames that do not see their neighbours."""
    return demo_experiment("eaglenet").override(["method_config.token_shift=false"])


def literal() -> Experiment:
    """The demo's EagleNet with edge weights as the paper prints them."""
    return demo_experiment("eaglenet").override(["method_config.edge_weights=raw"])


def register() -> None:
    source = "The demo world, small towers from random weights."
    add_recipe("demo", partial(demo_experiment, "eaglenet"), source + edges_note("eaglenet"))
    for method in METHODS:
        if method not in NEED_EXPERTS:
            note = approximate_note(method) + edges_note(method)
            add_recipe(f"demo/{method}", partial(demo_experiment, method), source + note)
    for name in VARIANTS:
        add_recipe(f"demo/{name}", partial(variant, demo_experiment, name), source)
    add_recipe(
        "demo/mean",
        partial(demo_experiment, "clip4clip"),
        "Mean pooling (CLIP4Clip meanP) on the demo world.",
    )
    add_recipe(
        "demo/without-shift",
        without_shift,
        "EagleNet on the demo world without token shift: what its graph alone knows of order.",
    )
    add_recipe("demo/literal", literal, f"{source} {LITERAL}")
    register_tables("demo/", demo_experiment, "the demo world")
