"""EagleNet: text enriched by its relations with the frames of a video (CVPR 2026)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UnknownNameError, too_many_frames
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.energy.energies import ENERGIES, Energy, EnergyPooling, energy_matching_loss
from eaglenet.energy.langevin import (
    ChainRunner,
    ChainStart,
    FreshRows,
    NoiseScale,
    ReplayBuffer,
    noise_deviation,
)
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.layers.masking import first_right_video
from eaglenet.layers.stochastic_text import (
    Prior,
    StochasticText,
    SupportMode,
    draw_noise,
    pair_noise,
    row_keys,
    support_text,
)
from eaglenet.layers.text_frame_graph import (
    EdgeDirection,
    EdgeWeights,
    GraphKind,
    HeadSize,
    TextFrameGraph,
)
from eaglenet.losses import SigmoidLoss, SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class EagleNetConfig(MethodConfig):
    """Settings of EagleNet: one field per choice of the paper, its ablations or the released code.

    Defaults are those of the equations of the paper; recipes train with ``support="elementwise"``
    (:func:`.support_text`). ``docs/reference/paper_map.md`` lists the source of each.
    """

    dim: int = 512
    mask_frames: bool = True  # ignore padded frames; the released code treats them as real
    unit_features: bool = False  # normalise texts and frames; for towers other than CLIP
    token_shift: bool = False  # last two visual blocks exchange tokens with adjacent frames

    # Stochastic text
    num_candidates: int = 20
    prior: Prior = "normal"
    radius_bias: bool = False
    noise_seed: int = 0  # seed of the evaluation noise
    support: SupportMode = "pair"

    # Fine-grained relationship learning; off: one random candidate per pair, the best at inference
    relation_learning: bool = True
    graph: GraphKind = "rgat"
    num_layers: int = 2
    num_heads: int = 4
    head_size: HeadSize = "full"
    shared_residual: bool = False  # W_out has the width of one head, added to every head
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
    energy_bias: bool = False  # bias of the bilinear map, or output bias of the MLP
    energy_penalty: float = 1.0  # c of the magnitude penalty
    energy_in_batch: bool = False
    energy_support_weight: float = 0.0
    num_chains: int = 0  # sampled pairs per batch, B' of algorithm 1; 0: one per text
    langevin_steps: int = 20
    langevin_step_size: float = 1.0
    langevin_noise: float = 0.005
    noise_scale: NoiseScale = "variance"  # meaning of langevin_noise
    replay_size: int = 500
    replay_rows: ChainStart = "independent"
    replay_fresh: FreshRows = "symmetric"
    fresh_fraction: float = 0.05

    # Losses
    loss: Literal["sigmoid", "softmax"] = "sigmoid"
    initial_temperature: float = 4.77  # of the sigmoid loss, as the bias; for trained CLIP,
    initial_bias: float = -12.93  # too large for untrained towers
    support_weight: float = 0.8
    energy_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "num_candidates", "num_layers", "num_heads")
        if self.energy is not None:
            self.require_positive("replay_size")
        if self.num_chains < 0:
            raise ConfigError(f"num_chains is {self.num_chains}; it must be 0 or more")
        if self.langevin_noise < 0:
            raise ConfigError(f"langevin_noise is {self.langevin_noise}; it must be 0 or more")
        if not 0 <= self.fresh_fraction <= 1:
            raise ConfigError(f"fresh_fraction is {self.fresh_fraction}; it must be from 0 to 1")

    @classmethod
    def for_script(cls, dataset: str = "msrvtt-b32", **changes: Any) -> EagleNetConfig:
        """Return the config of the released script for a dataset."""
        if dataset not in RELEASED_SCRIPTS:
            names = ", ".join(RELEASED_SCRIPTS)
            raise UnknownNameError(f"no released script for {dataset!r}; use one of: {names}")
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
"""Frame sampling of the released code, as changes to a ``FrameSpec``: every int(rate)-th frame,
padding with zeros after normalisation, pixels taken as square."""

RELEASED_SCRIPTS: dict[str, dict[str, Any]] = {
    "msrvtt-b32": {"energy": "mlp", "frame_position": False},
    "msrvtt-b16": {"energy": "bilinear", "energy_support_weight": 1.0},
    "didemo": {"energy": "mlp", "num_frames": 64},
    "msvd": {"energy": "mlp", "frame_position": False, "energy_support_weight": 1.0},
    "vatex": {"energy": "mlp", "energy_support_weight": 1.0},
}
"""Changes of each released script (docs/reference/paper_map.md, row 51)."""


Pairs = tuple[Tensor, Tensor]
"""Texts and frames of chains: their starts, their ends, or their noise at every step."""


@dataclass(frozen=True)
class Matching:
    """Intermediate results for all pairs."""

    text: Float[Tensor, "texts videos dim"]
    """Enriched text of each pair; without relation learning, its best candidate."""
    pooled_videos: Float[Tensor, "texts videos dim"]
    """Frames of each video, pooled with the enriched text as the query."""
    radius: Float[Tensor, "texts videos dim"]
    scores: Float[Tensor, "texts videos"]


@register(
    EagleNetConfig,
    paper="EagleNet: fine-grained relationship learning and energy-aware matching (CVPR 2026)",
    checked_by="golden",
)
class EagleNet(Method):
    """Fine-grained relationship learning, energy-aware matching and the sigmoid loss.

    Candidates are drawn around a text, within a radius that depends on the video. A graph over
    candidates and frames weights them. The weighted text ``t_gen`` pools the frames and is compared
    with the result. The energy is used in training only.
    """

    name = "eaglenet"
    config: EagleNetConfig
    # A pair takes 260 kB in the size of the paper: all candidates and frames, per relation.
    score_tile = (16, 64)
    noise: Tensor

    def __init__(self, encoder: Encoder, config: EagleNetConfig) -> None:
        super().__init__(encoder, config)
        if encoder.dim != config.dim:
            raise ConfigError(
                f"the features of the encoder have width {encoder.dim}, but dim is {config.dim}; "
                f"use replace(config, dim={encoder.dim})"
            )
        self.unit_features = config.unit_features
        self.stochastic = StochasticText(config.num_frames, config.dim, bias=config.radius_bias)
        self.pooling = FramePooling(config.dim, dropout=config.pool_dropout)
        self.graph = (
            TextFrameGraph(
                config.dim,
                config.num_frames,
                kind=config.graph,
                num_layers=config.num_layers,
                num_heads=config.num_heads,
                head_size=config.head_size,
                shared_residual=config.shared_residual,
                frame_edges=config.frame_edges,
                frame_position=config.frame_position,
                edge_weights=config.edge_weights,
                edge_direction=config.edge_direction,
                negative_slope=config.negative_slope,
                dropout=config.graph_dropout,
            )
            if config.relation_learning
            else None
        )
        self.energy: Energy | None = None
        self.replay: ReplayBuffer | None = None
        self.run_chain = ChainRunner()
        if config.energy is not None:
            # The output bias of the MLP learns only through the magnitude penalty.
            bias = config.energy_bias and (config.energy != "mlp" or config.energy_penalty > 0)
            self.energy = ENERGIES[config.energy](
                config.dim, pooling=config.energy_pooling, bias=bias
            )
            self.replay = ReplayBuffer(
                config.replay_size,
                1 if config.energy_pooling == "global" else config.num_frames,
                config.dim,
                fresh_fraction=config.fresh_fraction,
                rows=config.replay_rows,
                fresh=config.replay_fresh,
            )
        self.loss = (
            SigmoidLoss(temperature=config.initial_temperature, bias=config.initial_bias)
            if config.loss == "sigmoid"
            else SoftmaxLoss()
        )
        self.register_buffer("noise", torch.empty(config.num_candidates, config.dim))
        self.reseed(config.noise_seed)

    @classmethod
    def build(cls, config: EagleNetConfig, encoder: Encoder) -> EagleNet:
        """Create the method; with ``token_shift``, the last two visual blocks exchange tokens."""
        last = encoder.num_blocks
        if last:
            encoder.set_token_shift((last - 2, last - 1) if config.token_shift else ())
        return super().build(config, encoder)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder, the loss terms and a step of the energy chain in place."""
        super().compile(*args, **kwargs)
        # Dropout draws from the default generator, so that compiled and plain steps agree.
        options = {"options": {"fallback_random": True}, **kwargs}
        nn.Module.compile(self, *args, **options)
        self.run_chain.compile(*args, **options)

    def reseed(self, seed: int) -> None:
        """Replace the evaluation noise; a new model has that of ``config.noise_seed``."""
        generator = torch.Generator().manual_seed(seed)
        noise = draw_noise(*self.noise.shape, prior=self.config.prior, generator=generator)
        self.noise.copy_(noise)

    def score(
        self, text: TextFeatures, video: VideoFeatures, noise: Float[Tensor, "..."] | None = None
    ) -> Float[Tensor, "texts videos"]:
        """Return the cosine of enriched text and pooled video.

        Args:
            noise: noise of candidates, ``[candidates, dim]`` for all pairs or
                ``[texts, videos, candidates, dim]``; by default the noise stored with the model,
                so that a score depends on its pair only.
        """
        return self.match(text, video, self.noise if noise is None else noise).scores

    def match(
        self, text: TextFeatures, video: VideoFeatures, noise: Float[Tensor, "..."]
    ) -> Matching:
        """Return enriched texts, pooled videos, radii and scores of all pairs."""
        sentence, frames, mask = text.sentence, video.frames, self.frame_mask(video)
        radius = self.stochastic.radius(sentence, frames, mask)
        candidates = self.stochastic.candidates(sentence, radius, noise.to(sentence.dtype))
        if self.graph is None:
            videos = self.pooling(sentence, frames, mask)
            texts = self._closest(candidates, videos)
        else:
            shape = (*candidates.shape[:2], 1, candidates.shape[-1])
            nodes = torch.cat([sentence[:, None, None].expand(shape), candidates], dim=2)
            weights = self.graph(nodes, frames, mask)
            texts = torch.einsum("tvn,tvnd->tvd", weights.to(nodes.dtype), nodes)
            videos = self.pooling(texts, frames, mask)
        return Matching(texts, videos, radius, F.cosine_similarity(texts, videos, dim=-1))

    def losses(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: RightPairs,
        noise: Float[Tensor, "..."] | None = None,
        chain_start: Pairs | None = None,
        chain_noise: Pairs | None = None,
        generator: torch.Generator | None = None,
    ) -> Losses:
        """Return ``L(t_gen, v) + lambda_sup L(t_sup, v) + lambda_eam L_eam`` (paper eqs. 17, 19).

        Args:
            noise: as in :meth:`score`; by default fresh noise for each pair.
            chain_start: starts of the Langevin chains, text ``[pairs, dim]`` and frames
                ``[pairs, frames, dim]``, instead of rows of the replay buffer.
            chain_noise: standard normal noise of every step; see :func:`.langevin.sample`.
            generator: source of all noise; by default the generator of the device.
        """
        config = self.config
        if noise is None:
            noise = self.draw_candidate_noise(len(text), len(video), text.sentence, generator)
        weights = {"enriched": 1.0, "support": config.support_weight}
        if self.energy is not None:
            weights["energy"] = config.energy_weight
            if config.energy_support_weight > 0:
                weights["energy_support"] = config.energy_support_weight
        # The samples do not depend on the terms and need no gradient, so they are drawn first.
        samples = {
            name: self._sample_pairs(len(text), chain_start, chain_noise, generator)
            for name in weights
            if name.startswith("energy")
        }
        return Losses(self(text, video, positives, noise, samples), weights)

    def forward(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: RightPairs,
        noise: Float[Tensor, "..."],
        samples: dict[str, Pairs],
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the terms of :meth:`losses`, given their noise and the samples of each energy."""
        matching = self.match(text, video, noise)
        support = support_text(
            text.sentence, matching.pooled_videos, matching.radius, mode=self.config.support
        )
        support_scores = F.cosine_similarity(support, matching.pooled_videos, dim=-1)
        terms = {
            "enriched": self.loss(matching.scores, positives),
            "support": self.loss(support_scores, positives),
        }
        for name, pairs in samples.items():
            sentence = text.sentence
            if name == "energy_support":
                right_videos = first_right_video(positives)
                texts = torch.arange(len(text), device=right_videos.device)
                sentence = F.normalize(support[texts, right_videos], dim=-1)
            terms[name] = self._energy_loss(sentence, video, matching, positives, pairs)
        return terms

    def pair_noise(
        self, text: TextFeatures, video: VideoFeatures, seed: int
    ) -> Float[Tensor, "texts videos candidates dim"]:
        """Return separate evaluation noise for each pair, as in the released code."""
        keys = row_keys(text.sentence), row_keys(video.frames)
        return pair_noise(*keys, *self.noise.shape, prior=self.config.prior, seed=seed)

    def draw_candidate_noise(
        self, num_texts: int, num_videos: int, like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Draw noise for every pair; without a graph, for one candidate per pair."""
        config = self.config
        count = config.num_candidates if self.graph is not None else 1
        return draw_noise(
            num_texts,
            num_videos,
            count,
            config.dim,
            prior=config.prior,
            device=like.device,
            dtype=like.dtype,
            generator=generator,
        )

    def frame_mask(self, video: VideoFeatures) -> Bool[Tensor, "videos frames"] | None:
        """Return the mask of real frames; None if padding counts, as in the released code."""
        num_frames = video.frames.shape[1]
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        return video.mask if self.config.mask_frames else None

    def _closest(
        self,
        candidates: Float[Tensor, "texts videos candidates dim"],
        videos: Float[Tensor, "texts videos dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        """Return the candidate that is nearest to the pooled video by cosine."""
        if candidates.shape[2] == 1:
            return candidates[:, :, 0]
        best = F.cosine_similarity(candidates, videos[:, :, None], dim=-1).argmax(dim=-1)
        return candidates.take_along_dim(best[..., None, None], dim=2)[:, :, 0]

    def pair_energies(
        self, sentence: Float[Tensor, "texts dim"], video: VideoFeatures, matching: Matching
    ) -> Float[Tensor, "texts videos"]:
        """Return ``E(t, F)`` of every pair; with global pooling, ``E(t, v)``."""
        energy, _ = self._energy_and_replay()
        if self.config.energy_pooling != "global":
            return energy.all_pairs(sentence, video.frames, self.frame_mask(video))
        texts = sentence[:, None].expand_as(matching.pooled_videos).flatten(0, 1)
        energies: Tensor = energy(texts, matching.pooled_videos.flatten(0, 1)[:, None])
        return energies.reshape(matching.scores.shape)

    def _energy_and_replay(self) -> tuple[Energy, ReplayBuffer]:
        if self.energy is None or self.replay is None:
            raise ConfigError("this model has no energy; build it with energy='bilinear'")
        return self.energy, self.replay

    def _energy_loss(
        self,
        sentence: Float[Tensor, "texts dim"],
        video: VideoFeatures,
        matching: Matching,
        positives: RightPairs,
        samples: Pairs,
    ) -> Float[Tensor, ""]:
        energy, _ = self._energy_and_replay()
        return energy_matching_loss(
            self.pair_energies(sentence, video, matching),
            positives,
            energy(*samples),
            penalty=self.config.energy_penalty,
            in_batch=self.config.energy_in_batch,
        )

    def _sample_pairs(
        self,
        num_texts: int,
        start: Pairs | None,
        noise: Pairs | None,
        generator: torch.Generator | None,
    ) -> Pairs:
        """Return the ends of Langevin chains; training stores them in the replay buffer."""
        config = self.config
        energy, replay = self._energy_and_replay()
        if start is None:
            start = replay.draw(config.num_chains or num_texts, generator=generator)
        samples = self.run_chain(
            energy,
            *start,
            steps=config.langevin_steps,
            step_size=config.langevin_step_size,
            deviation=noise_deviation(config.langevin_noise, config.noise_scale),
            noise=noise,
            generator=generator,
        )
        if self.training:
            replay.write(*samples)
        return samples
