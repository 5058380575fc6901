"""GLSCL: a parameter-free global similarity, and local concepts for training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.encoders.blocks import run_blocks
from eaglenet.encoders.clip import TextTower, take_positions
from eaglenet.layers.late_interaction import words_or_sentence
from eaglenet.layers.masking import (
    Padding,
    check_heads,
    effective_mask,
    first_right_video,
    masked_softmax,
)
from eaglenet.layers.transformer import TemporalTransformer, default_heads, stack_on
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class GLSCLConfig(MethodConfig):
    """Settings of GLSCL.

    num_concepts: number of learned queries that texts and videos share.
    num_decoder_layers, num_decoder_heads, feed_forward: size of their decoder; None: as many heads
        as the temporal transformer.
    temperature: temperature of the softmax over frames.
    local_weight: weight of the score of concepts in training.
    local_at_inference: add that score at inference too (the official evaluation does not).
    consistency, target: weight and target of the agreement of matched concepts (the authors use
        the weight 0.02 for MSR-VTT, 0.005 for DiDeMo, ActivityNet and MSVD).
    diversity, margin: weight and margin of the difference between concepts.
    padding: ``official`` lets concepts read padded words and frames, as in the authors' code, and
        masks padded tokens in the text tower.
    """

    num_concepts: int = 8
    num_decoder_layers: int = 3
    num_decoder_heads: int | None = None
    feed_forward: int = 2048
    dropout: float = 0.1
    temperature: float = 3.0
    local_weight: float = 0.5
    local_at_inference: bool = False
    consistency: float = 0.02
    target: float = 0.75
    diversity: float = 1e-4
    margin: float = 0.1
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_concepts", "num_decoder_layers")


@register(GLSCLConfig, paper="GLSCL (Zhang et al., TIP 2025)", checked_by="golden")
class GLSCL(Method):
    r"""Global and local semantic consistency.

    .. math:: s_g = \cos\Big(t, \sum_m a_m g_m\Big), \quad a = \mathrm{softmax}_m(t \cdot g_m / 3),
        \qquad s_l = \frac1N \sum_n \hat T_n \cdot \hat V_n

    ``g`` are frames after the temporal transformer; ``T_n`` and ``V_n`` are the outputs of one
    decoder with shared queries for words and frames. Vectors per pair are not needed: with the Gram
    matrix ``G`` of a video, ``|sum a g|^2 = a^T G a``. ``encode_video`` stores ``g``, then ``V`` in
    ``VideoFeatures.tokens``. A text without words counts as one word.

    Paper: padded frames have no weight in ``s_g``, as in the official code.
    """

    name = "glscl"
    reads_words = True
    config: GLSCLConfig

    def __init__(self, encoder: Encoder, config: GLSCLConfig) -> None:
        super().__init__(encoder, config)
        num_heads = config.num_heads or default_heads(encoder)
        self.temporal = TemporalTransformer(
            stack_on(encoder, config, num_positions=max(config.num_positions, config.num_frames))
        )
        self.queries = nn.Parameter(torch.rand(config.num_concepts, encoder.dim))
        num_decoder_heads = config.num_decoder_heads or num_heads
        check_heads(encoder.dim, num_decoder_heads)
        layer = nn.TransformerDecoderLayer(
            encoder.dim,
            num_decoder_heads,
            config.feed_forward,
            config.dropout,
            batch_first=True,
        )
        self.decoder = nn.TransformerDecoder(layer, config.num_decoder_layers)
        self.loss = SoftmaxLoss()

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode texts; with ``padding="official"``, no token of CLIP's tower attends to padding.

        This changes only the padded tokens, which the concepts then read, not the text vector.
        """
        tower = getattr(self.encoder, "text", None)
        is_official = self.config.padding == "official"
        if not (is_official and isinstance(texts, Tokens) and isinstance(tower, TextTower)):
            return super()._encode_text(texts)
        texts = texts.to(self.device)
        length = texts.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.device).tril()
        attention_mask = causal & texts.mask[:, None, None, :]
        words = tower.project(run_blocks(tower, tower.embed(texts.ids), mask=attention_mask))
        sentence = take_positions(words, tower.end_positions(texts.ids))
        return TextFeatures(sentence=sentence, words=words, words_mask=texts.mask)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        frames = self.temporal(features.frames, features.mask)
        concepts = self.concepts(frames, features.mask)
        concept_mask = features.mask.new_ones(concepts.shape[:2])
        return dataclasses.replace(
            features,
            tokens=torch.cat([frames, concepts], dim=1),
            tokens_mask=torch.cat([features.mask, concept_mask], dim=1),
        )

    def concepts(
        self, memory: Float[Tensor, "sets tokens dim"], mask: Bool[Tensor, "sets tokens"]
    ) -> Float[Tensor, "sets concepts dim"]:
        """Return the unit concepts of words or frames."""
        mask = effective_mask(mask, self.config.padding)
        # A set without a valid token reads all tokens; attention over nothing would be NaN.
        is_ignored = ~mask & mask.any(dim=1, keepdim=True)
        queries = self.queries.expand(len(memory), -1, -1)
        return F.normalize(
            self.decoder(queries, memory, memory_key_padding_mask=is_ignored), dim=-1
        )

    def _frames_and_concepts(
        self, video: VideoFeatures
    ) -> tuple[Float[Tensor, "videos frames dim"], Float[Tensor, "videos concepts dim"]]:
        if video.tokens is None:
            frames = self.temporal(video.frames, video.mask)
            return frames, self.concepts(frames, video.mask)
        num_frames = video.mask.shape[1]
        return video.tokens[:, :num_frames], video.tokens[:, num_frames:]

    @property
    def score_tile(self) -> tuple[int, int]:
        return (512, 256) if self.device.type == "cuda" else (256, 64)

    def global_scores(
        self,
        sentence: Float[Tensor, "texts dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "texts videos"]:
        """Return the cosine of text and attended frames, through the Gram matrix of each video."""
        products = torch.einsum("td,vfd->tvf", sentence, frames)
        weights = masked_softmax(products / self.config.temperature, mask)
        along = (weights * products).sum(dim=-1)
        gram = frames @ frames.transpose(1, 2)
        squares = torch.einsum("tvf,vfg,tvg->tv", weights, gram, weights).clamp_min(1e-12)
        lengths: Tensor = squares.sqrt() * sentence.norm(dim=-1).clamp_min(1e-6)[:, None]
        return along / lengths

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        frames, concepts = self._frames_and_concepts(video)
        scores = self.global_scores(text.sentence, frames, video.mask)
        if not self.config.local_at_inference:
            return scores
        local = self._local_scores(self.concepts(*words_or_sentence(text)), concepts)
        return scores + self.config.local_weight * local

    def _local_scores(
        self, text: Float[Tensor, "texts concepts dim"], video: Float[Tensor, "videos concepts dim"]
    ) -> Float[Tensor, "texts videos"]:
        return text.flatten(1) @ video.flatten(1).T / text.shape[1]

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        frames, video_concepts = self._frames_and_concepts(video)
        text_concepts = self.concepts(*words_or_sentence(text))
        scores = self.global_scores(text.sentence, frames, video.mask)
        scores = scores + self.config.local_weight * self._local_scores(
            text_concepts, video_concepts
        )
        matched_concepts = video_concepts[first_right_video(positives)]
        return Losses(
            {
                "contrastive": self.loss(scores, positives),
                "consistency": self._consistency(text_concepts, matched_concepts),
                "diversity": self._diversity(video_concepts),
            },
            {"diversity": self.config.diversity},
        )

    def _consistency(
        self, text: Float[Tensor, "pairs concepts dim"], video: Float[Tensor, "pairs concepts dim"]
    ) -> Float[Tensor, ""]:
        """Return a loss for equal means and an agreement of matched concepts near ``target``.

        The sum over the batch is divided by the number of concepts, as in the released code.
        """
        means = F.mse_loss(video.mean(dim=0), text.mean(dim=0))
        agreement = (video * text).sum(dim=(0, 2)) / text.shape[1]
        deviation: Tensor = (agreement - self.config.target).square().sum()
        return means + self.config.consistency * deviation

    def _diversity(self, video: Float[Tensor, "videos concepts dim"]) -> Float[Tensor, ""]:
        """Return the margin ranking loss by which each concept is most similar to itself."""
        similarity = (video @ video.transpose(1, 2)).mean(dim=0)
        count = len(similarity)
        diagonal = similarity.diagonal()
        margin = self.config.margin
        excess = (margin + similarity - diagonal[:, None]).relu()
        excess = excess + (margin + similarity - diagonal).relu()
        is_other = ~torch.eye(count, dtype=torch.bool, device=excess.device)
        return excess[is_other].sum() / max(count * (count - 1), 1)
