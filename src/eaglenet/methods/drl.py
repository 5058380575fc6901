"""DRL: weighted token-wise interaction (WTI) of words and frames."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.late_interaction import (
    TokenWeights,
    weighted_token_interaction,
    words_or_sentence,
)
from eaglenet.layers.masking import Padding, first_right_video
from eaglenet.layers.transformer import TemporalTransformer, stack_on
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


def _standardise(values: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens dim"]:
    """Scale channels to zero mean and unit sample variance; constant channels become 0."""
    difference = values - values.mean(dim=0)
    variance = difference.square().sum(dim=0) / max(len(values) - 1, 1)
    # A constant channel differs from its mean only by rounding errors, and the official code
    # divides by those: all frames may match the start token, which is equal in every text.
    eps = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
    is_constant = variance <= (16 * eps * values.abs().amax(dim=0)).square()
    deviation = variance.masked_fill(is_constant, 1.0).sqrt()
    return (difference / deviation).masked_fill(is_constant, 0.0)


def _correlation(
    left: Float[Tensor, "tokens dim"],
    right: Float[Tensor, "tokens dim"],
    weights: Float[Tensor, "tokens"],
    num_pairs: int,
) -> Float[Tensor, "dim dim"]:
    weighted_left = _standardise(left) * weights[:, None]
    return weighted_left.T @ _standardise(right) / num_pairs


def channel_decorrelation_loss(
    words: Float[Tensor, "pairs words dim"],
    word_weights: Float[Tensor, "pairs words"],
    words_mask: Bool[Tensor, "pairs words"],
    tokens: Float[Tensor, "pairs tokens dim"],
    token_weights: Float[Tensor, "pairs tokens"],
    tokens_mask: Bool[Tensor, "pairs tokens"],
    *,
    diagonal_weight: float = 0.11,
    off_diagonal_weight: float = 0.0,
    padding: Padding = "masked",
) -> Float[Tensor, ""]:
    r"""Return a loss that lets each channel of matched tokens correlate only with itself.

    Each valid word is matched with its most similar frame and each valid frame with its most
    similar word. With standardised channels, :math:`c^1` weights the word matches by
    :math:`\alpha`, :math:`c^2` the frame matches by :math:`\beta`, both divided by the number of
    pairs. Rows of :math:`c^1` are channels of words, rows of :math:`c^2` channels of frames, as in
    the code of the authors:

    .. math:: L = w_d \sum_k (c_{kk} - 1)^2 + w_o \sum_{k \ne l} c_{kl}^2,
        \quad c = (c^1 + c^2) / 2

    Row ``i`` of the words belongs to row ``i`` of the tokens. With ``padding="official"`` padded
    entries count as cosines of 0 in the matching, as in :func:`weighted_token_interaction`.
    """
    words, tokens = F.normalize(words, dim=-1), F.normalize(tokens, dim=-1)
    similarities = torch.einsum("pwd,pfd->pwf", words, tokens)
    fill = 0.0 if padding == "official" else torch.finfo(similarities.dtype).min
    token_of_word = similarities.masked_fill(~tokens_mask[:, None, :], fill).argmax(dim=2)
    word_of_token = similarities.masked_fill(~words_mask[:, :, None], fill).argmax(dim=1)
    matched_tokens = tokens.take_along_dim(token_of_word[..., None], dim=1)
    matched_words = words.take_along_dim(word_of_token[..., None], dim=1)

    num_pairs = words.shape[0]
    by_words = _correlation(
        words[words_mask], matched_tokens[words_mask], word_weights[words_mask], num_pairs
    )
    by_tokens = _correlation(
        tokens[tokens_mask], matched_words[tokens_mask], token_weights[tokens_mask], num_pairs
    )
    correlation = (by_words + by_tokens) / 2
    diagonal = correlation.diagonal()
    off_diagonal = correlation.square().sum() - diagonal.square().sum()
    return diagonal_weight * (diagonal - 1).square().sum() + off_diagonal_weight * off_diagonal


@dataclass(frozen=True)
class DRLConfig(MethodConfig):
    """Settings of DRL.

    decorrelation: weight of the channel decorrelation loss (CDCR); 0: off.
    diagonal_weight, off_diagonal_weight: weights of the entries of its correlation matrix (the
        authors use 0.14 for ViT-B/32 and 0.11 for ViT-B/16 on the diagonal, and 0 elsewhere).
    padding: ``official`` counts padded words and frames as cosines of 0 in the maxima, as the code
        of the authors does; ``masked`` leaves them out.
    """

    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    decorrelation: float = 0.001
    diagonal_weight: float = 0.11
    off_diagonal_weight: float = 0.0
    padding: Padding = "masked"


@register(DRLConfig, paper="DRL (Wang et al., 2022)", checked_by="golden")
class DRL(Method):
    r"""Weighted token-wise interaction over words and temporal frame tokens.

    .. math:: s = \tfrac12 \Big[ \sum_i \alpha_i \max_m C_{im} + \sum_m \beta_m \max_i C_{im} \Big],
        \quad C_{im} = \hat w_i \cdot \hat g_m

    ``encode_video`` stores ``g`` in ``VideoFeatures.tokens``. With text features without words, the
    text is the only word, with weight 1.
    """

    name = "drl"
    reads_words = True
    config: DRLConfig
    # The temporal transformer runs once per tile.
    score_tile = (256, 64)

    def __init__(self, encoder: Encoder, config: DRLConfig) -> None:
        super().__init__(encoder, config)
        self.temporal = TemporalTransformer(stack_on(encoder, config))
        self.word_weights = TokenWeights(encoder.dim)
        self.frame_weights = TokenWeights(encoder.dim)
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        return dataclasses.replace(
            features, tokens=self._tokens(features), tokens_mask=features.mask
        )

    def _tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        if video.tokens is not None:
            return video.tokens
        return self.temporal(video.frames, video.mask)  # type: ignore[no-any-return]

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        words, words_mask = words_or_sentence(text)
        tokens = self._tokens(video)
        return weighted_token_interaction(
            words,
            self.word_weights(words, words_mask),
            words_mask,
            tokens,
            self.frame_weights(tokens, video.mask),
            video.mask,
            padding=self.config.padding,
        )

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        terms = {"contrastive": self.loss(self.score(text, video), positives)}
        if self.config.decorrelation:
            terms["decorrelation"] = self._decorrelation(text, video, positives)
        return Losses(terms, {"decorrelation": self.config.decorrelation})

    def _decorrelation(
        self, text: TextFeatures, video: VideoFeatures, positives: RightPairs
    ) -> Float[Tensor, ""]:
        words, words_mask = words_or_sentence(text)
        right_videos = first_right_video(positives)
        tokens, mask = self._tokens(video)[right_videos], video.mask[right_videos]
        return channel_decorrelation_loss(
            words,
            self.word_weights(words, words_mask),
            words_mask,
            tokens,
            self.frame_weights(tokens, mask),
            mask,
            diagonal_weight=self.config.diagonal_weight,
            off_diagonal_weight=self.config.off_diagonal_weight,
            padding=self.config.padding,
        )
