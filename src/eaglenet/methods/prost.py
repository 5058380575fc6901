"""ProST: phrases are matched with objects, whole texts with events."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.late_interaction import masked_max, token_similarities
from eaglenet.layers.masking import (
    Padding,
    check_heads,
    effective_mask,
    frame_weights,
    masked_softmax,
)
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import PatchEncoder, TowerMethod, shift_last_blocks


class SparsePrototypes(nn.Module):
    r"""Sums of tokens, with weights that a ReLU makes sparse.

    .. math:: p_j = \sum_i \mathrm{ReLU}(W_2\, \mathrm{ReLU}(W_1 x_i))_j\, x_i
    """

    def __init__(self, dim: int, *, count: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, count))

    def forward(
        self,
        tokens: Float[Tensor, "sets tokens dim"],
        mask: Bool[Tensor, "sets tokens"] | None = None,
    ) -> Float[Tensor, "sets count dim"]:
        weights = self.network(tokens).relu()
        if mask is not None:
            weights = weights.masked_fill(~mask[..., None], 0.0)
        return torch.einsum("stc,std->scd", weights, tokens)


class CrossAttention(nn.Module):
    """Attention of queries over a memory; keys have no bias, which the softmax would cancel."""

    def __init__(self, dim: int, *, dropout: float, num_heads: int = 1) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "rows queries dim"],
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"] | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        query, key, value = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for states in (self.query(queries), self.key(memory), self.value(memory))
        )  # [rows, heads, tokens, head width]
        logits = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = masked_softmax(logits, None if mask is None else mask[:, None])
        result: Tensor = self.output((self.dropout(weights) @ value).transpose(1, 2).flatten(2))
        return result


class PrototypeLayer(nn.Module):
    """Layer: ``x = LN(q)``, LN(x + attention(x, LN(memory))), LN(x + network(x)).

    With ``self_attention`` (for events), the queries attend to each other first, without a
    residual.
    """

    def __init__(
        self, dim: int, *, dropout: float, self_attention: bool, num_heads: int = 1
    ) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(dim)
        self.memory_norm = nn.LayerNorm(dim)
        self.around = (
            CrossAttention(dim, dropout=dropout, num_heads=num_heads) if self_attention else None
        )
        self.around_norm = nn.LayerNorm(dim) if self_attention else None
        self.across = CrossAttention(dim, dropout=dropout, num_heads=num_heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.network = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim)
        )
        self.output_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        queries: Float[Tensor, "rows queries dim"],
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"],
    ) -> Float[Tensor, "rows queries dim"]:
        states = self.query_norm(queries)
        if self.around is not None and self.around_norm is not None:
            states = self.around_norm(self.dropout(self.around(states, states)))
        output = self.across(states, self.memory_norm(memory), mask)
        states = self.attention_norm(states + self.dropout(output))
        return self.output_norm(states + self.dropout(self.network(states)))  # type: ignore[no-any-return]


class PrototypeDecoder(nn.Module):
    """Decoder of learned queries over a memory, with a final normalisation."""

    def __init__(
        self,
        dim: int,
        *,
        num_queries: int,
        num_layers: int,
        dropout: float,
        self_attention: bool,
        num_heads: int = 1,
    ) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(num_queries, dim))
        nn.init.xavier_uniform_(self.queries)
        self.layers = nn.ModuleList(
            PrototypeLayer(dim, dropout=dropout, self_attention=self_attention, num_heads=num_heads)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        memory: Float[Tensor, "rows tokens dim"],
        mask: Bool[Tensor, "rows any tokens"],
        *,
        count: int | None = None,
    ) -> Float[Tensor, "rows queries dim"]:
        """Return the states of all queries, or of the first ``count``."""
        states = self.queries[:count].expand(len(memory), -1, -1)
        for layer in self.layers:
            states = layer(states, memory, mask)
        return self.norm(states)  # type: ignore[no-any-return]


def local_mask(
    mask: Bool[Tensor, "videos frames"], num_objects: int, *, reach: float = 0.2
) -> Bool[Tensor, "videos frames tokens"]:
    """Return the mask of objects that the query of each frame attends to, a run of real objects.

    Of ``n`` real objects, the run of frame ``i`` begins at its first object ``s`` and ends before
    ``e = s + num_objects + floor(reach n)``. A run with ``e > n - 1`` becomes
    ``[s - (e - (n - 1)), n)``, as in the official code: one object longer than the others, even if
    it would fit exactly.
    """
    order = mask.cumsum(dim=1) - 1  # index among the real frames
    total = num_objects * mask.sum(dim=1, keepdim=True)
    # In double precision, as Python's own product: 0.29 * 100 must not become 29.
    length = num_objects + (reach * total.double()).floor().long()
    start = num_objects * order
    end = start + length
    is_beyond = end > total - 1
    start = torch.where(is_beyond, start - (end - (total - 1)), start).clamp(min=0)
    end = torch.where(is_beyond, total, end)
    objects = torch.arange(num_objects, device=mask.device)
    index = (num_objects * order[..., None] + objects).flatten(1)[:, None]  # of each object
    inside = (index >= start[..., None]) & (index < end[..., None])
    return inside & mask.repeat_interleave(num_objects, dim=1)[:, None]


@dataclass(frozen=True)
class ProSTConfig(MethodConfig):
    """Settings of ProST.

    num_phrases: prototypes per text. num_objects: prototypes per frame, its class token included.
    num_events: prototypes per video. num_heads: attention heads of the decoders.
    reach: fraction of all objects that the query of a frame attends to, besides its own.
    padding: ``official`` counts padded words and frames as real, as the authors' code does.
    """

    num_phrases: int = 28
    num_objects: int = 12
    num_events: int = 3
    num_layers: int = 2
    num_heads: int = 1
    num_shifted_blocks: int = 2
    reach: float = 0.2
    dropout: float = 0.1
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_phrases", "num_objects", "num_events")


@register(ProSTConfig, paper="ProST (Li et al., ICCV 2023)", checked_by="golden")
class ProST(TowerMethod):
    r"""Prototypes of space and time.

    .. math:: s = \max_k \cos(t, e_k) + \frac{1}{N_o} \sum_j \max_{m,i} \cos(p_i, o_{mj})

    ``p`` are phrases of the text, ``o`` the ``N_o`` objects of each frame, ``e`` the events: object
    ``j`` takes its best phrase and frame. ``encode_video`` stores events, then objects in
    ``VideoFeatures.tokens``.

    Paper: padded words and frames are left out by default; the official code has no masks. Its
    search for the weight of the second term on the test split, and its joint matching of all
    queries, are not implemented.
    """

    name = "prost"
    needs_words = True
    needs_clip = False
    needs_patches = True
    config: ProSTConfig

    def __init__(self, encoder: Encoder, config: ProSTConfig) -> None:
        super().__init__(encoder, config)
        dim = encoder.dim
        self.phrases = SparsePrototypes(dim, count=config.num_phrases)
        self.objects = SparsePrototypes(dim, count=config.num_objects - 1)
        self.frame_decoder, self.event_decoder = (
            PrototypeDecoder(
                dim,
                num_queries=count,
                num_layers=config.num_layers,
                dropout=config.dropout,
                self_attention=self_attention,
                num_heads=config.num_heads,
            )
            for count, self_attention in ((config.num_frames, False), (config.num_events, True))
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: ProSTConfig, encoder: PatchEncoder) -> None:
        shift_last_blocks(encoder, config.num_shifted_blocks)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = super()._encode_video(videos)
        if features.patches is None:
            raise ConfigError("prost needs patches; encode the videos with its encode_video")
        num_videos, num_frames = features.mask.shape
        if num_frames > self.config.num_frames:
            raise too_many_frames(num_frames, self.config.num_frames)
        mask = effective_mask(features.mask, self.config.padding)
        sums = self.objects(features.patches.flatten(0, 1)).unflatten(0, (num_videos, num_frames))
        objects = torch.cat([features.frames[:, :, None], sums], dim=2).flatten(1, 2)
        events = self.events(features.frames, objects, mask)
        return dataclasses.replace(
            features,
            patches=None,
            tokens=torch.cat([events, objects], dim=1),
            tokens_mask=torch.cat(
                [
                    mask.new_ones(events.shape[:2]),
                    mask.repeat_interleave(self.config.num_objects, dim=1),
                ],
                dim=1,
            ),
        )

    def events(
        self,
        frames: Float[Tensor, "videos frames dim"],
        objects: Float[Tensor, "videos tokens dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos events dim"]:
        """Return the event prototypes, averaged with the mean frame."""
        events = self.event_decoder(self.frame_prototypes(frames, objects, mask), mask[:, None])
        weights = frame_weights(mask, frames.dtype)[..., None]
        return (events + (frames * weights).sum(dim=1, keepdim=True)) / 2  # type: ignore[no-any-return]

    def frame_prototypes(
        self,
        frames: Float[Tensor, "videos frames dim"],
        objects: Float[Tensor, "videos tokens dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos frames dim"]:
        """Return the output of the query of each frame over objects, averaged with the frame."""
        near = local_mask(mask, self.config.num_objects, reach=self.config.reach)
        return (self.frame_decoder(objects, near, count=mask.shape[1]) + frames) / 2  # type: ignore[no-any-return]

    @property
    def score_tile(self) -> tuple[int, int]:
        # Phrases x objects of all frames per pair: 16 kB for 12 frames.
        return (64, 64) if self.device.type == "cuda" else super().score_tile

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]]:
        """Return the similarities of events and texts, and of objects and phrases."""
        if video.tokens is None or video.tokens_mask is None or text.words is None:
            raise ConfigError(
                "prost needs texts with words and videos with prototypes; encode both with prost"
            )
        num_events, num_objects = self.config.num_events, self.config.num_objects
        events, objects = video.tokens[:, :num_events], video.tokens[:, num_events:]
        sentence = F.normalize(text.sentence, dim=-1)
        by_event = torch.einsum("td,ved->tve", sentence, F.normalize(events, dim=-1)).amax(dim=-1)
        best_phrase = token_similarities(self.text_phrases(text), objects).amax(dim=2)
        mask = video.tokens_mask[:, num_events:].unflatten(1, (-1, num_objects))[None]
        best_frame = masked_max(best_phrase.unflatten(-1, (-1, num_objects)), mask, dim=2)
        return by_event, best_frame.mean(dim=-1)

    def text_phrases(self, text: TextFeatures) -> Float[Tensor, "texts phrases dim"]:
        """Return the phrase prototypes: sums of words with sparse weights."""
        if text.words is None:
            raise ConfigError("prost needs texts with words; encode them with its encode_text")
        mask = text.words_mask
        if mask is not None:
            mask = effective_mask(mask, self.config.padding)
        phrases: Tensor = self.phrases(text.words, mask)
        return phrases

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        by_event, by_object = self.similarities(text, video)
        return by_event + by_object

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the contrastive losses of both similarities, each with weight 1/2."""
        by_event, by_object = self.similarities(text, video)
        return Losses(
            {"events": self.loss(by_event, positives), "objects": self.loss(by_object, positives)},
            {"events": 0.5, "objects": 0.5},
        )
