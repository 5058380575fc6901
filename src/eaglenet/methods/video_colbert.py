"""Video-ColBERT: best frame and best video token of every query token."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.late_interaction import mean_max_similarity, words_or_sentence
from eaglenet.layers.transformer import stack_on
from eaglenet.losses import SigmoidLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class VideoColBERTConfig(MethodConfig):
    """Settings of Video-ColBERT.

    num_query_tokens: minimum tokens per query (at most the context of the text tower). Shorter
        queries are padded, and the outputs for the padding expand the query. 0: real words only.
    num_expansion_tokens: learned visual tokens that join the frames in the temporal transformer.
    frame_weight, video_weight: weights of the two sigmoid losses.
    """

    num_query_tokens: int = 32
    num_expansion_tokens: int = 2
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    frame_weight: float = 1.0
    video_weight: float = 1.0


@register(
    VideoColBERTConfig, paper="Video-ColBERT (Reddy et al., CVPR 2025)", checked_by="reference loop"
)
class VideoColBERT(Method):
    r"""``s = MMS(words, frames) + MMS(words, video tokens)``, mean over words of the best token.

    ``encode_text`` counts the first ``num_query_tokens`` positions of every query as words, padding
    included, but no padding after them, so that the length of a batch does not change a score. With
    text features without words, the text is the only word, without expansion.

    Paper: no code was released, so these are our choices: queries are expanded by the padding of
    CLIP; frames have positions, expansion tokens have none, because they are learned; the
    transformer starts from the text blocks of CLIP and has the residual of CLIP4Clip's seqTransf;
    both losses share temperature and bias; training is that of CLIP4Clip.
    """

    name = "video_colbert"
    reads_words = True
    config: VideoColBERTConfig
    # The temporal transformer runs once per tile.
    score_tile = (256, 64)

    def __init__(self, encoder: Encoder, config: VideoColBERTConfig) -> None:
        super().__init__(encoder, config)
        self.stack = stack_on(encoder, config)
        self.expansion = nn.Parameter(torch.randn(config.num_expansion_tokens, encoder.dim) * 0.02)
        self.loss = SigmoidLoss()
        self.num_query_tokens = min(
            config.num_query_tokens, encoder.context_length or config.num_query_tokens
        )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode texts and, if available, words; padding expands queries."""
        is_expanded = bool(self.num_query_tokens) and self.encoder.abilities.words
        if isinstance(texts, TextFeatures) or not is_expanded:
            return super()._encode_text(texts)
        lengths = texts.mask.sum(dim=1).clamp(min=self.num_query_tokens)
        # As wide as the ids, not the longest text, because batches are concatenated later.
        num_padding = max(self.num_query_tokens - texts.ids.shape[1], 0)
        tokens = Tokens(F.pad(texts.ids, (0, num_padding)), F.pad(texts.mask, (0, num_padding)))
        positions = torch.arange(tokens.ids.shape[1], device=texts.ids.device)
        is_word = positions[None, :] < lengths[:, None]
        features = self.encoder.encode_text(tokens, words=True)
        return dataclasses.replace(features, words_mask=is_word.to(features.sentence.device))

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        tokens, mask = self._tokens(features)
        return dataclasses.replace(features, tokens=tokens, tokens_mask=mask)

    def _tokens(
        self, video: VideoFeatures
    ) -> tuple[Float[Tensor, "videos tokens dim"], Bool[Tensor, "videos tokens"]]:
        """Return frames and expansion tokens after the temporal transformer, and their mask."""
        if video.tokens is not None and video.tokens_mask is not None:
            return video.tokens, video.tokens_mask
        expansion = self.expansion.expand(len(video), -1, -1)
        mask = torch.cat([video.mask, video.mask.new_ones(expansion.shape[:2])], dim=1)
        residual = torch.cat([video.frames, expansion], dim=1)
        tokens = torch.cat([self.stack.add_positions(video.frames), expansion], dim=1)
        return self.stack.attend(tokens, mask) + residual, mask

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]]:
        """Return the mean-max similarities with frames, and with video tokens."""
        words, words_mask = words_or_sentence(text)
        tokens, tokens_mask = self._tokens(video)
        by_frames = mean_max_similarity(words, words_mask, video.frames, video.mask)
        by_tokens = mean_max_similarity(words, words_mask, tokens, tokens_mask)
        return by_frames, by_tokens

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        by_frames, by_tokens = self.similarities(text, video)
        return by_frames + by_tokens

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the dual sigmoid loss; both terms share temperature and bias."""
        by_frames, by_tokens = self.similarities(text, video)
        return Losses(
            {"frames": self.loss(by_frames, positives), "video": self.loss(by_tokens, positives)},
            {"frames": self.config.frame_weight, "video": self.config.video_weight},
        )
