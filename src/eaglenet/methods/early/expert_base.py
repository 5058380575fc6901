"""Base of methods over several experts, which score by a mixture of experts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import (
    Clips,
    Encoder,
    Expert,
    Losses,
    RightPairs,
    TextFeatures,
    VideoFeatures,
)
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.encoders.features import ExpertEncoder
from eaglenet.layers.late_interaction import words_or_sentence
from eaglenet.layers.transformer import WordTransformer
from eaglenet.losses import margin_loss
from eaglenet.methods.base import Method

FRAMES = "frames"


def expert_widths(encoder: Encoder) -> dict[str, int]:
    """Return widths by name, in alphabetical order; the frames of a tower are one expert."""
    return encoder.experts if isinstance(encoder, ExpertEncoder) else {FRAMES: encoder.dim}


def words_width(encoder: Encoder) -> int:
    """Return the width of the words of an encoder."""
    return encoder.words_dim if isinstance(encoder, ExpertEncoder) else encoder.dim


def sentence_width(encoder: Encoder) -> int:
    """Return the width of the text vectors of an encoder."""
    return encoder.config.text_dim if isinstance(encoder, ExpertEncoder) else encoder.dim


def mixture_scores(
    words: Float[Tensor, "texts experts dim"],
    weights: Float[Tensor, "texts experts"],
    tokens: Float[Tensor, "videos experts dim"],
    present: Bool[Tensor, "videos experts"],
    *,
    keep_missing: bool = False,
) -> Float[Tensor, "texts videos"]:
    r"""Return the scores of the mixture of experts of MEE, CE, MMT and T2VLAD.

    .. math:: s = \frac{\sum_e w_e a_e \langle t_e, v_e \rangle}{\sum_e w_e a_e}

    With ``keep_missing`` all a_e are 1 (MMT as released). A video without any expert scores 0.
    """
    mask = (torch.ones_like(present) if keep_missing else present).to(tokens.dtype)
    texts, videos = (words * weights[..., None]).flatten(1), (tokens * mask[..., None]).flatten(1)
    products = texts @ videos.T
    return products / (weights @ mask.T).clamp_min(torch.finfo(products.dtype).tiny)


class ExpertMethod(Method):
    """Method whose texts and videos have one unit vector per expert.

    ``encode_text`` returns t_e in ``words`` and w_e in ``weights``. ``encode_video`` returns v_e in
    ``tokens``, the mask of present experts in ``tokens_mask``, and in ``frames`` the tokens of the
    expert that is used for moments, in the space of its t_e. Experts are in alphabetical order.
    """

    reads_words = True
    has_hardest_negatives: ClassVar[bool] = False
    """The margin loss uses the hardest negative of each row instead of all."""
    keep_missing: bool = False
    score_tile = (4096, 1024)

    def __init__(self, encoder: Encoder, config: Any) -> None:
        super().__init__(encoder, config)
        self.widths = expert_widths(encoder)
        self.frames_expert = encoder.frames_expert if isinstance(encoder, ExpertEncoder) else FRAMES
        self.frames_index = list(self.widths).index(self.frames_expert)

    def read_text(
        self, texts: TextSource
    ) -> tuple[TextFeatures, Float[Tensor, "texts words dim"], Bool[Tensor, "texts words"]]:
        """Return encoded texts, their words and their mask; without words, the text is one."""
        text = Method._encode_text(self, texts)
        words, mask = words_or_sentence(text)
        return text, words, mask

    def read_sentence(
        self, texts: TextSource, words: WordTransformer | None
    ) -> Float[Tensor, "texts dim"]:
        """Return one vector per text: that of the encoder, or of a transformer over words."""
        if words is None:
            return self.encoder.encode_text(texts).sentence
        _, vectors, mask = self.read_text(texts)
        return words.layers(vectors, mask)[-1][:, 0]

    def read_experts(self, videos: VideoSource) -> tuple[VideoFeatures, dict[str, Expert]]:
        """Return encoded videos, and their experts by name."""
        video = self.encoder.encode_video(videos)
        if video.experts is not None:
            return video, {name: video.experts[name] for name in self.widths}
        seconds = None
        if isinstance(videos, Clips):
            seconds = videos.seconds.to(video.frames).masked_fill(~video.mask, -1.0)
        return video, {FRAMES: Expert(video.frames, video.mask, seconds)}

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        words, weights = self.text_side(text)
        tokens, present = self.video_side(video)
        return mixture_scores(words, weights, tokens, present, keep_missing=self.keep_missing)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        scores, margin = self.score(text, video), self.config.margin
        loss = margin_loss(scores, positives, margin, hardest=self.has_hardest_negatives)
        return Losses({"margin": loss})

    def text_side(self, text: TextFeatures) -> tuple[Tensor, Tensor]:
        """Return t_e and w_e."""
        if text.words is None or text.weights is None:
            raise UsageError("the texts have no expert vectors; encode them with encode_text")
        return text.words, text.weights

    def video_side(self, video: VideoFeatures) -> tuple[Tensor, Tensor]:
        """Return v_e and a_e."""
        if video.tokens is None or video.tokens_mask is None:
            raise UsageError("the videos have no expert vectors; encode them with encode_video")
        return video.tokens, video.tokens_mask

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        """Return [w_e t_e] of texts or [a_e v_e] of videos, whose products rank like the score."""
        if isinstance(features, TextFeatures):
            words, weights = self.text_side(features)
            return (words * weights[..., None]).flatten(1)
        tokens, present = self.video_side(features)
        if self.keep_missing:
            return tokens.flatten(1)
        return (tokens * present[..., None].to(tokens.dtype)).flatten(1)

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """Return the joint vectors, scaled to unit length."""
        return F.normalize(self.joint_vectors(features), dim=-1)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """Score the tokens of the expert for moments with its text vector."""
        words, _ = self.text_side(text)
        return super().frame_scores(
            dataclasses.replace(text, sentence=words[:, self.frames_index]), video
        )


def expert_weights(
    layer: torch.nn.Module | None, values: Float[Tensor, "texts dim"]
) -> Float[Tensor, "texts experts"]:
    """Return the softmax weights of experts; a single expert has weight 1 without a layer."""
    if layer is None:
        return torch.ones(len(values), 1, dtype=values.dtype, device=values.device)
    result: Tensor = layer(values).softmax(dim=-1)
    return result


def weight_layer(in_dim: int, num_experts: int) -> torch.nn.Linear | None:
    """Return the map from a text to the weights of experts; None for one expert."""
    return torch.nn.Linear(in_dim, num_experts) if num_experts > 1 else None
