"""The interface behind which every method sits: encode once, match many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.encoders.clip import ClipEncoder
from eaglenet.errors import ConfigError
from eaglenet.layers.mean_pooling import mean_pooling
from eaglenet.registry import Registry
from eaglenet.types import (
    Clips,
    Encoder,
    FrameSpec,
    Losses,
    TextFeatures,
    Tokens,
    VideoFeatures,
)


@dataclass(frozen=True)
class EvaluationHabits:
    """How a model wants to be evaluated where its data does not say: as it was trained.

    max_words: tokens a text is cut to, start and end included; None: the dataset's own habit.
    precision: of the towers, ``fp32``, ``bf16`` or ``fp16``.
    """

    max_words: int | None = None
    precision: str = "fp32"


class Method(nn.Module, ABC):
    """A way to score texts against videos.

    Subclasses set ``config`` (a frozen dataclass, saved beside the weights) and implement
    ``score`` and ``losses``. ``encode_text`` never sees a video and ``encode_video`` never sees a
    text, so both can be cached and indexed. In eval mode ``score`` is deterministic, and a score
    depends on its pair alone.
    """

    name: ClassVar[str]
    needs_words: ClassVar[bool] = False
    needs_patches: ClassVar[bool] = False

    config: Any
    tokenizer: Any = None
    """Turns sentences into ``Tokens``; set by :func:`eaglenet.load`, saved with the model."""
    habits: EvaluationHabits = EvaluationHabits()
    """Saved with the model."""

    def __init__(self, encoder: Encoder, *, frame_spec: FrameSpec | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.frame_spec = frame_spec or FrameSpec()

    def encode_text(self, texts: Tokens | TextFeatures) -> TextFeatures:
        """Features of texts; never sees a video."""
        return self.encoder.encode_text(texts, words=self.needs_words)

    def encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        """Features of videos; never sees a text."""
        return self.encoder.encode_video(videos, patches=self.needs_patches)

    @abstractmethod
    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        """Similarity of every text with every video; higher is better."""

    @abstractmethod
    def losses(
        self,
        text: TextFeatures,
        video: VideoFeatures,
        positives: Bool[Tensor, "texts videos"],
    ) -> Losses:
        """Training terms. ``positives`` says which pairs belong together."""

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """One unit vector each, for the vector store: the sentence, or the mean of unit frames."""
        if isinstance(features, TextFeatures):
            return F.normalize(features.sentence, dim=-1)
        return mean_pooling(features.frames, features.mask)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """How well each frame fits each text; picks the moment. Padded frames get -inf."""
        sentence = F.normalize(text.sentence, dim=-1)
        frames = F.normalize(video.frames, dim=-1)
        scores = torch.einsum("td,vfd->tvf", sentence, frames)
        return scores.masked_fill(~video.mask[None], float("-inf"))

    @property
    def score_tile(self) -> tuple[int, int]:
        """Texts and videos that :meth:`score` may take at once; small where pairs need memory."""
        return (16, 64)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile in place what a training step spends its time in; here the encoder."""
        self.encoder.compile(*args, **kwargs)  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@contextmanager
def evaluating(method: nn.Module) -> Iterator[None]:
    """Everything in eval mode, and afterwards each module in the mode that it was in."""
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def frame_spec_for(encoder: Encoder, num_frames: int) -> FrameSpec:
    """Evenly sampled frames of the size the encoder wants; 224 where it does not say."""
    vision = getattr(getattr(encoder, "config", None), "vision", None)
    return FrameSpec(num_frames=num_frames, size=int(getattr(vision, "image_size", 224)))


def need_tower(encoder: Encoder, name: str) -> ClipEncoder:
    """The encoder of a method that works inside the vision tower, which features do not have."""
    if not isinstance(encoder, ClipEncoder):
        raise ConfigError(
            f"{name} works inside the vision tower and cannot run on frozen features; "
            "give it a ClipEncoder, or choose clip4clip, xpool, tmass, video_colbert, drl or "
            "eaglenet"
        )
    return encoder


def adopt_logit_scale(encoder: Encoder, loss: nn.Module | None) -> None:
    """A loss with a logit scale starts from CLIP's; CLIP's own is frozen, as nothing reads it."""
    scale = getattr(encoder, "logit_scale", None)
    if not isinstance(scale, Tensor):
        return
    scale.requires_grad_(False)
    own = getattr(loss, "logit_scale", None)
    if isinstance(own, Tensor):
        own.data.copy_(scale.detach())


@dataclass(frozen=True)
class MethodSpec:
    """What the registry knows of a method: how to configure and build it, and where it is from."""

    name: str
    config_class: type[Any]
    build: Callable[[Any, Encoder], Method]
    paper: str
    checked: str
    """One of: golden, reference loop, approximate from the abstract."""


METHODS: Registry[MethodSpec] = Registry("method")
