"""WordFrame, this project's own: mean pooling, the best frame of each word, hubness offsets."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.hubness import HubnessLayer
from eaglenet.layers.late_interaction import (
    TokenWeights,
    weighted_token_interaction,
    words_find_tokens,
    words_or_sentence,
)
from eaglenet.layers.masking import frame_weights, mean_pooling
from eaglenet.layers.transformer import TemporalTransformer, stack_on
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import WordFrameConfig


class FrameChanges(nn.Module):
    r"""Linear map of the difference between the next and the previous frame, initially zero.

    .. math:: c_m = D\,(f_{m+1} - f_{m-1})

    The first and the last frame stand in for their missing neighbours. A reversed clip has the
    same frames with opposite changes, so that words such as "left" or "grows" can match. Padded
    frames have no change.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(
        self, frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
        after = torch.cat([frames[:, 1:], frames[:, -1:]], dim=1)
        has_after = torch.cat([mask[:, 1:], mask[:, -1:]], dim=1)[..., None]
        after = torch.where(has_after, after, frames)
        return self.map(after - before) * mask[..., None]  # type: ignore[no-any-return]


GAIN = 10.0
"""Weight of the interaction divided by its parameter, so that the weight can grow from 0 within a
few hundred steps at a small learning rate."""


@register(
    WordFrameConfig,
    paper="this project's own; its interaction is that of DRL (Wang et al., 2022)",
    checked_by="reference loop",
)
class WordFrame(Method):
    r"""Score of the towers plus the best frame of every word, minus the hubness offset.

    .. math:: s = \cos(t, \bar v) + \lambda \sum_i \alpha_i \max_m C_{im} - h(\bar v),
        \quad C_{im} = \hat w_i \cdot \hat g_m,
        \quad g_m = T(f + PE)_m + f_m + D (f_{m+1} - f_{m-1})

    with words w, frames f, their unit mean v, and weights alpha that sum to 1 over the words of a
    text. Initially lambda = 0 and D = 0, so that training starts from the scores of the towers. h
    is the hubness offset of a video for a bank of training texts
    (:class:`eaglenet.layers.hubness.HubnessLayer`). It is not part of the loss, so that the towers
    cannot learn to undo it, and does not change the order of texts for a video. The interaction is
    one half of that of DRL, with one block instead of four and without the decorrelation loss.
    ``encode_video`` stores ``g`` in ``VideoFeatures.tokens``. With text features without words, the
    text is the only word.
    """

    name = "wordframe"
    config: WordFrameConfig

    def __init__(self, encoder: Encoder, config: WordFrameConfig) -> None:
        self.needs_frames = bool(config.interaction and (config.num_layers or config.changes))
        super().__init__(encoder, config)
        self.reads_words = config.interaction
        self.temporal: TemporalTransformer | None = None
        if config.num_layers and config.interaction:
            self.temporal = TemporalTransformer(stack_on(encoder, config))
        has_changes = config.changes and config.interaction
        self.changes = FrameChanges(encoder.dim) if has_changes else None
        is_weighted = config.weighted and config.interaction
        weighs_frames = is_weighted and config.both_ways
        self.word_weights = TokenWeights(encoder.dim) if is_weighted else None
        self.frame_weights = TokenWeights(encoder.dim) if weighs_frames else None
        has_gate = config.coarse and config.interaction
        self.gate = nn.Parameter(torch.zeros(())) if has_gate else None
        self.bank = (
            HubnessLayer(config.bank, encoder.dim, config.bank_weight) if config.bank else None
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def build(cls, config: WordFrameConfig, encoder: Encoder) -> WordFrame:
        """Create the method; ``token_shift`` changes the last two visual blocks first."""
        if config.token_shift:
            last = encoder.num_blocks
            encoder.set_token_shift((last - 2, last - 1))
        return super().build(config, encoder)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        if not self.config.interaction or not self.encoder.abilities.frames:
            return features  # The tokens would equal the frames.
        return dataclasses.replace(
            features, tokens=self.frame_tokens(features), tokens_mask=features.mask
        )

    def frame_tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        """Return frames with temporal context, stored or computed."""
        if video.tokens is not None:
            return video.tokens
        tokens = video.frames
        if self.temporal is not None:
            tokens = self.temporal(video.frames, video.mask)
        if self.changes is not None:
            tokens = tokens + self.changes(video.frames, video.mask)
        return tokens

    def interaction_weight(self) -> Tensor | None:
        """Return lambda, the weight of the interaction; None if it is the whole score."""
        return None if self.gate is None else GAIN * self.gate

    def weights_of_words(
        self, words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts words"]:
        """Return alpha, the weights of the words of each text."""
        if self.word_weights is None:
            return frame_weights(mask, words.dtype)
        return self.word_weights(words, mask)  # type: ignore[no-any-return]

    def weights_of_frames(
        self, tokens: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames"]:
        """Return the weights of frames, for matching frames with words (``both_ways``)."""
        if self.frame_weights is None:
            return frame_weights(mask, tokens.dtype)
        return self.frame_weights(tokens, mask)  # type: ignore[no-any-return]

    @property
    def hubness_layer(self) -> tuple[HubnessLayer, Tensor] | None:
        if self.bank is None or not len(self.bank.stored_vectors()):
            return None
        return self.bank, self.loss.scale()

    @property
    def score_tile(self) -> tuple[int, int]:
        return (256, 64) if self.device.type == "cuda" else (64, 64)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        offsets = self.hubness_offsets(mean_pooling(video.frames, video.mask))
        return self.match(text, video) - offsets[None, :]

    def hubness_offsets(self, videos: Float[Tensor, "videos dim"]) -> Float[Tensor, "videos"]:
        """Return h, the offset to subtract from the scores of each video; high for hubs."""
        if self.bank is None:
            return videos.new_zeros(len(videos))
        return self.bank(videos, self.loss.scale())  # type: ignore[no-any-return]

    def match(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        """Return the scores without hubness offsets, as used in training."""
        if not self.config.interaction:
            return F.normalize(text.sentence, dim=-1) @ mean_pooling(video.frames, video.mask).T
        interaction = self._interaction(text, video)
        weight = self.interaction_weight()
        if weight is None:
            return interaction
        coarse = F.normalize(text.sentence, dim=-1) @ mean_pooling(video.frames, video.mask).T
        return coarse + weight * interaction

    def _interaction(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos"]:
        """Return the similarity of the words of each text with their best frames."""
        words, words_mask = words_or_sentence(text)
        tokens = self.frame_tokens(video)
        weights = self.weights_of_words(words, words_mask)
        if not self.config.both_ways:
            return words_find_tokens(words, weights, tokens, video.mask)
        return weighted_token_interaction(
            words,
            weights,
            words_mask,
            tokens,
            self.weights_of_frames(tokens, video.mask),
            video.mask,
        )

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        if self.bank is not None and self.training:
            self.bank.add(text.sentence)
        return Losses({"contrastive": self.loss(self.match(text, video), positives)})
