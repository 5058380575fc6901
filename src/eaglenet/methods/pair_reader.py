"""PairReader: a small cross-encoder over the words of a text and the frames of a video.

It follows the idea of VEDJE (2026), a cross-encoder of some 30 million weights that reranks a
shortlist from stored frame tokens. The architecture was designed in this project, without the code
of the authors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures, quick_gelu
from eaglenet.layers.late_interaction import words_or_sentence
from eaglenet.layers.masking import mean_pooling
from eaglenet.layers.transformer import TransformerStack
from eaglenet.losses import SoftmaxLoss, cross_entropy
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig

INITIAL_DEVIATION = 0.002
"""Initial deviation of the weights of the last layer; small, so that training starts from the
scores of the towers."""


@dataclass(frozen=True)
class PairReaderConfig(MethodConfig):
    """Settings of PairReader; the defaults have 29 million weights on towers of width 512.

    num_words: maximum tokens per text.
    hidden_dim, num_layers, num_heads: size of the transformer.
    num_negatives: wrong videos per text, and wrong texts per video, in training; those with the
        highest cosines are taken.
    pairs_at_once: pairs per call of the transformer.
    """

    num_words: int = 77
    hidden_dim: int = 512
    num_layers: int = 9
    num_heads: int = 8
    dropout: float = 0.1
    num_negatives: int = 7
    pairs_at_once: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_words", "num_layers", "num_negatives", "pairs_at_once")


@register(
    PairReaderConfig,
    paper="this project's own, after the idea of VEDJE (2026)",
    checked_by="reference loop",
)
class PairReader(Method):
    r"""Cosine of text and mean frame, plus the output of a cross-encoder over the pair.

    .. math:: s(t, v) = \cos(t, \bar v) + r_{t,v}, \quad
        r = w^\top\,\mathrm{QuickGELU}(W\,\mathrm{LN}(h_0)), \quad
        h = T(\mathrm{LN}([A t;\; B f_1 \dots B f_M;\; A w_1 \dots A w_N] + P))

    with unit vectors t, f and w of the text, the frames and the words, linear maps A and B, and
    learned positions P. It needs only the frame features that every store has, so that it can rank
    any store of its towers. Training compares each text with its videos and with those of the
    highest cosines, as in a shortlist, and each video with texts in the same way.
    """

    name = "pair_reader"
    reads_words = True
    is_cross_encoder = True
    config: PairReaderConfig

    def __init__(self, encoder: Encoder, config: PairReaderConfig) -> None:
        super().__init__(encoder, config)
        dim = config.hidden_dim
        self.text_map = nn.Linear(encoder.dim, dim)
        self.frame_map = nn.Linear(encoder.dim, dim)
        self.text_norm = nn.LayerNorm(dim)
        self.frame_norm = nn.LayerNorm(dim)
        self.stack = TransformerStack(
            dim,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_positions=1 + config.num_frames + config.num_words,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(dim)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, 1, bias=False)
        nn.init.normal_(self.output.weight, std=INITIAL_DEVIATION)
        self.loss = SoftmaxLoss()

    @property
    def score_tile(self) -> tuple[int, int]:
        return (64, 64) if self.device.type == "cuda" else (4, 16)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        device = text.sentence.device
        rows = torch.arange(len(text), device=device).repeat_interleave(len(video))
        columns = torch.arange(len(video), device=device).repeat(len(text))
        return self._coarse(text, video) + self.read(text, video, rows, columns).view(
            len(text), len(video)
        )

    def _coarse(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return F.normalize(text.sentence, dim=-1) @ mean_pooling(video.frames, video.mask).T

    def read(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        rows: Int[Tensor, "pairs"],
        columns: Int[Tensor, "pairs"],
    ) -> Float[Tensor, "pairs"]:
        """Return the cross-encoder output of text ``rows[i]`` with video ``columns[i]``."""
        words, words_mask = self._text_tokens(text)
        frames = self._frame_tokens(video)
        size = self.config.pairs_at_once
        outputs = []
        for texts, videos in zip(rows.split(size), columns.split(size), strict=True):
            # The text, the frames, the words; only the output of the text is used.
            tokens = torch.cat([words[texts, :1], frames[videos], words[texts, 1:]], dim=1)
            is_real = torch.cat(
                [words_mask[texts, :1], video.mask[videos], words_mask[texts, 1:]], dim=1
            )
            outputs.append(self._read_out(self.dropout(tokens), is_real))
        return torch.cat(outputs) if outputs else words.new_zeros(0)

    def _read_out(
        self, tokens: Float[Tensor, "pairs tokens dim"], mask: Bool[Tensor, "pairs tokens"]
    ) -> Float[Tensor, "pairs"]:
        first = self.stack.attend(tokens, mask, num_queries=1)[:, 0]
        values: Tensor = self.output(quick_gelu(self.hidden(self.norm(first)))).squeeze(-1)
        return values

    def _text_tokens(
        self, text: TextFeatures
    ) -> tuple[Float[Tensor, "texts tokens dim"], Bool[Tensor, "texts tokens"]]:
        """Return the tokens of the text and of its words, and the mask of real ones."""
        words, mask = words_or_sentence(text)
        # Drop the padding that all texts share, because the time of a tile grows with its tokens.
        ends = mask.any(dim=0).nonzero()
        longest = int(ends[-1]) + 1 if len(ends) else 0
        words, mask = words[:, :longest], mask[:, :longest]
        if words.shape[1] > self.config.num_words:
            raise ConfigError(
                f"texts have {words.shape[1]} tokens, but num_words is {self.config.num_words}; "
                "increase num_words, or shorten the texts"
            )
        vectors = F.normalize(torch.cat([text.sentence[:, None], words], dim=1), dim=-1)
        first = 1 + self.config.num_frames
        positions = self.stack.positions
        text_positions = torch.cat([positions[:1], positions[first : first + words.shape[1]]])
        tokens: Tensor = self.text_norm(self.text_map(vectors) + text_positions)
        return tokens, torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)

    def _frame_tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        count = video.frames.shape[1]
        if count > self.config.num_frames:
            raise too_many_frames(count, self.config.num_frames)
        positions = self.stack.positions[1 : 1 + count]
        tokens: Tensor = self.frame_norm(
            self.frame_map(F.normalize(video.frames, dim=-1)) + positions
        )
        return tokens

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the contrastive loss of the cosines, and of the scores among the nearest pairs."""
        coarse = self._coarse(text, video)
        size = 1 + self.config.num_negatives
        videos = nearest(coarse, positives, size)
        texts = nearest(coarse.T, positives.T, size)
        rows = torch.arange(len(text), device=coarse.device)[:, None].expand_as(videos)
        columns = torch.arange(len(video), device=coarse.device)[:, None].expand_as(texts)
        text_rows = torch.cat([rows.flatten(), texts.flatten()])
        video_rows = torch.cat([videos.flatten(), columns.flatten()])
        scores = self.loss.scale() * (
            coarse[text_rows, video_rows] + self.read(text, video, text_rows, video_rows)
        )
        text_scores, video_scores = scores.split([videos.numel(), texts.numel()])
        both = cross_entropy(text_scores.view_as(videos), positives.gather(1, videos))
        both = both + cross_entropy(video_scores.view_as(texts), positives.T.gather(1, texts))
        return Losses({"contrastive": self.loss(coarse, positives), "reading": both / 2})


def nearest(
    scores: Float[Tensor, "queries items"], positives: Bool[Tensor, "queries items"], count: int
) -> Int[Tensor, "queries candidates"]:
    """Return the right items of each query, and the wrong items with the highest scores."""
    first = scores.detach().masked_fill(positives, float("inf"))
    return first.topk(min(count, scores.shape[1]), dim=1).indices
