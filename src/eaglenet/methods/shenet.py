"""SHE-Net, approximate: a text's syntax levels choose frames and patches level by level."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.layers.masking import masked_softmax, mean_pooling
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import TowerMethod

LEVELS = ("sentence", "verbs", "nouns", "adjectives")


@dataclass(frozen=True)
class SHENetConfig(MethodConfig):
    """Settings of our reading of SHE-Net.

    num_selected: frames that the verbs choose; num_regions: patches that nouns and adjectives
    choose in those frames.
    """

    num_selected: int = 4
    num_regions: int = 8


@register(
    SHENetConfig, paper="SHE-Net (Yu et al., TCSVT 2025)", checked="approximate from the abstract"
)
class SHENet(TowerMethod):
    r"""Levels of a text against what each chooses of the video.

    .. math:: s = \cos(t, \bar v) + \sum_l g_l\, \mathrm{mean\,top}_K \cos(n_l, x), \quad
        n_l = \sum_i \alpha_{li} w_i + W_l n_{l-1}

    The sentence and the verbs look at frames, nouns and adjectives at the patches of the frames
    that the verbs chose; ``g`` are learned shares of the levels.

    Approximate: no code was released with what we could read. Roles of words come from a learned
    softmax for each level instead of a parser, and a level's visual node is the mean of its best
    cosines instead of the cosine of a mean, so that no vector of a pair is made.
    """

    name = "shenet"
    needs_words = True
    needs_patches = True
    config: SHENetConfig

    def __init__(self, encoder: ClipEncoder, config: SHENetConfig) -> None:
        super().__init__(encoder, config)
        dim = encoder.dim
        self.roles = nn.Linear(dim, len(LEVELS) - 1, bias=False)
        nn.init.normal_(self.roles.weight, std=0.02)
        self.parents = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in LEVELS[1:])
        for parent in self.parents:
            nn.init.normal_(parent.weight, std=0.02)  # type: ignore[arg-type]
        self.levels = nn.Parameter(torch.zeros(len(LEVELS)))
        self.loss = SoftmaxLoss()

    def nodes(self, text: TextFeatures) -> Float[Tensor, "texts levels dim"]:
        """One unit vector per level: the sentence, then words by role, each with its parent."""
        if text.words is None or text.words_mask is None:
            raise ConfigError("shenet was given texts without words; use its own encode_text")
        logits = self.roles(text.words).transpose(1, 2)  # [texts, roles, words]
        shares = masked_softmax(logits, text.words_mask[:, None])
        nodes = [text.sentence]
        for level, parent in enumerate(self.parents):
            own = torch.einsum("tw,twd->td", shares[:, level], text.words)
            nodes.append(own + parent(nodes[-1]))
        return F.normalize(torch.stack(nodes, dim=1), dim=-1)

    @property
    def score_tile(self) -> tuple[int, int]:
        # Cosines with every patch of every frame, for two levels: 5 kB a pair with ViT-B/32.
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        if video.patches is None:
            raise ConfigError("shenet was given videos without patches; use its own encode_video")
        nodes = self.nodes(text)
        shares = self.levels.softmax(dim=0)
        frames = F.normalize(video.frames, dim=-1)
        to_frames = torch.einsum("tld,vfd->ltvf", nodes[:, :2], frames)
        to_frames = to_frames.masked_fill(~video.mask, -2.0)
        count = min(self.config.num_selected, video.mask.shape[1])
        best, frame_indices = to_frames.topk(count, dim=-1)  # [level, texts, videos, selected]
        # A video with fewer real frames is judged by those it has.
        is_real = best > -1.5
        scores = _mean_of(best, is_real)
        total = torch.einsum("l,ltv->tv", shares[:2], scores)
        patches = F.normalize(video.patches[:, :, 1:], dim=-1)
        for level in (2, 3):
            cosines = torch.einsum("td,vfpd->tvfp", nodes[:, level], patches)
            inside = cosines.take_along_dim(frame_indices[1][..., None], dim=2)
            inside = inside.masked_fill(~is_real[1][..., None], -2.0).flatten(2)
            regions = min(self.config.num_regions, patches.shape[2])
            top = inside.topk(regions, dim=-1).values
            total = total + shares[level] * _mean_of(top, top > -1.5)
        sentence = F.normalize(text.sentence, dim=-1)
        return total + sentence @ mean_pooling(video.frames, video.mask).T


def _mean_of(values: Float[Tensor, "*any k"], is_real: Bool[Tensor, "*any k"]) -> Tensor:
    """Mean of the real ones; 0 where there is none."""
    valid_values = values.masked_fill(~is_real, 0.0)
    return valid_values.sum(dim=-1) / is_real.sum(dim=-1).clamp(min=1)
