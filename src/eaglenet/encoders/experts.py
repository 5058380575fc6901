"""An encoder that hands on what several pretrained models saw; each method reduces it itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eaglenet.encoders.base import BaseEncoder
from eaglenet.encoders.config import CLIP_LOGIT_SCALE
from eaglenet.encoders.registry import ENCODERS, EncoderSpec
from eaglenet.errors import ConfigError, UsageError
from eaglenet.types import Abilities, Clips, TextFeatures, Tokens, VideoFeatures


@dataclass(frozen=True)
class ExpertConfig:
    """Names and widths of what arrives.

    experts: name -> width. frames: the expert that shows moments, and is never missing.
    text_dim, words_dim: widths of sentences and of words. words: which of a folder's kinds of
    words; empty takes the first. dim: the width that methods bring everything to.
    """

    experts: Mapping[str, int]
    frames: str
    text_dim: int
    words_dim: int
    words: str = ""
    dim: int = 512

    def __post_init__(self) -> None:
        if self.frames not in self.experts:
            known = ", ".join(self.experts) or "none"
            raise ConfigError(f"frames is {self.frames!r}, which is not an expert (known: {known})")
        widths = {**self.experts, "text_dim": self.text_dim, "words_dim": self.words_dim}
        wrong = [name for name, width in widths.items() if width < 1]
        if wrong:
            raise ConfigError(f"widths must be 1 or more; of {', '.join(wrong)} they are not")

    @property
    def frame_dim(self) -> int:
        return self.experts[self.frames]


class ExpertEncoder(BaseEncoder):
    """Passes experts, words and whatever else a folder holds on, on its device and in its type.

    It has no weights: what is learnt is the method's.
    """

    family = "experts"
    abilities = Abilities(words=True)
    config: ExpertConfig

    def __init__(self, config: ExpertConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.register_buffer("logit_scale", torch.tensor(CLIP_LOGIT_SCALE), persistent=False)

    @property
    def experts(self) -> dict[str, int]:
        """Name -> width, in alphabetical order: the order of every expert axis."""
        return dict(sorted(self.config.experts.items()))

    @property
    def frames_expert(self) -> str:
        return self.config.frames

    @property
    def words_dim(self) -> int:
        return self.config.words_dim

    def encode_text(self, texts: Tokens | TextFeatures, *, words: bool = False) -> TextFeatures:
        """The same texts; ``words`` needs word features to be there."""
        if not isinstance(texts, TextFeatures):
            raise UsageError(f"an expert encoder reads TextFeatures, got {type(texts).__name__}")
        if words and texts.words is None:
            raise UsageError(
                "this method needs word features and the folder has sentence features only; "
                "write words_NAME.npy (docs/experts.md)"
            )
        return texts.to(self.device, self.logit_scale.dtype)

    def encode_video(
        self, videos: Clips | VideoFeatures, *, patches: bool = False
    ) -> VideoFeatures:
        """The same videos, with every expert that the encoder was made for."""
        if not isinstance(videos, VideoFeatures) or videos.experts is None:
            raise UsageError("an expert encoder reads VideoFeatures with experts")
        if patches:
            raise UsageError("experts have no patches; train this method on videos")
        missing = sorted(set(self.config.experts) - set(videos.experts))
        if missing:
            raise UsageError(f"the videos have no expert {', '.join(missing)}")
        return videos.to(self.device, self.logit_scale.dtype)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to compile."""


ENCODERS.add(
    "experts",
    EncoderSpec(
        name="experts",
        title="features of several experts",
        config_class=ExpertConfig,
        build=ExpertEncoder,
        reads_features=True,
    ),
)
