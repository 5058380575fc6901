"""Support-Set: a contrastive loss, and captions generated from other videos."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.experts import ExpertTokens
from eaglenet.layers.masking import attention_bias, check_heads, masked_mean, masked_softmax
from eaglenet.layers.transformer import PostNormStack, WordTransformer
from eaglenet.losses import margin_loss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.early.expert_base import ExpertMethod, sentence_width, words_width
from eaglenet.methods.tower_base import unit_videos


class DecoderBlock(nn.Module):
    """Block: x + causal attention(LN x), x + attention to the memory(LN x), x + MLP(LN x)."""

    def __init__(self, dim: int, *, num_heads: int, hidden_dim: int) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.read = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, hidden_dim)
        self.down = nn.Linear(hidden_dim, dim)

    def forward(
        self,
        states: Float[Tensor, "texts words dim"],
        memory: Float[Tensor, "texts steps dim"],
        bias: Float[Tensor, "texts 1 1 steps"],
    ) -> Float[Tensor, "texts words dim"]:
        query, key, value = (
            self._heads(each) for each in self.qkv(self.norms[0](states)).chunk(3, dim=-1)
        )
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.out(output.transpose(1, 2).flatten(2))
        query = self._heads(self.query(self.norms[1](states)))
        key, value = (self._heads(each) for each in self.key_value(memory).chunk(2, dim=-1))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        states = states + self.read(output.transpose(1, 2).flatten(2))
        result: Tensor = states + self.down(F.gelu(self.up(self.norms[2](states))))
        return result

    def _heads(
        self, values: Float[Tensor, "texts tokens dim"]
    ) -> Float[Tensor, "texts heads tokens head_dim"]:
        size = values.shape[-1] // self.num_heads
        return values.reshape(*values.shape[:2], self.num_heads, size).transpose(1, 2)


class CaptionDecoder(nn.Module):
    """Decoder of captions: predicts the next token from previous ones and a memory."""

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        *,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        num_positions: int = 78,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(num_positions, dim))
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, num_heads=num_heads, hidden_dim=hidden_dim) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        ids: Int[Tensor, "texts words"],
        memory: Float[Tensor, "texts steps dim"],
        memory_mask: Bool[Tensor, "texts steps"],
    ) -> Float[Tensor, "texts words vocabulary"]:
        """Return the logits of the token after each token."""
        if ids.shape[1] > len(self.positions):
            raise ConfigError(
                f"captions have {ids.shape[1]} tokens, but there are only {len(self.positions)} "
                "positions; reduce data.max_words"
            )
        bias = attention_bias(memory_mask, memory.dtype)
        states = self.embedding(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            states = block(states, memory, bias)
        logits: Tensor = self.norm(states) @ self.embedding.weight.T
        return logits

    def loss(
        self,
        tokens: Tokens,
        memory: Float[Tensor, "texts steps dim"],
        memory_mask: Bool[Tensor, "texts steps"],
    ) -> Float[Tensor, ""]:
        """Return the mean negative log-likelihood of the next tokens (teacher forcing)."""
        count = self.embedding.num_embeddings
        # Waits for the device, where an id beyond the table would end the process.
        largest = int(tokens.ids.max())
        if largest >= count:
            raise ConfigError(
                f"the captions have the token id {largest}, but vocabulary_size is {count}; set "
                f"method_config.vocabulary_size to {largest + 1} or more"
            )
        logits = self(tokens.ids[:, :-1], memory, memory_mask)
        targets = tokens.ids[:, 1:].masked_fill(~tokens.mask[:, 1:], -100)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


Support = Literal["cross", "self", "full"]


@dataclass(frozen=True)
class SupportSetConfig(MethodConfig):
    """Settings of Support-Set. All numbers are our choice; no code was released.

    support: videos from which a caption is generated: all except its own (``cross``), only its own
        (``self``), or all (``full``).
    vocabulary_size: number of token ids of captions; 0: that of the text tower.
    text_layers: blocks over the words; 0: use the text vector of the encoder.
    caption_weight: weight of the captioning loss.
    """

    dim: int = 512
    num_layers: int = 1
    text_layers: int = 0
    decoder_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 1024
    dropout: float = 0.1
    max_tokens: int = 30
    vocabulary_size: int = 0
    support: Support = "cross"
    temperature: float = 0.1
    margin: float = 0.2
    caption_weight: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("dim", "num_layers")


def support_memory(
    weights: Float[Tensor, "texts videos"],
    tokens: Float[Tensor, "videos steps dim"],
    mask: Bool[Tensor, "videos steps"],
) -> tuple[Float[Tensor, "texts steps dim"], Bool[Tensor, "texts steps"]]:
    """Return the weighted mean of the tokens of videos per step, and the mask of steps."""
    frame_weights = mask.to(tokens.dtype)
    total = torch.einsum("tv,vs,vsd->tsd", weights, frame_weights, tokens)
    total_weight = weights @ frame_weights
    return total / total_weight.clamp_min(1e-6)[..., None], total_weight > 1e-6


@register(
    SupportSetConfig,
    paper="Support-Set (Patrick et al., ICLR 2021)",
    checked_by="approximate from the abstract",
    reads_experts=True,
)
class SupportSet(ExpertMethod):
    r"""``s = cos(U(t), V(v))``; in training, captions are also generated from a support set.

    .. math:: \alpha_{ij} = \mathrm{softmax}_{j \in N_i} \langle U'(t_i), V'(v_j) \rangle / T,
        \qquad L = \mathrm{MH}(S) + \lambda\, \mathrm{NLL}(c_i \mid \sum_j \alpha_{ij} M(v_j))

    N_i leaves out the video of the caption, which would leak the answer. The decoder is used in
    training only.

    Paper: implemented from the abstract; pooling, widths and temperature are our choice. The
    decoder starts from random weights instead of T5; there is no pre-training on HowTo100M.
    """

    name = "supportset"
    config: SupportSetConfig

    def __init__(self, encoder: Encoder, config: SupportSetConfig) -> None:
        super().__init__(encoder, config)
        dim = config.dim
        sizes = {"num_heads": config.num_heads, "hidden_dim": config.hidden_dim}
        self.tokens = ExpertTokens(
            self.widths, dim, max_tokens=config.max_tokens, dropout=config.dropout
        )
        self.stack = PostNormStack(config)
        self.words: WordTransformer | None = None
        in_dim = sentence_width(encoder)
        if config.text_layers:
            in_dim = dim
            self.words = WordTransformer(words_width(encoder), config)
        self.text_map, self.text_support = nn.Linear(in_dim, dim), nn.Linear(in_dim, dim)
        self.video_map, self.video_support = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.decoder = CaptionDecoder(
            vocabulary_size(encoder, config), dim, num_layers=config.decoder_layers, **sizes
        )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode texts; in training, also support queries (``words``) and captions (``tokens``)."""
        state = self.read_sentence(texts, self.words)
        text = TextFeatures(self.text_map(state))
        if not self.training:
            return text
        tokens = texts if isinstance(texts, Tokens) else texts.tokens
        if tokens is None:
            raise UsageError(
                "supportset needs token ids of captions, which these texts do not have; write "
                "token_ids.npy into the features folder (docs/how-to/experts.md)"
            )
        support = self.text_support(state)[:, None]
        return dataclasses.replace(text, words=support, tokens=tokens.to(state.device))

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video, experts = self.read_experts(videos)
        sequence = self.tokens(experts)
        states: Tensor = self.stack(sequence.tokens, sequence.mask)
        frame_tokens = self.tokens.project(self.frames_expert, experts[self.frames_expert].values)
        frames = self.video_map(frame_tokens)
        features = VideoFeatures(
            frames=frames.detach() if self.training else frames,
            mask=video.mask,
            video=self.video_map(masked_mean(states, sequence.mask)),
        )
        if not self.training:
            return features
        return dataclasses.replace(features, tokens=states, tokens_mask=sequence.mask)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return self.coarse_vectors(text) @ self.coarse_vectors(video).T

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        if isinstance(features, TextFeatures):
            return F.normalize(features.sentence, dim=-1)
        return unit_videos(features)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        return super(ExpertMethod, self).frame_scores(text, video)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        scores = self.score(text, video)
        terms = {"margin": margin_loss(scores, positives, self.config.margin, hardest=True)}
        terms["captions"] = self.caption_loss(text, video, positives)
        return Losses(terms, {"captions": self.config.caption_weight})

    def support_weights(
        self, text: TextFeatures, video: VideoFeatures, positives: RightPairs
    ) -> Float[Tensor, "texts videos"]:
        """Return alpha, the weights of videos in the memory of each caption."""
        if text.words is None or video.tokens is None or video.tokens_mask is None:
            raise UsageError("losses need the support set; encode in training mode")
        videos = masked_mean(video.tokens, video.tokens_mask)
        queries = F.normalize(text.words[:, 0], dim=-1)
        logits = queries @ F.normalize(self.video_support(videos), dim=-1).T
        pair_mask = {"cross": ~positives, "self": positives, "full": torch.ones_like(positives)}[
            self.config.support
        ]
        return masked_softmax(logits / self.config.temperature, pair_mask)

    def caption_loss(
        self, text: TextFeatures, video: VideoFeatures, positives: RightPairs
    ) -> Float[Tensor, ""]:
        """Return the NLL of the captions given the memory of their support sets."""
        weights = self.support_weights(text, video, positives)
        if text.tokens is None or video.tokens is None or video.tokens_mask is None:
            raise UsageError("losses need captions and video tokens; encode in training mode")
        memory, mask = support_memory(weights, video.tokens, video.tokens_mask)
        return self.decoder.loss(text.tokens, memory, mask)


def vocabulary_size(encoder: Encoder, config: SupportSetConfig) -> int:
    """Return the vocabulary size of the config, or else that of the text tower."""
    if config.vocabulary_size:
        return config.vocabulary_size
    if encoder.vocabulary_size is None:
        raise ConfigError(
            "supportset needs token ids of captions; for a folder of features that has them, set "
            "method_config.vocabulary_size"
        )
    return encoder.vocabulary_size
