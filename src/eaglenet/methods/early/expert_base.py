"""Base of methods over several experts: reading them, and scores as a mixture of experts."""

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
    """Name -> width, alphabetical. Towers and adapters are one expert: their frames."""
    return encoder.experts if isinstance(encoder, ExpertEncoder) else {FRAMES: encoder.dim}


def words_width(encoder: Encoder) -> int:
    """Width of the words that an encoder gives."""
    return encoder.words_dim if isinstance(encoder, ExpertEncoder) else encoder.dim


def sentence_width(encoder: Encoder) -> int:
    """Width of the sentences that an encoder gives."""
    return encoder.config.text_dim if isinstance(encoder, ExpertEncoder) else encoder.dim


def mixture_scores(
    words: Float[Tensor, "texts experts dim"],
    weights: Float[Tensor, "texts experts"],
    tokens: Float[Tensor, "videos experts dim"],
    present: Bool[Tensor, "videos experts"],
    *,
    keep_missing: bool = False,
) -> Float[Tensor, "texts videos"]:
    r"""The mixture of experts of MEE, CE, MMT and T2VLAD: two matrix products.

    .. math:: s = \frac{\sum_e w_e a_e \langle t_e, v_e \rangle}{\sum_e w_e a_e}

    With ``keep_missing`` all a_e are 1 (MMT as released). A video without any expert scores 0.
    """
    here = torch.ones_like(present) if keep_missing else present
    frame_weights = here.to(tokens.dtype)
    products = (words * weights[..., None]).flatten(1) @ (
        tokens * frame_weights[..., None]
    ).flatten(1).T
    return products / (weights @ frame_weights.T).clamp_min(torch.finfo(products.dtype).tiny)


class ExpertMethod(Method):
    """A method whose texts and videos have one unit vector for each expert.

    ``encode_text`` gives t_e in ``words`` and w_e in ``weights``; ``encode_video`` gives v_e in
    ``tokens``, which of them are there in ``tokens_mask``, and in ``frames`` the tokens of the
    expert that shows moments, in the space of its t_e. Every expert axis is alphabetical.
    """

    reads_words = True
    has_hardest_negatives: ClassVar[bool] = False
    """The margin loss takes the hardest negative of each row instead of all."""
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
        """Encoded texts, their words and which are real; without words the sentence is one."""
        text = Method._encode_text(self, texts)
        words, mask = words_or_sentence(text)
        return text, words, mask

    def read_sentence(
        self, texts: TextSource, words: WordTransformer | None
    ) -> Float[Tensor, "texts dim"]:
        """Encode texts into one vector each: the encoder's, or that of a transformer over words."""
        if words is None:
            return self.encoder.encode_text(texts).sentence
        _, vectors, mask = self.read_text(texts)
        return words.layers(vectors, mask)[-1][:, 0]

    def read_experts(self, videos: VideoSource) -> tuple[VideoFeatures, dict[str, Expert]]:
        """Encoded videos, and their experts by name."""
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
        """t_e and w_e."""
        if text.words is None or text.weights is None:
            raise UsageError("texts without expert vectors: make them with encode_text")
        return text.words, text.weights

    def video_side(self, video: VideoFeatures) -> tuple[Tensor, Tensor]:
        """v_e and a_e."""
        if video.tokens is None or video.tokens_mask is None:
            raise UsageError("videos without expert vectors: make them with encode_video")
        return video.tokens, video.tokens_mask

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        """[w_e t_e] of texts and [a_e v_e] of videos: their products rank as experts do."""
        if isinstance(features, TextFeatures):
            words, weights = self.text_side(features)
            return (words * weights[..., None]).flatten(1)
        tokens, present = self.video_side(features)
        if self.keep_missing:
            return tokens.flatten(1)
        return (tokens * present[..., None].to(tokens.dtype)).flatten(1)

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """The joint vectors, scaled to unit length."""
        return F.normalize(self.joint_vectors(features), dim=-1)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """The tokens of the expert that shows moments against its own text vector."""
        words, _ = self.text_side(text)
        return super().frame_scores(
            dataclasses.replace(text, sentence=words[:, self.frames_index]), video
        )


def expert_weights(
    layer: torch.nn.Module | None, values: Float[Tensor, "texts dim"]
) -> Float[Tensor, "texts experts"]:
    """Softmax over the experts; a single expert needs no layer and has weight 1."""
    if layer is None:
        return torch.ones(len(values), 1, dtype=values.dtype, device=values.device)
    result: Tensor = layer(values).softmax(dim=-1)
    return result


def weight_layer(in_dim: int, num_experts: int) -> torch.nn.Linear | None:
    """The map from a text to its experts' weights."""
    return torch.nn.Linear(in_dim, num_experts) if num_experts > 1 else None
