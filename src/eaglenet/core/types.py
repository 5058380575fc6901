"""Types shared between packages: tensors that travel together, and encoders.

Axes are always in the order texts, videos, frames, dim. Scores are always ``[texts, videos]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from eaglenet.core.frame_spec import FrameSpec as FrameSpec
from eaglenet.core.frame_spec import Resize as Resize

# A type variable, not ``Self``: the shape checker decorates methods one by one and refuses Self.
Record = TypeVar("Record", bound="TensorRecord")


def can_copy_async(device: torch.device | str) -> bool:
    """Return whether a copy to ``device`` may finish after the call.

    Later work on a GPU waits in the same queue; on the CPU it would read unfinished data.
    """
    return torch.device(device).type not in ("cpu", "mps")


class TensorRecord:
    """Dataclass of tensors that share their first axis and are moved and sliced together.

    A field may also be a record, or a mapping of names to records.
    """

    def __repr__(self) -> str:
        """Show shapes, types and devices instead of values."""
        entries = []
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                device = "" if value.device.type == "cpu" else f" on {value.device}"
                value = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{device}"
                entries.append(f"{spec.name}: {value}")
            elif value is not None:
                entries.append(f"{spec.name}: {value!r:.200}")
        return f"{type(self).__name__}({', '.join(entries)})"

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
                    name: record.map_tensors(function) for name, record in value.items()
                }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, including those of inner records, in a fixed order."""
        tensors: list[Tensor] = []

        def collect(value: Tensor) -> Tensor:
            tensors.append(value)
            return value

        self.map_tensors(collect)
        return tensors

    def to(self: Record, device: torch.device | str, dtype: torch.dtype | None = None) -> Record:
        """Move to a device; ``dtype`` applies to floating-point fields only."""

        def move(value: Tensor) -> Tensor:
            target = dtype if dtype is not None and value.is_floating_point() else value.dtype
            return value.to(device, target, non_blocking=can_copy_async(device))

        return self.map_tensors(move)

    def __getitem__(self: Record, index: Any) -> Record:
        """Select rows of every field; ``index`` is an int, slice, index tensor or list."""
        if isinstance(index, int):
            index = slice(index, index + 1)
        return self.map_tensors(lambda value: value[index])

    def __len__(self) -> int:
        tensors = self.tensors()
        return tensors[0].shape[0] if tensors else 0

    def detach(self: Record) -> Record:
        return self.map_tensors(lambda value: value.detach())

    @classmethod
    def concatenate(cls: type[Record], records: Sequence[Record]) -> Record:
        """Join records along the first axis."""
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
            values = [getattr(record, spec.name) for record in records]
            first = values[0]
            if isinstance(first, Tensor):
                changes[spec.name] = torch.cat(values)
            elif isinstance(first, TensorRecord):
                changes[spec.name] = type(first).concatenate(values)
            elif isinstance(first, Mapping):
                changes[spec.name] = {
                    name: type(record).concatenate([value[name] for value in values])
                    for name, record in first.items()
                }
        return dataclasses.replace(records[0], **changes)  # type: ignore[type-var]


RightPairs = Bool[Tensor, "texts videos"]
"""True where a video belongs to a text."""


@dataclass(frozen=True, repr=False)
class Tokens(TensorRecord):
    """Token ids, padded after the end token, and a mask of the real ones."""

    ids: Int[Tensor, "texts words"]
    mask: Bool[Tensor, "texts words"]


@dataclass(frozen=True, repr=False)
class Clips(TensorRecord):
    """Decoded frames, a mask of the real ones, and the time of each in seconds."""

    frames: UInt8[Tensor, "videos frames 3 height width"]
    mask: Bool[Tensor, "videos frames"]
    seconds: Float[Tensor, "videos frames"]


@dataclass(frozen=True, repr=False)
class Expert(TensorRecord):
    """Features of one pretrained model: any number of tokens per video.

    A video without features has a mask of False, and zeros as values, which no method may read.
    ``seconds`` is the time of each token; -1 means unknown.
    """

    values: Float[Tensor, "videos tokens expert_dim"]
    mask: Bool[Tensor, "videos tokens"]
    seconds: Float[Tensor, "videos tokens"] | None = None

    @property
    def present(self) -> Bool[Tensor, "videos"]:
        """Mask of the videos that have features of this expert."""
        return self.mask.any(dim=1)


@dataclass(frozen=True, repr=False)
class TextGraph(TensorRecord):
    """Semantic role graph per text: the whole text, its verbs and their arguments as nodes.

    spans: the tokens of each node; node 0 is the whole text, a node without tokens is unused.
    roles: role of each node for its verb (`research.data.role_graphs`).
    edges: ``edges[:, i, j]`` is True if node i receives messages from node j.
    """

    spans: Bool[Tensor, "texts nodes words"]
    roles: Int[Tensor, "texts nodes"]
    edges: Bool[Tensor, "texts nodes nodes"]


