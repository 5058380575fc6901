"""What is encoded and what encoders give: tokens, clips, features, pairs to train on, losses.

Axis order is texts, videos, frames, dim, everywhere. Import these from :mod:`eaglenet.types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from eaglenet.tensor_record import TensorRecord, may_be_late

RightPairs = Bool[Tensor, "texts videos"]
"""Which videos belong to which text."""


@dataclass(frozen=True)
class Tokens(TensorRecord):
    """Token ids, padded after the end token, and which of them are real."""

    ids: Int[Tensor, "texts words"]
    mask: Bool[Tensor, "texts words"]


@dataclass(frozen=True)
class Clips(TensorRecord):
    """Frames as decoded, which of them are real, and when each was shown."""

    frames: UInt8[Tensor, "videos frames 3 height width"]
    mask: Bool[Tensor, "videos frames"]
    seconds: Float[Tensor, "videos frames"]


@dataclass(frozen=True)
class Expert(TensorRecord):
    """What one pretrained model saw of each video: a set of tokens, any number of them.

    A video that the expert knows nothing of has no real token: its mask is all False and its
    values are zeros that no method may read. ``seconds`` is when each token was seen; -1: unknown.
    """

    values: Float[Tensor, "videos tokens expert_dim"]
    mask: Bool[Tensor, "videos tokens"]
    seconds: Float[Tensor, "videos tokens"] | None = None

    @property
    def present(self) -> Bool[Tensor, "videos"]:
        """Which videos have this expert."""
        return self.mask.any(dim=1)


@dataclass(frozen=True)
class TextGraph(TensorRecord):
    """Who does what in each sentence: the sentence, verbs and their arguments as nodes.

    spans: the words of each node; node 0 is the whole sentence, a node without words is not there.
    roles: what each node is to its verb (`data.role_graphs`).
    edges: ``edges[:, i, j]``: node i hears from node j.
    """

    spans: Bool[Tensor, "texts nodes words"]
    roles: Int[Tensor, "texts nodes"]
    edges: Bool[Tensor, "texts nodes nodes"]


@dataclass(frozen=True)
class TextFeatures(TensorRecord):
    """What an encoder knows of texts; a method asks for what it reads, the rest is None.

    words, words_mask: a vector for each word (or, of methods with experts, for each expert).
    weights: how much each expert counts for each text.
    tokens: the token ids themselves, for methods that learn to write captions.
    graph: verbs and nouns of each sentence.
    teachers: vectors of other, earlier models, from which a student learns.
    keys: vectors of a slow copy of the encoder, in training only.
    """

    sentence: Float[Tensor, "texts dim"]
    words: Float[Tensor, "texts words word_dim"] | None = None
    words_mask: Bool[Tensor, "texts words"] | None = None
    weights: Float[Tensor, "texts experts"] | None = None
    tokens: Tokens | None = None
    graph: TextGraph | None = None
    teachers: Float[Tensor, "texts teachers teacher_dim"] | None = None
    keys: Float[Tensor, "texts levels key_dim"] | None = None


@dataclass(frozen=True)
class VideoFeatures(TensorRecord):
    """What an encoder knows of videos; a method asks for what it reads, the rest is None.

    video: one vector a video. tokens: a free set of vectors a video, for methods whose tower makes
    them (proxies, expansion tokens, selected patches, one vector an expert).
    experts: what several pretrained models saw, by their names.
    teachers, keys: as of texts. ids: which video this is, in training only; equal numbers are the
    same video.
    """

    frames: Float[Tensor, "videos frames dim"]
    mask: Bool[Tensor, "videos frames"]
    patches: Float[Tensor, "videos frames patches patch_dim"] | None = None
    video: Float[Tensor, "videos video_dim"] | None = None
    tokens: Float[Tensor, "videos tokens token_dim"] | None = None
    tokens_mask: Bool[Tensor, "videos tokens"] | None = None
    experts: Mapping[str, Expert] | None = None
    teachers: Float[Tensor, "videos teachers teacher_dim"] | None = None
    keys: Float[Tensor, "videos levels key_dim"] | None = None
    ids: Int[Tensor, "videos"] | None = None


@dataclass(frozen=True)
class PairBatch:
    """One training batch: text ``i`` belongs to video ``i``; equal ids are the same video."""

    texts: Tokens | TextFeatures
    videos: Clips | VideoFeatures
    video_ids: Int[Tensor, "pairs"]

    def to(self, device: torch.device | str) -> PairBatch:
        # Not waited for: a copy that blocks would make every step wait for the one before.
        ids = self.video_ids.to(device, non_blocking=may_be_late(device))
        return PairBatch(self.texts.to(device), self.videos.to(device), ids)


@dataclass(frozen=True)
class Losses:
    """Named scalar terms and their weights; a missing weight is 1."""

    terms: Mapping[str, Float[Tensor, ""]]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> Float[Tensor, ""]:
        weighted = [value * self.weights.get(name, 1.0) for name, value in self.terms.items()]
        return torch.stack(weighted).sum()
