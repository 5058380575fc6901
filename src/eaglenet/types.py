"""Every object that crosses a folder border.

Axis order is texts, videos, frames, dim, everywhere. Scores are always ``[texts, videos]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.feature_records import (
    Clips,
    Expert,
    Losses,
    PairBatch,
    RightPairs,
    TextFeatures,
    TextGraph,
    Tokens,
    VideoFeatures,
)
from eaglenet.frame_spec import (
    MOST_FRAMES,
    MOST_PIXELS,
    FrameSpec,
    Resize,
    Sampling,
    ShortVideo,
)

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