@dataclass(frozen=True, repr=False)
class TextFeatures(TensorRecord):
    """Encoded texts. A method requests the fields it reads; the others are None.

    sentence: one vector per text.
    words, words_mask: one vector per token (for methods with experts: per expert).
    weights: weight of each expert per text.
    tokens: token ids, for methods that learn to generate captions.
    graph: semantic roles.
    teachers: vectors of earlier models that a student learns from.
    keys: vectors of a momentum copy of the encoder, in training only.
    """

    sentence: Float[Tensor, "texts dim"]
    words: Float[Tensor, "texts words word_dim"] | None = None
    words_mask: Bool[Tensor, "texts words"] | None = None
    weights: Float[Tensor, "texts experts"] | None = None
    tokens: Tokens | None = None
    graph: TextGraph | None = None
    teachers: Float[Tensor, "texts teachers teacher_dim"] | None = None
    keys: Float[Tensor, "texts levels key_dim"] | None = None


@dataclass(frozen=True, repr=False)
class VideoFeatures(TensorRecord):
    """Encoded videos. A method requests the fields it reads; the others are None.

    video: one vector per video.
    tokens: any number of vectors per video, for methods whose encoder makes them (proxies,
        expansion tokens, selected patches, one vector per expert).
    experts: features of several pretrained models, by name.
    teachers, keys: as in :class:`TextFeatures`.
    ids: video numbers, in training only; equal numbers mean the same video.
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
    """One training batch: text ``i`` belongs to video ``i``; equal ids mean the same video."""

    texts: Tokens | TextFeatures
    videos: Clips | VideoFeatures
    video_ids: Int[Tensor, "pairs"]

    def to(self, device: torch.device | str) -> PairBatch:
        # A blocking copy would make each step wait for the previous one.
        ids = self.video_ids.to(device, non_blocking=can_copy_async(device))
        return PairBatch(self.texts.to(device), self.videos.to(device), ids)


@dataclass(frozen=True)
class Losses:
    """Named scalar terms and their weights; a missing weight is 1."""

    terms: Mapping[str, Float[Tensor, ""]]
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> Float[Tensor, ""]:
        weighted_terms = [value * self.weights.get(name, 1.0) for name, value in self.terms.items()]
        return torch.stack(weighted_terms).sum()


@runtime_checkable
class PlainConfig(Protocol):
    """A dataclass of plain values, saved beside the weights."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@runtime_checkable
class Tokenizer(Protocol):
    """Converts texts to token ids. Saved with the model of its text encoder."""

    def __call__(self, texts: Sequence[str], max_length: int = ...) -> Tokens:
        """Return ids of equal length; longer texts are truncated before the end token."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and everything needed to load it."""
        ...


@dataclass(frozen=True)
class Abilities:
    """Outputs of an encoder, in addition to one vector per text.

    frames: one vector per frame; otherwise one or several per clip, in ``VideoFeatures.frames``.
    words: one vector per token of a text.
    patches: one vector per patch of a frame, after the frame's own vector.
    token_shift: blocks of the vision encoder can exchange tokens between neighbouring frames.
    """

    words: bool = False
    patches: bool = False
    token_shift: bool = False
    frames: bool = True


@dataclass(frozen=True)
class BlockLayers:
    """The layers of a pre-norm transformer block."""

    ln_1: nn.LayerNorm
    qkv: nn.Linear
    out: nn.Linear
    ln_2: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear


@dataclass(frozen=True)
class TextStack:
    """Blocks and position embeddings of a text encoder, to initialise a temporal head from."""

    heads: int
    positions: Float[Tensor, "positions width"]
    blocks: tuple[BlockLayers, ...]

    @property
    def width(self) -> int:
        return self.positions.shape[1]


class HasLogitScale(Protocol):
    """An encoder with the factor on its cosines. Cast an encoder to it to reach the tensors.

    They are not part of ``Encoder``: since Python 3.12, ``isinstance`` with a protocol does not see
    the parameters of a module.

    logit_scale: logarithm of the factor on cosines in training.
    logit_bias: term added to them, for encoders trained with a sigmoid loss.
    """

    logit_scale: Tensor
    logit_bias: Tensor | None


@runtime_checkable
class Encoder(Protocol):
    """Turns texts and videos into features. Implementations are ``nn.Module``s in ``encoders``.

    family: name in ``encoders.ENCODERS``, saved in a model folder.
    image_size: side of its square input frames; None if it reads stored features.
    context_length: maximum tokens per text; None if it reads stored features.
    vocabulary_size: number of token ids; None if unknown.
    resize: resizing of frames to a square, as in :class:`FrameSpec`.
    num_blocks: blocks of the vision encoder; 0 if it reads stored features.
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
        """Return one vector per frame; with ``patches``, those of its patches after it."""
        ...

    def text_stack(self) -> TextStack | None:
        """Return the blocks to initialise a temporal head from, if any."""
        ...

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time in exactly these vision blocks (numbered from 0)."""
        ...

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute activations in the backward pass; a number: only in the first vision blocks."""
        ...

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile in place, with ``torch.compile``'s arguments."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> object: ...


MIN_NORM = 1e-6
"""Minimum norm for normalising: the direction of shorter vectors is rounding error."""
SLOPE = 1.702
"""Slope of CLIP's quick GELU."""


def quick_gelu(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return x sigmoid(1.702 x), the approximation of GELU in OpenAI's models."""
    return values * torch.sigmoid(SLOPE * values)


def unit_entries(features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
    """Scale vectors to the length sqrt(width), so that their entries are about 1."""
    return F.normalize(features, dim=-1) * math.sqrt(features.shape[-1])
