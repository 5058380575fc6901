"""Every object that crosses a folder border.

Axis order is texts, videos, frames, dim, everywhere. Scores are always ``[texts, videos]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from eaglenet.core.frame_spec import (
    MOST_FRAMES,
    MOST_PIXELS,
    FrameSpec,
    Resize,
    Sampling,
    ShortVideo,
)

# Tensors that belong together: moved, cut and joined as one.

# A type variable, not ``Self``: the shape checker decorates methods one by one and refuses Self.
Record = TypeVar("Record", bound="TensorRecord")


def may_be_late(device: torch.device | str) -> bool:
    """Whether a copy may end after the call: to the host it may not, its reader would see zeros.

    To a GPU whoever reads it waits in the same queue.
    """
    return torch.device(device).type != "cpu"


class TensorRecord:
    """Dataclass of tensors that share their first axis, and may be moved and cut together.

    A field may also be a record itself, or a table of records by name; both go along.
    """

    def map_tensors(self: Record, function: Any) -> Record:
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                changes[spec.name] = function(value)
            elif isinstance(value, TensorRecord):
                changes[spec.name] = value.map_tensors(function)
            elif isinstance(value, Mapping):
                changes[spec.name] = {
                    name: part.map_tensors(function) for name, part in value.items()
                }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def tensors(self) -> list[Tensor]:
        """Every tensor of the record, those of inner records among them, in a fixed order."""
        found: list[Tensor] = []

        def take(value: Tensor) -> Tensor:
            found.append(value)
            return value

        self.map_tensors(take)
        return found

    def to(self: Record, device: torch.device | str, dtype: torch.dtype | None = None) -> Record:
        """Move to a device; ``dtype`` applies to floating-point fields only."""

        def move(value: Tensor) -> Tensor:
            target = dtype if dtype is not None and value.is_floating_point() else value.dtype
            return value.to(device, target, non_blocking=may_be_late(device))

        return self.map_tensors(move)

    def __getitem__(self: Record, index: Any) -> Record:
        """Rows ``index`` (a slice, an index tensor or a list) of every field."""
        if isinstance(index, int):
            index = slice(index, index + 1)
        return self.map_tensors(lambda value: value[index])

    def __len__(self) -> int:
        found = self.tensors()
        return found[0].shape[0] if found else 0

    def detach(self: Record) -> Record:
        return self.map_tensors(lambda value: value.detach())

    @classmethod
    def concatenate(cls: type[Record], parts: Sequence[Record]) -> Record:
        """Join along the first axis."""
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
            values = [getattr(part, spec.name) for part in parts]
            first = values[0]
            if isinstance(first, Tensor):
                changes[spec.name] = torch.cat(values)
            elif isinstance(first, TensorRecord):
                changes[spec.name] = type(first).concatenate(values)
            elif isinstance(first, Mapping):
                changes[spec.name] = {
                    name: type(part).concatenate([value[name] for value in values])
                    for name, part in first.items()
                }
        return dataclasses.replace(parts[0], **changes)  # type: ignore[type-var]


# What is encoded and what encoders give: tokens, clips, features, pairs to train on, losses.

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


__all__ = [
    "MOST_FRAMES",
    "MOST_PIXELS",
    "Abilities",
    "BlockLayers",
    "Clips",
    "Encoder",
    "Expert",
    "FoundWords",
    "FrameSpec",
    "Hit",
    "Losses",
    "Moment",
    "PairBatch",
    "Part",
    "PlainConfig",
    "Resize",
    "RightPairs",
    "Sampling",
    "ShortVideo",
    "TextFeatures",
    "TextGraph",
    "TextStack",
    "Tokenizer",
    "Tokens",
    "VideoFeatures",
    "WordKind",
]

Part = Literal["pictures", "speech", "text"]
"""Of a video, to search in: what is seen, what is said, what is to be read."""
WordKind = Literal["subtitle", "speech", "text"]
"""Where words come from: subtitles, a model that listens, a model that reads frames."""


@runtime_checkable
class PlainConfig(Protocol):
    """Any dataclass: plain values that are saved beside the weights."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@runtime_checkable
class Tokenizer(Protocol):
    """Sentences to token ids. Saved with the model whose text tower it belongs to."""

    def __call__(self, texts: Sequence[str], max_length: int = ...) -> Tokens:
        """Ids of one width; longer texts are cut so that the end token stays."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and what is needed to read it again."""
        ...


