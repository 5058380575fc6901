"""Every object that crosses a folder border.

Axis order is texts, videos, frames, dim, everywhere. Scores are always ``[texts, videos]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from eaglenet.errors import ConfigError

Sampling = Literal["uniform", "per_second", "whole_rate"]
Resize = Literal["crop", "stretch"]
ShortVideo = Literal["repeat", "mask", "zeros"]
MOST_FRAMES, MOST_PIXELS = 4096, 4096
"""Of one clip, and along the side of a frame."""
# A type variable, not ``Self``: the shape checker decorates methods one by one and refuses Self.
Record = TypeVar("Record", bound="TensorRecord")


class TensorRecord:
    """Dataclass of tensors that share their first axis, and may be moved and cut together."""

    def _map(self: Record, function: Any) -> Record:
        changes = {}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                changes[spec.name] = function(value)
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def to(self: Record, device: torch.device | str, dtype: torch.dtype | None = None) -> Record:
        """Move to a device; ``dtype`` applies to floating-point fields only."""

        def move(value: Tensor) -> Tensor:
            target = dtype if dtype is not None and value.is_floating_point() else value.dtype
            return value.to(device, target, non_blocking=True)

        return self._map(move)

    def __getitem__(self: Record, index: Any) -> Record:
        """Rows ``index`` (a slice, an index tensor or a list) of every field."""
        if isinstance(index, int):
            index = slice(index, index + 1)
        return self._map(lambda value: value[index])

    def __len__(self) -> int:
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                return value.shape[0]
        return 0

    def detach(self: Record) -> Record:
        return self._map(lambda value: value.detach())

    @classmethod
    def concatenate(cls: type[Record], parts: Sequence[Record]) -> Record:
        """Join along the first axis."""
        changes = {}
        for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
            values = [getattr(part, spec.name) for part in parts]
            if isinstance(values[0], Tensor):
                changes[spec.name] = torch.cat(values)
        return dataclasses.replace(parts[0], **changes)  # type: ignore[type-var]


@dataclass(frozen=True)
class Tokens(TensorRecord):
    """Token ids padded with 0 after the end token, and which of them are real."""

    ids: Int[Tensor, "texts words"]
    mask: Bool[Tensor, "texts words"]


@dataclass(frozen=True)
class Clips(TensorRecord):
    """Frames as decoded, which of them are real, and when each was shown."""

    frames: UInt8[Tensor, "videos frames 3 height width"]
    mask: Bool[Tensor, "videos frames"]
    seconds: Float[Tensor, "videos frames"]


@dataclass(frozen=True)
class TextFeatures(TensorRecord):
    """What an encoder knows of texts. ``words`` only where a method asks for them."""

    sentence: Float[Tensor, "texts dim"]
    words: Float[Tensor, "texts words dim"] | None = None
    words_mask: Bool[Tensor, "texts words"] | None = None


@dataclass(frozen=True)
class VideoFeatures(TensorRecord):
    """What an encoder knows of videos.

    ``video`` is one vector a video and ``tokens`` a free set of vectors a video, for methods
    whose tower makes them (proxies, expansion tokens, selected patches).
    """

    frames: Float[Tensor, "videos frames dim"]
    mask: Bool[Tensor, "videos frames"]
    patches: Float[Tensor, "videos frames patches dim"] | None = None
    video: Float[Tensor, "videos dim"] | None = None
    tokens: Float[Tensor, "videos tokens dim"] | None = None
    tokens_mask: Bool[Tensor, "videos tokens"] | None = None


@dataclass(frozen=True)
class PairBatch:
    """One training batch: text ``i`` belongs to video ``i``; equal ids are the same video."""

    texts: Tokens | TextFeatures
    videos: Clips | VideoFeatures
    video_ids: Int[Tensor, "pairs"]

    def to(self, device: torch.device | str) -> PairBatch:
        # Not waited for: a copy that blocks would make every step wait for the one before.
        ids = self.video_ids.to(device, non_blocking=True)
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


@dataclass(frozen=True)
class FrameSpec:
    """How frames are taken from a video. Saved with a model and with every store of features.

    sampling: ``uniform`` takes the middle of equal segments (the paper); ``per_second`` the first
        frame of each second, then an evenly spaced subset (the field's habit); ``whole_rate`` the
        same as the field's code counts seconds: every n-th frame, n the whole part of the rate.
    resize: ``crop`` scales the short side and crops the centre; ``stretch`` ignores the aspect.
    short: what a video with fewer frames than asked gives: ``repeat`` frames, ``mask`` them out,
        or ``zeros`` (frames of CLIP's mean colour, 0 once normalised, that count as real: the
        released code's behaviour).
    fast: nearest keyframes instead of exact frames.
    square_pixels: take stored pixels as square, as OpenCV does, whatever aspect a file gives them.
    """

    num_frames: int = 12
    size: int = 224
    sampling: Sampling = "uniform"
    resize: Resize = "crop"
    short: ShortVideo = "repeat"
    fast: bool = False
    square_pixels: bool = False

    def __post_init__(self) -> None:
        for name, most in (("num_frames", MOST_FRAMES), ("size", MOST_PIXELS)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name} is {value!r:.60}; expected a whole number, 1 to {most}")


@runtime_checkable
class Encoder(Protocol):
    """Turns inputs into features. Implementations live in ``encoders`` and are ``nn.Module``s."""

    dim: int

    def encode_text(self, texts: Any, *, words: bool = False) -> TextFeatures: ...

    def encode_video(self, videos: Any, *, patches: bool = False) -> VideoFeatures: ...


@dataclass(frozen=True)
class Moment:
    """A span of a video file in seconds, and the time of its best frame."""

    start: float
    end: float
    best: float


@dataclass(frozen=True)
class Hit:
    """One search result. ``rank`` starts at 1; ``coarse_score`` is the shortlist's cosine."""

    rank: int
    clip_id: str
    path: str
    score: float
    coarse_score: float
    moment: Moment
    duration: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
