"""Every method from towers that agree, on a folder of frames with captions.

Prepare:   eaglenet data frames ...                          (docs/small.md, docs/frames.md)
Compare:   eaglenet compare clip4clip xpool eaglenet --dataset frames --root FOLDER --output OUT
Tune:      eaglenet compare xpool eaglenet --dataset frames-tuned --root FOLDER --output OUT

``frames/METHOD`` trains a head on the frozen towers of `small`: their features are made once and
kept. ``frames-tuned/METHOD`` trains the towers too, from pixels, with the paper's low rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from eaglenet.core.types import FrameSpec
from eaglenet.encoders.features import ExpertConfig, FeatureConfig
from eaglenet.methods import METHODS
from eaglenet.research.data.sources import DataChoice
from eaglenet.research.experiments.experiment import EncoderChoice, Experiment
from eaglenet.research.experiments.feature_writing import FRAMES as FRAMES_EXPERT
from eaglenet.research.recipes.ablations import register_tables
from eaglenet.research.recipes.benchmarks import LITERAL, edges_note
from eaglenet.research.recipes.configs import VARIANTS, approximate_note, method_config, variant
from eaglenet.research.recipes.registry import add_recipe
from eaglenet.research.recipes.stored_features import NEED_EXPERTS, NEED_TOWERS
from eaglenet.research.training.config import TrainingConfig

DIM = 384
LOGIT_SCALE = 3.264
"""What `small` learnt: the logarithm of the factor of its cosines."""
VOCABULARY = 27_626
"""Word pieces of `small`."""
FRAMES = FrameSpec(num_frames=12, size=168, resize="stretch")
TRAINING = TrainingConfig(
    epochs=3,
    batch_size=128,
    lr_head=3e-4,
    lr_encoder=3e-4,  # of the temperature alone: the features stay as they are
    weight_decay=0.2,
    log_every=50,
    checkpoint_every=0,
    select_by="R@1",
)
TUNING = replace(TRAINING, lr_encoder=1e-6, lr_head=1e-4, batch_size=64)
# Sentences of `small` have a length of 4, the noise of a candidate text one of 20: unscaled, a
# candidate would be noise alone. Other methods look at directions, or normalise first.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "tmass": {"unit_features": True},
    "eaglenet": {
        "unit_features": True,
        "edge_weights": "activated",
        "head_size": "split",
        "shared_residual": True,
        "support": "elementwise",
        "initial_temperature": LOGIT_SCALE,
        # Right pairs have a cosine of 0.42 by the towers alone, others 0.14.
        "initial_bias": -11.0,
    },
    "supportset": {"vocabulary_size": VOCABULARY},
}
NOTES = "Towers of `small`; the folder's validation items choose the epoch."


def frame_experiment(method: str) -> Experiment:
    """``method`` as a head on the frozen towers of `small`."""
    if METHODS[method].reads_experts:
        widths = {FRAMES_EXPERT: DIM}
        shape: Any = ExpertConfig(widths, FRAMES_EXPERT, text_dim=DIM, words_dim=DIM, dim=DIM)
        encoder = EncoderChoice("experts", config=shape)
    else:
        shape = FeatureConfig(DIM, DIM, DIM, identity=True)
        encoder = EncoderChoice("features", config=shape, logit_scale=LOGIT_SCALE)
    return Experiment(
        name=f"frames/{method}",
        method=method,
        method_config=method_config(
            method, dim=DIM, num_frames=FRAMES.num_frames, **CHANGES.get(method, {})
        ),
        encoder=encoder,
        data=DataChoice("frames", frames=FRAMES),
        training=TRAINING,
        notes=NOTES,
    )


def tuned_experiment(method: str) -> Experiment:
    """``method`` with the towers of `small` trained along, from pixels."""
    frozen = frame_experiment(method)
    return replace(
        frozen,
        name=f"frames-tuned/{method}",
        encoder=EncoderChoice("pretrained", "small"),
        training=TUNING,
    )


def adapted() -> Experiment:
    """Mean pooling after one linear map a side, which start as the identity."""
    return frame_experiment("clip4clip").override(["encoder.config.identity=false"])


def literal() -> Experiment:
    """EagleNet on frozen towers with edge weights as the paper prints them."""
    return frame_experiment("eaglenet").override(["method_config.edge_weights=raw"])


def register() -> None:
    families: tuple[tuple[str, Callable[[str], Experiment], str], ...] = (
        ("frames", frame_experiment, "Frames with captions, frozen towers of `small`."),
        ("frames-tuned", tuned_experiment, "Frames with captions, towers of `small` tuned."),
    )
    for family, build, source in families:
        add_recipe(family, partial(build, "eaglenet"), source + edges_note("eaglenet"))
        for method in METHODS:
            if method in NEED_TOWERS:
                continue  # they work inside towers; most inside CLIP's, which `small` is not
            if method in NEED_EXPERTS and build is tuned_experiment:
                continue  # graphs of sentences are made with features alone
            note = approximate_note(method) + edges_note(method)
            add_recipe(f"{family}/{method}", partial(build, method), source + note)
        for name in VARIANTS:
            add_recipe(f"{family}/{name}", partial(variant, build, name), source)
        register_tables(f"{family}/", build, "frames with captions")
    add_recipe("frames/adapted", adapted, "Mean pooling with a linear map a side on frozen towers.")
    add_recipe("frames/literal", literal, f"Frozen towers of `small`. {LITERAL}")
