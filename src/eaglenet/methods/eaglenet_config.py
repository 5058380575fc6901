"""The options of EagleNet: the paper, the released code, and everything between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from eaglenet.core.errors import ConfigError, UnknownNameError
from eaglenet.core.settings import check_choices
from eaglenet.energy.energies import EnergyPooling
from eaglenet.energy.langevin import NoiseScale
from eaglenet.energy.replay_buffer import ChainStart, FreshRows
from eaglenet.layers.stochastic_text import Prior, SupportMode
from eaglenet.layers.text_frame_graph import EdgeDirection, EdgeWeights, GraphKind, HeadSize


@dataclass(frozen=True)
class EagleNetConfig:
    """One field for each thing that the paper, its ablations or the released code may vary.

    The defaults are the paper's. ``docs/reference/paper_map.md`` says where each comes from.
    """

    dim: int = 512
    num_frames: int = 12
    mask_frames: bool = True  # padded frames count nowhere; released code: they count as real
    unit_features: bool = False  # scale sentences and frames to the noise; for towers not CLIP's
    token_shift: bool = False  # last two visual blocks swap tokens with neighbour frames

    # Stochastic text
    num_candidates: int = 20
    prior: Prior = "normal"
    radius_bias: bool = False
    noise_seed: int = 0  # of the evaluation bank
    support: SupportMode = "pair"  # spoils training with the sigmoid loss: recipes, elementwise

    # Fine-grained relationship learning; off: one drawn candidate per pair, the best in evaluation
    relation_learning: bool = True
    graph: GraphKind = "rgat"
    num_layers: int = 2
    num_heads: int = 4
    head_size: HeadSize = "full"
    shared_residual: bool = False  # one head's W_out, added to every head
    frame_edges: bool = True
    frame_position: bool = True
    negative_slope: float = 0.1
    graph_dropout: float = 0.3
    edge_weights: EdgeWeights = "raw"  # read before or after the LeakyReLU
    edge_direction: EdgeDirection = "text_to_frame"
    pool_dropout: float = 0.3

    # Energy-aware matching; None: off
    energy: Literal["cosine", "bilinear", "mlp"] | None = "bilinear"
    energy_pooling: EnergyPooling = "mean"
    energy_bias: bool = False  # of the bilinear map; the output bias of the MLP
    energy_penalty: float = 1.0  # c of the magnitude penalty
    energy_in_batch: bool = False
    energy_support_weight: float = 0.0
    num_chains: int = 0  # sampled pairs per batch, B' of algorithm 1; 0: one for each text
    langevin_steps: int = 20
    langevin_step_size: float = 1.0
    langevin_noise: float = 0.005
    noise_scale: NoiseScale = "variance"  # what langevin_noise is
    replay_size: int = 500
    replay_rows: ChainStart = "independent"
    replay_fresh: FreshRows = "symmetric"
    fresh_fraction: float = 0.05

    # Losses
    loss: Literal["sigmoid", "softmax"] = "sigmoid"
    initial_temperature: float = 4.77  # of the sigmoid loss, with its bias: right for trained CLIP,
    initial_bias: float = -12.93  # far too sharp for towers that know nothing yet
    support_weight: float = 0.8
    energy_weight: float = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("dim", "num_frames", "num_candidates", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.num_chains < 0:
            raise ConfigError(f"num_chains is {self.num_chains}; it must be 0 or more")

    @classmethod
    def paper(cls, **changes: Any) -> EagleNetConfig:
        """The configuration of the paper's equations.

        To train, add ``support="elementwise"`` as the recipes do (`layers.stochastic_text`).
        """
        return cls(**changes)

    @classmethod
    def released(cls, dataset: str = "msrvtt-b32", **changes: Any) -> EagleNetConfig:
        """The configuration of the authors' script for a dataset."""
        if dataset not in RELEASED_SCRIPTS:
            names = ", ".join(RELEASED_SCRIPTS)
            raise UnknownNameError(f"no released script for {dataset!r} (known: {names})")
        return replace(_RELEASED, **{**RELEASED_SCRIPTS[dataset], **changes})


_RELEASED = EagleNetConfig(
    mask_frames=False,
    token_shift=True,
    prior="uniform",
    radius_bias=True,
    support="batch",
    head_size="split",
    shared_residual=True,
    graph_dropout=0.5,
    edge_weights="activated",
    edge_direction="frame_to_text",
    energy_bias=True,
    energy_in_batch=True,
    noise_scale="std",
    replay_rows="joint",
    replay_fresh="released",
)

RELEASED_FRAMES: dict[str, Any] = {
    "sampling": "whole_rate",
    "short": "zeros",
    "square_pixels": True,
}
"""Frames as the authors read them, as changes to a `FrameSpec`: every int(rate)-th frame, zeros
(after normalisation) where there are too few, the pixel aspect ignored."""

RELEASED_SCRIPTS: dict[str, dict[str, Any]] = {
    "msrvtt-b32": {"energy": "mlp", "frame_position": False},
    "msrvtt-b16": {"energy": "bilinear", "energy_support_weight": 1.0},
    "didemo": {"energy": "mlp", "num_frames": 64},
    "msvd": {"energy": "mlp", "frame_position": False, "energy_support_weight": 1.0},
    "vatex": {"energy": "mlp", "energy_support_weight": 1.0},
}
"""Changes of each released script (docs/reference/paper_map.md, row 51)."""
