"""EagleNet: text enriched by its relations with the frames of a video (CVPR 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.energy.captured_chain import ChainRunner
from eaglenet.energy.energies import ENERGIES
from eaglenet.energy.langevin import noise_deviation
from eaglenet.energy.matching_loss import energy_matching_loss
from eaglenet.energy.replay_buffer import ReplayBuffer
from eaglenet.layers.frame_pooling import FramePooling
from eaglenet.layers.masking import first_right_video
from eaglenet.layers.stochastic_text import (
    StochasticText,
    draw_noise,
    pair_noise,
    row_keys,
    support_text,
)
from eaglenet.layers.text_frame_graph import TextFrameGraph
from eaglenet.losses.sigmoid import SigmoidLoss
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, Method, MethodSpec, adopt_logit_scale, frame_spec_for
from eaglenet.methods.eaglenet_config import EagleNetConfig

ChainNoise = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Matching:
    """Every pair, as the method sees it."""

    text: Float[Tensor, "texts videos dim"]
    """The enriched text of each pair (the drawn candidate without relation learning)."""
    pooled: Float[Tensor, "texts videos dim"]
    """The video as the enriched text sees it."""
    radius: Float[Tensor, "texts videos dim"]
    scores: Float[Tensor, "texts videos"]


class EagleNet(Method):
    """Fine-grained relationship learning, energy-aware matching and the sigmoid loss.

    A text draws candidates within a radius that each video sets; a graph over the texts and the
    frames weighs them; the weighted text ``t_gen`` pools the frames and is compared with the
    result. The energy part works in training only.
    """

    name = "eaglenet"
    config: EagleNetConfig
    noise: Tensor

    def __init__(self, encoder: Encoder, config: EagleNetConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        if encoder.dim != config.dim:
            raise ConfigError(
                f"the encoder gives features of width {encoder.dim}, the configuration says dim "
                f"{config.dim}; use replace(config, dim={encoder.dim})"
            )
        self.config = config
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
        self.energy, self.replay = None, None
        self.run_chain = ChainRunner()
        if config.energy is not None:
            # The MLP's output bias only learns through the magnitude penalty.
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

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder, the graph and the pooling in place."""
        super().compile(*args, **kwargs)
        # With the generator's own numbers, so that a compiled step drops what a plain one drops.
        own_noise = {"options": {"fallback_random": True}, **kwargs}
        self.pooling.compile(*args, **own_noise)
        if self.graph is not None:
            self.graph.compile(*args, **own_noise)

    def reseed(self, seed: int) -> None:
        """Draw another evaluation bank; the model's own is the one of ``config.noise_seed``."""
        generator = torch.Generator().manual_seed(seed)
        bank = draw_noise(*self.noise.shape, prior=self.config.prior, generator=generator)
        self.noise.copy_(bank)

    @property
    def score_tile(self) -> tuple[int, int]:
        # All candidates and frames of a pair, once per relation: 260 kB in the paper's size.
        return (16, 64)

    def score(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        noise: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "texts videos"]:
        """Cosine of enriched text and pooled video.

        Args:
            noise: candidate noise ``[candidates, dim]`` for all pairs or
                ``[texts, videos, candidates, dim]``; without it the bank kept with the model, so
                that a score depends on its pair alone.
        """
        return self.match(text, video, self.noise if noise is None else noise).scores

    def match(
        self, text: TextFeatures, video: VideoFeatures, noise: Float[Tensor, "..."]
    ) -> Matching:
        """Enriched texts, pooled videos, radii and scores of all pairs."""
        sentence, frames, mask = text.sentence, video.frames, self.frame_mask(video)
        radius = self.stochastic.radius(sentence, frames, mask)
        candidates = self.stochastic.candidates(sentence, radius, noise.to(sentence.dtype))
        if self.graph is None:
            pooled = self.pooling(sentence, frames, mask)
            closest = self._closest(candidates, pooled)
            return Matching(closest, pooled, radius, F.cosine_similarity(closest, pooled, dim=-1))
        shape = (*candidates.shape[:2], 1, candidates.shape[-1])
        nodes = torch.cat([sentence[:, None, None].expand(shape), candidates], dim=2)
        weights = self.graph(nodes, frames, mask)
        enriched = torch.einsum("tvn,tvnd->tvd", weights.to(nodes.dtype), nodes)
        pooled = self.pooling(enriched, frames, mask)
        return Matching(enriched, pooled, radius, F.cosine_similarity(enriched, pooled, dim=-1))

    def losses(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: RightPairs,
        noise: Float[Tensor, "..."] | None = None,
        chain_start: tuple[Tensor, Tensor] | None = None,
        chain_noise: ChainNoise | None = None,
        generator: torch.Generator | None = None,
    ) -> Losses:
        """``L(t_gen, v) + lambda_sup L(t_sup, v) + lambda_eam L_eam`` (paper eqs. 17, 19).

        Args:
            noise: as in :meth:`score`; fresh noise for each pair where none is given.
            chain_start: text ``[pairs, dim]`` and frames ``[pairs, frames, dim]`` where the
                Langevin chains start, instead of rows of the replay buffer.
            chain_noise: standard normal noise of every step, see :func:`eaglenet.energy.sample`.
            generator: source of all noise; the device's default generator where none is given.
        """
        config = self.config
        if noise is None:
            noise = self.draw_candidate_noise(len(text), len(video), text.sentence, generator)
        matching = self.match(text, video, noise)
        support = support_text(text.sentence, matching.pooled, matching.radius, mode=config.support)
        support_scores = F.cosine_similarity(support, matching.pooled, dim=-1)
        terms = {
            "enriched": self.loss(matching.scores, positives),
            "support": self.loss(support_scores, positives),
        }
        weights = {"enriched": 1.0, "support": config.support_weight}
        if self.energy is not None:
            chain: dict[str, Any] = {
                "start": chain_start,
                "noise": chain_noise,
                "generator": generator,
            }
            terms["energy"] = self._energy_loss(text.sentence, video, matching, positives, **chain)
            weights["energy"] = config.energy_weight
            if config.energy_support_weight > 0:
                own_video = first_right_video(positives)
                rows = torch.arange(len(text), device=own_video.device)
                own_support = F.normalize(support[rows, own_video], dim=-1)
                terms["energy_support"] = self._energy_loss(
                    own_support, video, matching, positives, **chain
                )
                weights["energy_support"] = config.energy_support_weight
        return Losses(terms, weights)

    def pair_noise(
        self, text: TextFeatures, video: VideoFeatures, seed: int
    ) -> Float[Tensor, "texts videos candidates dim"]:
        """Evaluation noise of its own for each pair, as the authors draw it."""
        keys = row_keys(text.sentence), row_keys(video.frames)
        return pair_noise(*keys, *self.noise.shape, prior=self.config.prior, seed=seed)

    def draw_candidate_noise(
        self, num_texts: int, num_videos: int, like: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Fresh noise of every pair: one candidate each where no graph weighs several."""
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
        """Mask of the frames that count; None where all do (the released code counts padding)."""
        num_frames = video.frames.shape[1]
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        return video.mask if self.config.mask_frames else None

    def _closest(
        self,
        candidates: Float[Tensor, "texts videos candidates dim"],
        pooled: Float[Tensor, "texts videos dim"],
    ) -> Float[Tensor, "texts videos dim"]:
        """The candidate nearest to the pooled video by cosine."""
        if candidates.shape[2] == 1:
            return candidates[:, :, 0]
        best = F.cosine_similarity(candidates, pooled[:, :, None], dim=-1).argmax(dim=-1)
        return candidates.take_along_dim(best[..., None, None], dim=2)[:, :, 0]

    def pair_energies(
        self, sentence: Float[Tensor, "texts dim"], video: VideoFeatures, matching: Matching
    ) -> Float[Tensor, "texts videos"]:
        """``E(t, F)`` of every pair; ``E(t, v)`` with the pooled video for global pooling."""
        if self.energy is None:
            raise ConfigError("this model has no energy; build it with energy='bilinear'")
        if self.config.energy_pooling != "global":
            return self.energy.all_pairs(sentence, video.frames, self.frame_mask(video))
        texts = sentence[:, None].expand_as(matching.pooled).flatten(0, 1)
        energies: Tensor = self.energy(texts, matching.pooled.flatten(0, 1)[:, None])
        return energies.reshape(matching.scores.shape)

    def _energy_loss(
        self,
        sentence: Float[Tensor, "texts dim"],
        video: VideoFeatures,
        matching: Matching,
        positives: RightPairs,
        *,
        start: tuple[Tensor, Tensor] | None,
        noise: ChainNoise | None,
        generator: torch.Generator | None,
    ) -> Float[Tensor, ""]:
        config = self.config
        if self.energy is None or self.replay is None:
            raise ConfigError("this model has no energy; build it with energy='bilinear'")
        if start is None:
            num_chains = config.num_chains or len(sentence)
            start = self.replay.draw(num_chains, generator=generator)
        chain = self.run_chain(
            self.energy,
            *start,
            steps=config.langevin_steps,
            step_size=config.langevin_step_size,
            deviation=noise_deviation(config.langevin_noise, config.noise_scale),
            noise=noise,
            generator=generator,
        )
        if self.training:
            self.replay.write(*chain)
        return energy_matching_loss(
            self.pair_energies(sentence, video, matching),
            positives,
            self.energy(*chain),
            penalty=config.energy_penalty,
            in_batch=config.energy_in_batch,
        )


def build(config: EagleNetConfig, encoder: Encoder) -> EagleNet:
    """EagleNet on an encoder. With ``token_shift`` its last two visual blocks look at neighbours.

    The encoder's own logit scale is frozen: the loss owns its temperature.
    """
    last = encoder.num_blocks
    if last:
        encoder.set_token_shift((last - 2, last - 1) if config.token_shift else ())
    method = EagleNet(encoder, config)
    adopt_logit_scale(encoder, method.loss)
    return method


METHODS.add(
    EagleNet.name,
    MethodSpec(
        config_class=EagleNetConfig,
        build=build,
        paper="EagleNet: fine-grained relationship learning and energy-aware matching (CVPR 2026)",
        checked="golden",
    ),
)
