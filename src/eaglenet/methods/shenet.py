"""SHE-Net, approximate: levels of syntax of a text select frames and patches."""

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
    """Settings of our interpretation of SHE-Net.

    num_selected: frames that the verbs select. num_regions: patches that nouns and adjectives
    select in those frames.
    """

    num_selected: int = 4
    num_regions: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_selected")


@register(
    SHENetConfig,
    paper="SHE-Net (Yu et al., TCSVT 2025)",
    checked_by="approximate from the abstract",
)
class SHENet(TowerMethod):
    r"""Sum of the similarities of each level of a text with the frames or patches it selects.

    .. math:: s = \cos(t, \bar v) + \sum_l g_l\, \mathrm{mean\,top}_K \cos(n_l, x), \quad
        n_l = \sum_i \alpha_{li} w_i + W_l n_{l-1}

    Sentence and verbs are compared with frames, nouns and adjectives with the patches of the frames
    that the verbs selected; ``g`` are learned weights of the levels.

    Approximate: implemented from the abstract. A learned softmax per level replaces the parser, and
    a level scores the mean of its best cosines instead of the cosine of a mean, so that no vectors
    per pair are needed.
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
        """Return one unit vector per level: the text, then words by role, each with its parent."""
        if text.words is None or text.words_mask is None:
            raise ConfigError("shenet needs texts with words; encode them with its encode_text")
        logits = self.roles(text.words).transpose(1, 2)  # [texts, roles, words]
        weights = masked_softmax(logits, text.words_mask[:, None])
        nodes = [text.sentence]
        for level, parent in enumerate(self.parents):
            words = torch.einsum("tw,twd->td", weights[:, level], text.words)
            nodes.append(words + parent(nodes[-1]))
        return F.normalize(torch.stack(nodes, dim=1), dim=-1)

    @property
    def score_tile(self) -> tuple[int, int]:
        # Cosines with every patch of every frame, for two levels: 5 kB per pair with ViT-B/32.
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        if video.patches is None:
            raise ConfigError("shenet needs videos with patches; encode them with its encode_video")
        nodes = self.nodes(text)
        weights = self.levels.softmax(dim=0)
        frames = F.normalize(video.frames, dim=-1)
        to_frames = torch.einsum("tld,vfd->ltvf", nodes[:, :2], frames)
        to_frames = to_frames.masked_fill(~video.mask, -2.0)
        count = min(self.config.num_selected, video.mask.shape[1])
        best, frame_indices = to_frames.topk(count, dim=-1)  # [level, texts, videos, selected]
        # A video with fewer real frames is scored by those.
        is_real = best > -1.5
        scores = _mean_of(best, is_real)
        total = torch.einsum("l,ltv->tv", weights[:2], scores)
        patches = F.normalize(video.patches[:, :, 1:], dim=-1)
        for level in (2, 3):
            cosines = torch.einsum("td,vfpd->tvfp", nodes[:, level], patches)
            patch_scores = cosines.take_along_dim(frame_indices[1][..., None], dim=2)
            patch_scores = patch_scores.masked_fill(~is_real[1][..., None], -2.0).flatten(2)
            regions = min(self.config.num_regions, patches.shape[2])
            top = patch_scores.topk(regions, dim=-1).values
            total = total + weights[level] * _mean_of(top, top > -1.5)
        sentence = F.normalize(text.sentence, dim=-1)
        return total + sentence @ mean_pooling(video.frames, video.mask).T


def _mean_of(values: Float[Tensor, "*any k"], is_real: Bool[Tensor, "*any k"]) -> Tensor:
    """Return the mean of the real values; 0 if there is none."""
    valid_values = values.masked_fill(~is_real, 0.0)
    return valid_values.sum(dim=-1) / is_real.sum(dim=-1).clamp(min=1)
