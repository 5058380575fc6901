"""MMT, multi-modal transformer: tokens of all experts in one sequence, one summary per expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.types import Encoder, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.experts import ExpertTokens, GatedEmbedding, require_positions
from eaglenet.layers.masking import Padding
from eaglenet.layers.transformer import PostNormStack, WordTransformer
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import (
    ExpertMethod,
    expert_weights,
    sentence_width,
    weight_layer,
    words_width,
)


@dataclass(frozen=True)
class MMTConfig(MethodConfig):
    """Settings of MMT.

    max_tokens: maximum tokens per expert; random ones in training, evenly spaced in evaluation.
    keep_missing: score missing experts by the output for their summary, as the official code does;
        False leaves them out of the score.
    padding: ``official`` starts the summary of a missing expert from the bias of its map, as the
        code of the authors does.
    text_layers: blocks over the words, for words without context; 0: use the vector of the text, as
        from a text tower.
    """

    dim: int = 512
    num_layers: int = 4
    num_heads: int = 4
    hidden_dim: int = 3072
    num_positions: int = 32
    max_tokens: int = 30
    dropout: float = 0.1
    keep_missing: bool = True
    text_layers: int = 0
    margin: float = 0.05
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "num_layers")
        require_positions(self.num_positions)


@register(
    MMTConfig, paper="MMT (Gabeur et al., ECCV 2020)", checked_by="golden", reads_experts=True
)
class MMT(ExpertMethod):
    """``s = sum_e w_e <t_e, v_e>`` with v_e the output of the transformer for expert e.

    Paper: texts come from a fine-tuned BERT; here from the encoder, or a small transformer over its
    words. Evaluation takes evenly spaced tokens; the released code draws them with a fixed seed.
    There is no pre-training on HowTo100M.
    """

    name = "mmt"
    config: MMTConfig

    def __init__(self, encoder: Encoder, config: MMTConfig) -> None:
        super().__init__(encoder, config)
        self.keep_missing = config.keep_missing
        self.tokens = ExpertTokens(
            self.widths,
            config.dim,
            num_positions=config.num_positions,
            max_tokens=config.max_tokens,
            dropout=config.dropout,
            padding=config.padding,
        )
        self.stack = PostNormStack(config)
        self.words: WordTransformer | None = None
        in_dim = sentence_width(encoder)
        if config.text_layers:
            in_dim = config.dim
            self.words = WordTransformer(words_width(encoder), config)
        self.text_heads = nn.ModuleList(GatedEmbedding(in_dim, config.dim) for _ in self.widths)
        self.weigh = weight_layer(in_dim, len(self.widths))
        self.dropout = nn.Dropout(config.dropout)

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        sentence = self.read_sentence(texts, self.words)
        vectors = torch.stack([head(sentence) for head in self.text_heads], dim=1)
        return TextFeatures(
            sentence=vectors[:, self.frames_index],
            words=vectors,
            weights=expert_weights(self.weigh, self.dropout(sentence)),
        )

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        sequence = self.tokens(experts)
        outputs: Float[Tensor, "videos length dim"] = self.stack(sequence.tokens, sequence.mask)
        vectors = F.normalize(outputs[:, sequence.aggregates], dim=-1)
        frame_tokens = experts[self.frames_expert].values
        return VideoFeatures(
            frames=self.tokens.project(self.frames_expert, frame_tokens),
            mask=video.mask,
            tokens=vectors,
            tokens_mask=sequence.present,
        )
