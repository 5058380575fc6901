"""ClipBERT: a transformer over a text and the patches of a clip, for every pair."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.encoders.resnet_bert import ResnetBertEncoder
from eaglenet.layers.late_interaction import words_or_sentence
from eaglenet.layers.transformer import PostNormStack
from eaglenet.methods.base import Method, register
from eaglenet.methods.configs import MethodConfig

GRID = 100
"""Number of embeddings of rows and of columns of the patch grid."""


@dataclass(frozen=True)
class ClipBERTConfig(MethodConfig):
    """Settings of ClipBERT.

    frames_per_clip: consecutive frames that are averaged into one clip.
    pooling: how the logits of the clips become those of the video: ``lse`` (logarithm of the sum of
        exponentials), ``mean`` or ``max``.
    pairs_at_once: pairs per call of the transformer; limits memory, does not change scores.
    """

    num_frames: int = 16
    frames_per_clip: int = 2
    pooling: Literal["lse", "mean", "max"] = "lse"
    dim: int = 512
    num_layers: int = 12
    num_heads: int = 8
    hidden_dim: int = 3072
    num_positions: int = 100
    dropout: float = 0.1
    pairs_at_once: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("frames_per_clip", "dim", "num_layers", "pairs_at_once")


def pool_clips(
    logits: Float[Tensor, "pairs clips 2"], mask: Bool[Tensor, "pairs clips"], pooling: str
) -> Float[Tensor, "pairs 2"]:
    """Return the logits of videos from those of their real clips.

    With ``lse``, the cross-entropy of the result is LSE over clips and classes minus LSE over clips
    of the right class.
    """
    if pooling == "mean":
        weights = mask.to(logits.dtype)[..., None]
        return (logits * weights).sum(dim=1) / weights.sum(dim=1)
    logits = logits.masked_fill(~mask[..., None], float("-inf"))
    return logits.amax(dim=1) if pooling == "max" else logits.logsumexp(dim=1)


@register(ClipBERTConfig, paper="ClipBERT (Lei et al., CVPR 2021)", checked_by="golden")
class ClipBERT(Method):
    """Cross-encoder over the words of a text and the patches of a clip.

    ``encode_text`` and ``encode_video`` return tokens; everything else is computed per pair. Search
    makes shortlists with ``coarse_vectors`` of the encoder and ranks them with ``score``.

    With the towers of the authors (:mod:`eaglenet.encoders.resnet_bert`, in converted checkpoints)
    words and grid enter the transformer as they are. Such towers share no space, so there is no
    shortlist.

    Reduced: with other towers, grid and words are linear maps of their patches (for stored
    features, of the frames) and of their words, after a learned first token. The transformer starts
    from random weights, without image-text pre-training. Training and evaluation use all clips of a
    video; the number of clips of the published result is uncertain (16 for its best).
    """

    name = "clipbert"
    reads_words = True
    is_cross_encoder = True
    config: ClipBERTConfig
    score_tile = (8, 8)

    def __init__(self, encoder: Encoder, config: ClipBERTConfig) -> None:
        super().__init__(encoder, config)
        # Stored features have no patches in rows and columns.
        self.has_grid = encoder.abilities.patches and encoder.image_size is not None
        dim = config.dim
        self.has_own_towers = isinstance(encoder, ResnetBertEncoder)
        if self.has_own_towers and encoder.dim != dim:
            raise ConfigError(f"dim is {dim}, but the towers are {encoder.dim} wide; set dim to it")
        self.word_map = nn.Identity() if self.has_own_towers else nn.Linear(encoder.dim, dim)
        self.patch_map = nn.Identity() if self.has_own_towers else nn.Linear(encoder.dim, dim)
        # The tokens of BERT begin with one already.
        self.first = None if self.has_own_towers else nn.Parameter(0.02 * torch.randn(dim))
        self.positions = nn.Parameter(0.02 * torch.randn(config.num_positions, dim))
        self.kinds = nn.Parameter(0.02 * torch.randn(2, dim))
        self.grid = nn.Parameter(0.02 * torch.randn(2, GRID, dim)) if self.has_grid else None
        self.text_norm = nn.LayerNorm(dim, eps=1e-12)
        self.patch_norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = PostNormStack(config)
        self.pooler = nn.Linear(dim, dim)
        self.head = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, 2))

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode texts for the shortlist, and their words for the transformer."""
        text = super()._encode_text(texts)
        words, mask = words_or_sentence(text)
        return dataclasses.replace(text, words=words, words_mask=mask)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        """Encode frames for the shortlist; ``patches`` is the grid of each frame."""
        video = self.encoder.encode_video(videos, patches=self.has_grid)
        grid = video.frames[:, :, None] if video.patches is None else video.patches[:, :, 1:]
        return dataclasses.replace(video, patches=grid, tokens=None, video=None)

    def clips_of(
        self, video: VideoFeatures
    ) -> tuple[Float[Tensor, "videos clips patches dim"], Bool[Tensor, "videos clips"]]:
        """Return grids averaged over the real frames of each clip, and the mask of real clips."""
        if video.patches is None:
            raise UsageError("the videos have no patches; encode them with encode_video")
        size = self.config.frames_per_clip
        num_padding = -video.patches.shape[1] % size
        grid = F.pad(video.patches, (0, 0, 0, 0, 0, num_padding)).unflatten(1, (-1, size))
        mask = F.pad(video.mask, (0, num_padding)).unflatten(1, (-1, size))
        weights = mask.to(grid.dtype)[..., None, None]
        mean = (grid * weights).sum(dim=2) / weights.sum(dim=2).clamp_min(1.0)
        return mean, mask.any(dim=2)

    def pair_logits(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        rows: Int[Tensor, "pairs"],
        columns: Int[Tensor, "pairs"],
    ) -> tuple[Float[Tensor, "pairs clips 2"], Bool[Tensor, "pairs clips"]]:
        """Return the logits of "no match" and "match" of text ``rows[i]``, video ``columns[i]``."""
        words, text_mask = words_or_sentence(text)
        text_tokens = self._text_tokens(words)
        if self.first is not None:
            text_mask = torch.cat([text_mask.new_ones(len(words), 1), text_mask], dim=1)
        grid, clips_mask = self.clips_of(video)
        visual_tokens = self._visual_tokens(grid)
        num_clips, num_patches = visual_tokens.shape[1:3]
        pair_text = text_tokens[rows].repeat_interleave(num_clips, dim=0)
        text_mask = text_mask[rows].repeat_interleave(num_clips, dim=0)
        pair_visual = visual_tokens[columns].flatten(0, 1)
        # Logits of padded clips are masked later.
        visual_mask = clips_mask[columns].flatten()[:, None].expand(-1, num_patches)
        tokens = torch.cat([pair_text, pair_visual], dim=1)
        states = self.stack(tokens, torch.cat([text_mask, visual_mask], dim=1))
        output = self.dropout(torch.tanh(self.pooler(states[:, 0])))
        return self.head(output).unflatten(0, (len(rows), num_clips)), clips_mask[columns]

    def _text_tokens(
        self, words: Float[Tensor, "texts words width"]
    ) -> Float[Tensor, "texts length dim"]:
        tokens: Tensor = self.word_map(words)
        if self.first is not None:
            tokens = torch.cat([self.first.expand(len(words), 1, -1), tokens], dim=1)
        if tokens.shape[1] > len(self.positions):
            raise ConfigError(
                f"texts have {tokens.shape[1]} tokens, but there are only {len(self.positions)} "
                "positions; increase num_positions, or shorten the texts"
            )
        tokens = tokens + self.positions[: tokens.shape[1]] + self.kinds[0]
        result: Tensor = self.dropout(self.text_norm(tokens))
        return result

    def _visual_tokens(
        self, grid: Float[Tensor, "videos clips patches width"]
    ) -> Float[Tensor, "videos clips patches dim"]:
        tokens = self.patch_map(grid) + self.kinds[1]
        if self.grid is not None:
            side = round(grid.shape[2] ** 0.5)
            indices = torch.arange(grid.shape[2], device=grid.device)
            tokens = tokens + self.grid[0, indices // side] + self.grid[1, indices % side]
        result: Tensor = self.dropout(self.patch_norm(tokens))
        return result

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        """Return the log-odds that each pair matches; 0 for a video without frames."""
        device = text.sentence.device
        pairs = torch.cartesian_prod(
            torch.arange(len(text), device=device), torch.arange(len(video), device=device)
        ).view(-1, 2)
        scores = []
        for batch in pairs.split(self.config.pairs_at_once):
            logits, mask = self.pair_logits(text, video, batch[:, 0], batch[:, 1])
            clip_mask = torch.where(mask.any(dim=1, keepdim=True), mask, torch.ones_like(mask))
            mismatch, match = pool_clips(logits, clip_mask, self.config.pooling).unbind(dim=1)
            scores.append((match - mismatch).masked_fill(~mask.any(dim=1), 0.0))
        return torch.cat(scores).view(len(text), len(video))

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the loss of every text with its video and with a random other video."""
        count = len(text)
        texts = torch.arange(count, device=positives.device)
        chances = torch.rand(positives.shape, device=positives.device)
        other = chances.masked_fill(positives, -1.0).argmax(dim=1)
        rows, columns = texts.repeat(2), torch.cat([texts, other])
        labels = torch.cat([torch.ones_like(texts), torch.zeros_like(texts)])
        logits, mask = self.pair_logits(text, video, rows, columns)
        # A batch with one video has no wrong videos.
        is_usable = torch.cat([texts >= 0, (~positives).any(dim=1)]) & mask.any(dim=1)
        video_logits = pool_clips(logits[is_usable], mask[is_usable], self.config.pooling)
        return Losses({"matching": F.cross_entropy(video_logits, labels[is_usable])})

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if self.has_own_towers:
            raise UsageError(
                "search needs a shortlist, which this model cannot make: its towers share no "
                "space. `eaglenet evaluate` scores all pairs, and so does `similarity` in Python"
            )
        return super().coarse_vectors(features)