@dataclass(frozen=True)
class Abilities:
    """What an encoder can give beside one vector a sentence and one a frame.

    words: a vector for every token of a text.
    patches: vectors for the patches of a frame; the frame's own vector comes first.
    token_shift: blocks of its vision tower can exchange tokens between neighbouring frames.
    """

    words: bool = False
    patches: bool = False
    token_shift: bool = False


@dataclass(frozen=True)
class BlockLayers:
    """The weighted layers of one transformer block that normalises first."""

    ln_1: nn.LayerNorm
    qkv: nn.Linear
    out: nn.Linear
    ln_2: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear


@dataclass(frozen=True)
class TextStack:
    """The blocks of a text tower and its positions, from which temporal heads may start."""

    heads: int
    positions: Float[Tensor, "positions width"]
    blocks: tuple[BlockLayers, ...]

    @property
    def width(self) -> int:
        return self.positions.shape[1]


@runtime_checkable
class Encoder(Protocol):
    """Turns inputs into features. Implementations live in ``encoders`` and are ``nn.Module``s.

    family: the name in ``encoders.ENCODERS``; a model folder is saved with it.
    image_size: side of the square frames it takes; None where it reads stored features.
    context_length: most tokens of a text; None where it reads stored features.
    vocabulary_size: how many tokens it knows; None where it does not say.
    resize: how a picture becomes a square, as in :class:`FrameSpec`.
    num_blocks: of its vision tower; 0 where it reads stored features.
    logit_scale: the logarithm of the factor its cosines were trained with.
    logit_bias: what was added to them, where it was trained with a sigmoid loss.
    """

    @property
    def family(self) -> str: ...

    @property
    def config(self) -> PlainConfig: ...

    @property
    def dim(self) -> int: ...

    @property
    def image_size(self) -> int | None: ...

    @property
    def context_length(self) -> int | None: ...

    @property
    def vocabulary_size(self) -> int | None: ...

    @property
    def resize(self) -> Resize: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def abilities(self) -> Abilities: ...

    @property
    def logit_scale(self) -> Tensor: ...

    @property
    def logit_bias(self) -> Tensor | None: ...

    @property
    def device(self) -> torch.device: ...

    def encode_text(self, texts: Tokens | TextFeatures, *, words: bool = False) -> TextFeatures: ...

    def encode_video(
        self, videos: Clips | VideoFeatures, *, patches: bool = False
    ) -> VideoFeatures: ...

    def encode_frames(
        self,
        frames: Shaped[Tensor, "videos frames 3 height width"],
        mask: Bool[Tensor, "videos frames"] | None = None,
        *,
        patches: bool = False,
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """All frames in one batch: [.., 1, dim], or with ``patches`` all tokens, frame first."""
        ...

    def text_stack(self) -> TextStack | None:
        """The blocks that a temporal head may start from; None where there are none."""
        ...

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time inside these visual blocks (from 0), and in no other."""
        ...

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute blocks backward; a number: so many of the first visual blocks only."""
        ...

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile in place, with ``torch.compile``'s arguments."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> object: ...


@dataclass(frozen=True)
class Moment:
    """A span of a video file in seconds, and the time of its best frame."""

    start: float
    end: float
    best: float


@dataclass(frozen=True)
class FoundWords:
    """A line that was said or is to be read in a video, and what of it was asked for.

    start, end: seconds in the file. language: as its source names it; empty where it does not.
    highlights: first and last + 1 character of each place in ``text`` that was asked for.
    """

    text: str
    start: float
    end: float
    kind: WordKind
    language: str = ""
    highlights: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Hit:
    """One search result. ``rank`` starts at 1; ``coarse_score`` is the shortlist's cosine.

    found_by: the parts of the video that were found, the one that counted most first.
    words: the lines that were found in it, the best first.
    """

    rank: int
    clip_id: str
    path: str
    score: float
    coarse_score: float
    moment: Moment
    duration: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    found_by: tuple[Part, ...] = ("pictures",)
    words: tuple[FoundWords, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        return dataclasses.asdict(self)


# Numbers and functions that layers, energies and towers share.

MIN_NORM = 1e-6
"""Shorter vectors count as this long: their direction is rounding, and its gradient explodes."""
SLOPE = 1.702
"""Of CLIP's quick GELU."""


def quick_gelu(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x sigmoid(1.702 x), the approximation OpenAI's models were trained with."""
    return values * torch.sigmoid(SLOPE * values)


def unit_entries(features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """The same directions with entries of about 1: unit length times the root of the width."""
    return F.normalize(features, dim=-1) * math.sqrt(features.shape[-1])
