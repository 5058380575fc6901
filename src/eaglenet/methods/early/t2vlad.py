"""T2VLAD: VLAD of words and of expert tokens with shared centres, and a mixture of experts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import UsageError
from eaglenet.core.types import Encoder, Expert, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.experts import GatedEmbedding, Vlad
from eaglenet.layers.masking import Padding, attention_bias, check_heads, effective_mask
from eaglenet.layers.transformer import attend_heads
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import (
    ExpertMethod,
    expert_weights,
    weight_layer,
    words_width,
)


class PreNormLayer(nn.Module):
    """Layer: x + attention(LN x), x + down(relu(up(LN x))), LN; padding is masked."""

    def __init__(self, dim: int, *, num_heads: int) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(dim)
        self.in_projection = nn.Linear(dim, 3 * dim)
        self.out_projection = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, dim)
        self.down = nn.Linear(dim, dim)
        self.ln_last = nn.LayerNorm(dim)

    def forward(
        self, tokens: Float[Tensor, "rows tokens dim"], mask: Bool[Tensor, "rows tokens"]
    ) -> Float[Tensor, "rows tokens dim"]:
        bias = attention_bias(mask, tokens.dtype)
        output = attend_heads(self.in_projection(self.ln_1(tokens)), self.num_heads, bias)
        tokens = tokens + self.out_projection(output)
        tokens = tokens + self.down(F.relu(self.up(self.ln_2(tokens))))
        result: Tensor = self.ln_last(tokens)
        return result


@dataclass(frozen=True)
class T2VLADConfig(MethodConfig):
    """Settings of T2VLAD.

    num_ghosts: background centres, which are dropped after the assignment.
    padding: ``official`` uses no masks, as in the official port: padding and missing experts enter
        attention, VLAD and maxima.
    """

    dim: int = 512
    num_centres: int = 9
    num_ghosts: int = 1
    num_heads: int = 4
    margin: float = 0.2
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "num_centres")


@register(
    T2VLADConfig, paper="T2VLAD (Wang et al., CVPR 2021)", checked_by="golden", reads_experts=True
)
class T2VLAD(ExpertMethod):
    r"""``s = (s_global + s_local) / 2``.

    s_local is the product of two VLADs with the same centres: the mean cosine over the centres. The
    assignment learns from texts only, the centres from both. s_global is the mixture of experts
    with t_e from the VLAD of the text and v_e from the maximum over the tokens of the expert.

    Paper: width 768 over a fine-tuned BERT; here words of another width go through a linear map.
    The implementation and the recipes follow a port. It uses AdamW; the paper probably used Ranger.
    """

    name = "t2vlad"
    has_hardest_negatives = True
    config: T2VLADConfig

    def __init__(self, encoder: Encoder, config: T2VLADConfig) -> None:
        super().__init__(encoder, config)
        dim = config.dim
        in_dim = words_width(encoder)
        self.word_map = nn.Linear(in_dim, dim) if in_dim != dim else None
        self.vlad = Vlad(dim, config.num_centres, num_ghosts=config.num_ghosts, num_sides=2)
        self.text_heads = nn.ModuleList(GatedEmbedding(self.vlad.width, dim) for _ in self.widths)
        self.weigh = weight_layer(self.vlad.width, len(self.widths))
        self.token_maps = nn.ModuleDict(
            {name: nn.Linear(width, dim) for name, width in self.widths.items()}
        )
        self.mixer = PreNormLayer(dim, num_heads=config.num_heads)
        self.video_heads = nn.ModuleDict(
            {name: GatedEmbedding(width, dim) for name, width in self.widths.items()}
        )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        _, words, mask = self.read_text(texts)
        mask = effective_mask(mask, self.config.padding)
        if self.word_map is not None:
            words = self.word_map(words)
        aggregate = self.vlad(words, mask, side=0)
        vectors = torch.stack([head(aggregate) for head in self.text_heads], dim=1)
        return TextFeatures(
            sentence=aggregate, words=vectors, weights=expert_weights(self.weigh, aggregate)
        )

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        present = torch.stack([expert.present for expert in experts.values()], dim=1)
        experts = {
            name: dataclasses.replace(expert, mask=effective_mask(expert.mask, self.config.padding))
            for name, expert in experts.items()
        }
        tokens = torch.cat(
            [
                F.normalize(self.token_maps[name](expert.values), dim=-1)
                for name, expert in experts.items()
            ],
            dim=1,
        )
        mask = torch.cat([expert.mask for expert in experts.values()], dim=1)
        aggregate = self.vlad(self.mixer(tokens, mask), mask, side=1, learn_assignment=False)
        vectors = [self._global(name, expert) for name, expert in experts.items()]
        return VideoFeatures(
            frames=self._frame_vectors(experts[self.frames_expert].values),
            mask=video.mask,
            video=aggregate,
            tokens=torch.stack(vectors, dim=1),
            tokens_mask=present,
        )

    def _global(self, name: str, expert: Expert) -> Float[Tensor, "videos dim"]:
        lowest = torch.finfo(expert.values.dtype).min
        # Of equal values, only the first has a gradient, as in the official port.
        largest = expert.values.masked_fill(~expert.mask[..., None], lowest).max(dim=1).values
        largest = largest.masked_fill(~expert.present[:, None], 0.0)
        vector: Tensor = self.video_heads[name](largest, expert.present)
        return vector * expert.present[:, None].to(vector.dtype)

    def _frame_vectors(
        self, values: Float[Tensor, "videos frames width"]
    ) -> Float[Tensor, "videos frames dim"]:
        """Return vectors of single frames, for moments; not computed in training."""
        if self.training:
            result: Tensor = self.token_maps[self.frames_expert](values).detach()
            return result
        frame_vectors: Tensor = self.video_heads[self.frames_expert](values.flatten(0, 1))
        return frame_vectors.view(*values.shape[:2], -1)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        if video.video is None:
            raise UsageError("the videos have no VLAD vectors; encode them with encode_video")
        return (super().score(text, video) + text.sentence @ video.video.T) / 2
