"""CE, collaborative experts: experts gate each other, and texts weight the experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder, Expert, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.experts import CollaborativeGate, GatedEmbedding, Vlad
from eaglenet.layers.masking import Padding, effective_mask, frame_weights
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import (
    ExpertMethod,
    expert_weights,
    weight_layer,
    words_width,
)


@dataclass(frozen=True)
class CEConfig(MethodConfig):
    """Settings of CE; defaults are those of MSR-VTT.

    text_centres, text_ghosts: centres and ghost centres of the VLAD of words.
    centres: number of centres of VLAD by expert; other experts are averaged over time.
    sequential: gate experts one after the other, as in the official code (see
        :class:`~eaglenet.layers.experts.CollaborativeGate`); the paper gates all at once.
    padding: ``official`` passes padded words, padded tokens and missing experts through the network
        as zeros, as the authors' code does, and leaves missing experts out of the score only.
    """

    dim: int = 512
    text_centres: int = 28
    text_ghosts: int = 1
    centres: Mapping[str, int] = field(default_factory=dict)
    sequential: bool = False
    margin: float = 0.0938
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "text_centres")


@register(CEConfig, paper="CE (Liu et al., BMVC 2019)", checked_by="golden", reads_experts=True)
class CE(ExpertMethod):
    """Mixture of gated experts; VLAD of words and long experts, means of the others.

    Paper: width 768 over frozen GPT words. Unless ``padding`` is ``official``, padded words and
    tokens are left out of VLAD and batch statistics, and missing experts of everything. A text
    without words counts as one word.
    """

    name = "ce"
    config: CEConfig

    def __init__(self, encoder: Encoder, config: CEConfig) -> None:
        super().__init__(encoder, config)
        unknown = sorted(set(config.centres) - set(self.widths))
        if unknown or self.frames_expert in config.centres:
            raise ConfigError(
                f"centres has {', '.join(config.centres)}; expected experts among "
                f"{', '.join(self.widths)}, except {self.frames_expert}, which is used for moments"
            )
        self.text_vlad = Vlad(
            words_width(encoder), config.text_centres, num_ghosts=config.text_ghosts
        )
        self.text_heads = nn.ModuleList(
            GatedEmbedding(self.text_vlad.width, config.dim) for _ in self.widths
        )
        self.weigh = weight_layer(self.text_vlad.width, len(self.widths))
        self.vlads = nn.ModuleDict(
            {name: Vlad(self.widths[name], count) for name, count in config.centres.items()}
        )
        self.maps = nn.ModuleDict(
            {
                name: nn.Linear(width * config.centres.get(name, 1), config.dim)
                for name, width in self.widths.items()
            }
        )
        self.gate = CollaborativeGate(
            config.dim, len(self.widths), sequential=config.sequential, padding=config.padding
        )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        _, words, mask = self.read_text(texts)
        if self.config.padding == "official":
            words = words * mask[..., None].to(words.dtype)
        sentence = self.text_vlad(words, effective_mask(mask, self.config.padding))
        vectors = torch.stack([head(sentence) for head in self.text_heads], dim=1)
        return TextFeatures(
            sentence=vectors[:, self.frames_index],
            words=vectors,
            weights=expert_weights(self.weigh, sentence),
        )

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        present = torch.stack([expert.present for expert in experts.values()], dim=1)
        raw = torch.stack([self._reduce(name, expert) for name, expert in experts.items()], dim=1)
        frame_tokens = experts[self.frames_expert].values
        frames = F.normalize(self.maps[self.frames_expert](frame_tokens), dim=-1)
        return VideoFeatures(
            frames=frames, mask=video.mask, tokens=self.gate(raw, present), tokens_mask=present
        )

    def _reduce(self, name: str, expert: Expert) -> Float[Tensor, "videos dim"]:
        """Return x_e, the tokens of an expert reduced to one unit vector."""
        if name in self.vlads:
            values = expert.values * expert.mask[..., None].to(expert.values.dtype)
            vector = self.vlads[name](values, effective_mask(expert.mask, self.config.padding))
        else:
            weights = frame_weights(expert.mask, expert.values.dtype)
            vector = torch.einsum("vt,vtd->vd", weights, expert.values)
        return F.normalize(self.maps[name](vector), dim=-1)
