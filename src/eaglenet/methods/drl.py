"""DRL: words and frames interact, each weighted by how much it counts (WTI)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from eaglenet.core.types import (
    Clips,
    Encoder,
    Losses,
    RightPairs,
    TextFeatures,
    Tokens,
    VideoFeatures,
)
from eaglenet.layers.channel_decorrelation import channel_decorrelation_loss
from eaglenet.layers.late_interaction import (
    TokenWeights,
    weighted_token_interaction,
    words_or_sentence,
)
from eaglenet.layers.masking import Padding, check_padding, first_right_video
from eaglenet.layers.temporal_transformer import TemporalTransformer, copy_text_tower, default_heads
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, Method, MethodSpec, adopt_logit_scale, frame_spec_for


@dataclass(frozen=True)
class DRLConfig:
    """Settings of DRL.

    decorrelation: weight of the channel decorrelation loss (CDCR); 0 leaves it out.
    diagonal_weight, off_diagonal_weight: of the entries of its correlation matrix (the authors:
        0.14 for ViT-B/32 and 0.11 for ViT-B/16, and 0).
    padding: ``official`` counts padded words and frames as cosines of 0 in the maxima, as the
        authors' code does; ``masked`` leaves them out.
    """

    num_frames: int = 12
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    decorrelation: float = 0.001
    diagonal_weight: float = 0.11
    off_diagonal_weight: float = 0.0
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        check_padding(self.padding)


class DRL(Method):
    r"""Weighted token-wise interaction over words and temporal frame tokens.

    .. math:: s = \tfrac12 \Big[ \sum_i \alpha_i \max_m C_{im} + \sum_m \beta_m \max_i C_{im} \Big],
        \quad C_{im} = \hat w_i \cdot \hat g_m

    ``encode_video`` stores ``g`` in ``VideoFeatures.tokens``. With sentence features that hold no
    words, the sentence is the only word: its weight is 1 and the word network is idle.
    """

    name = "drl"
    config: DRLConfig

    def __init__(self, encoder: Encoder, config: DRLConfig) -> None:
        super().__init__(encoder, frame_spec=frame_spec_for(encoder, config.num_frames))
        self.config = config
        self.temporal = TemporalTransformer(
            encoder.dim,
            num_layers=config.num_layers,
            num_heads=config.num_heads or default_heads(encoder),
            num_positions=config.num_positions,
        )
        self.word_weights = TokenWeights(encoder.dim)
        self.frame_weights = TokenWeights(encoder.dim)
        self.loss = SoftmaxLoss()

    def _encode_text(self, texts: Tokens | TextFeatures) -> TextFeatures:
        """Sentences and, where the towers or the features have any, words."""
        if isinstance(texts, Tokens):
            return self.encoder.encode_text(texts, words=self.encoder.abilities.words)
        return self.encoder.encode_text(texts, words=texts.words is not None)

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        return dataclasses.replace(
            features, tokens=self._tokens(features), tokens_mask=features.mask
        )

    def _tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        if video.tokens is not None:
            return video.tokens
        return self.temporal(video.frames, video.mask)  # type: ignore[no-any-return]

    @property
    def score_tile(self) -> tuple[int, int]:
        # The temporal transformer runs once per tile.
        return (256, 64)

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
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: RightPairs,
    ) -> Float[Tensor, ""]:
        words, words_mask = words_or_sentence(text)
        own = first_right_video(positives)
        tokens, mask = self._tokens(video)[own], video.mask[own]
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


def build(config: DRLConfig, encoder: Encoder) -> DRL:
    """The temporal head starts from CLIP's text blocks and positions where widths fit."""
    method = DRL(encoder, config)
    adopt_logit_scale(encoder, method.loss)
    copy_text_tower(encoder, method.temporal.stack)
    return method


METHODS.add(
    DRL.name,
    MethodSpec(
        config_class=DRLConfig,
        build=build,
        paper="DRL (Wang et al., 2022)",
        checked="golden",
    ),
)
