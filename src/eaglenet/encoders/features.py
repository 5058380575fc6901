"""Encoders of stored features: small adapters to the joint width.

Methods can train on stored features and score them, without a tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Abilities, TextFeatures, VideoFeatures, unit_entries
from eaglenet.encoders import ENCODERS, EncoderSpec
from eaglenet.encoders.base import BaseEncoder, TextSource, VideoSource
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE

InputScaling = Literal["none", "unit", "layer_norm"]


@dataclass(frozen=True)
class FeatureConfig:
    """Widths of the stored features, and the adapters that map them to ``dim``.

    scaling: scaling of features before the adapter: none, unit length times sqrt(width) (so that
        entries are about 1 for every extractor), or a learned LayerNorm.
    identity: do not change features whose width is ``dim`` (CLIP features).
    dropout: dropout rate of the scaled input.
    hidden: width of a hidden GELU layer; 0 keeps the adapters linear.
    hidden_dropout: dropout rate of that layer.
    frame_dropout: fraction of the frames of a video that training masks; at least one remains.
    """

    text_dim: int
    frame_dim: int
    dim: int = 512
    scaling: InputScaling = "none"
    identity: bool = False
    dropout: float = 0.0
    hidden: int = 0
    hidden_dropout: float = 0.0
    frame_dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.text_dim, self.frame_dim, self.dim) < 1:
            raise ConfigError(
                f"feature widths must be positive, got text_dim {self.text_dim}, "
                f"frame_dim {self.frame_dim}, dim {self.dim}"
            )
        if self.scaling not in get_args(InputScaling):
            names = ", ".join(get_args(InputScaling))
            raise ConfigError(f"unknown scaling {self.scaling!r} (known: {names})")
        for name in ("dropout", "hidden_dropout", "frame_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is not in [0, 1)")
        if self.hidden < 0:
            raise ConfigError(f"hidden {self.hidden} is negative; 0 keeps the adapters linear")


class FeatureAdapter(nn.Module):
    """W scale(x) + b, or scale(x), or W_2 GELU(W_1 scale(x) + b_1) + b_2."""

    def __init__(self, in_dim: int, config: FeatureConfig) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.scaling = config.scaling
        self.norm = nn.LayerNorm(in_dim) if config.scaling == "layer_norm" else None
        self.dropout = nn.Dropout(config.dropout)
        self.raised = nn.Linear(in_dim, config.hidden) if config.hidden else None
        self.hidden_dropout = nn.Dropout(config.hidden_dropout)
        is_identity = config.identity and in_dim == config.dim and not config.hidden
        self.linear = None if is_identity else nn.Linear(config.hidden or in_dim, config.dim)

    def forward(self, features: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        if features.shape[-1] != self.in_dim:
            raise UsageError(
                f"features are {features.shape[-1]} wide, this encoder takes {self.in_dim}; "
                "use the features it was trained on or build it with their width"
            )
        if self.norm is not None:
            features = self.norm(features)
        elif self.scaling == "unit":
            features = unit_entries(features)
        features = self.dropout(features)
        if self.raised is not None:
            features = self.hidden_dropout(F.gelu(self.raised(features)))
        return features if self.linear is None else self.linear(features)

    def initialise(self, generator: torch.Generator) -> None:
        """Initialise to the identity if input and output widths are equal, as for CLIP features."""
        if self.linear is None:
            return
        if self.raised is not None:
            for layer in (self.raised, self.linear):
                bound = layer.in_features**-0.5
                nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
            return
        weight = self.linear.weight
        if weight.shape[0] == weight.shape[1]:
            nn.init.eye_(weight)
        else:
            nn.init.normal_(weight, std=self.in_dim**-0.5, generator=generator)
        nn.init.zeros_(self.linear.bias)


class FeatureEncoder(BaseEncoder):
    """Adapts stored features of texts and videos, including those of tokens and patches."""

    family = "features"
    abilities = Abilities(words=True, patches=True)
    config: FeatureConfig

    def __init__(self, config: FeatureConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.text = FeatureAdapter(config.text_dim, config)
        self.frames = FeatureAdapter(config.frame_dim, config)
        self.logit_scale = nn.Parameter(torch.tensor(CLIP_LOGIT_SCALE))
        if not self.logit_scale.is_meta:
            generator = torch.Generator().manual_seed(seed)
            self.text.initialise(generator)
            self.frames.initialise(generator)

    def encode_text(self, texts: TextSource, *, words: bool = False) -> TextFeatures:
        """Return adapted texts; ``words`` requires stored word features."""
        if not isinstance(texts, TextFeatures):
            raise UsageError(f"a feature encoder reads TextFeatures, got {type(texts).__name__}")
        if words and texts.words is None:
            raise UsageError(
                "this method needs word features and these texts have sentence features only; "
                "use another method, or encode the texts with words=True"
            )
        texts = texts.to(self.device, self.dtype)
        return TextFeatures(
            sentence=self.text(texts.sentence),
            words=_adapt(self.text, texts.words),
            words_mask=texts.words_mask,
        )

    def encode_video(self, videos: VideoSource, *, patches: bool = False) -> VideoFeatures:
        """Return adapted frames, with zeros for padding; ``patches`` requires patch features."""
        if not isinstance(videos, VideoFeatures):
            raise UsageError(f"a feature encoder reads VideoFeatures, got {type(videos).__name__}")
        if patches and videos.patches is None:
            raise UsageError(
                "this method needs patch features and these videos have frame features only; "
                "use another method, or encode the videos with patches=True"
            )
        videos = videos.to(self.device, self.dtype)
        return VideoFeatures(
            frames=self._adapt_frames(videos.frames, videos.mask),
            mask=self._drop_frames(videos.mask),
            patches=_adapt(self.frames, videos.patches),
            video=_adapt(self.frames, videos.video),
            tokens=_adapt(self.frames, videos.tokens),
            tokens_mask=videos.tokens_mask,
        )

    def _adapt_frames(
        self, frames: Float[Tensor, "videos frames width"], mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        if self.frames.linear is None:
            return self.frames(frames)  # type: ignore[no-any-return]
        if mask.is_cuda:
            # Selecting the real frames would wait for the device, which takes longer.
            all_vectors: Tensor = self.frames(frames)
            return all_vectors.masked_fill(~mask[..., None], 0.0)
        vectors: Tensor = self.frames(frames[mask])
        return vectors.new_zeros(*mask.shape, self.dim).masked_scatter(mask[..., None], vectors)

    def _drop_frames(self, mask: Bool[Tensor, "videos frames"]) -> Bool[Tensor, "videos frames"]:
        """Mask some frames in training, so that methods do not depend on single frames."""
        if not self.training or self.config.frame_dropout == 0:
            return mask
        subset = mask & (torch.rand(mask.shape, device=mask.device) >= self.config.frame_dropout)
        return torch.where(subset.any(dim=1, keepdim=True), subset, mask)

    @property
    def dtype(self) -> torch.dtype:
        return self.logit_scale.dtype


def _adapt(adapter: FeatureAdapter, features: Tensor | None) -> Tensor | None:
    return None if features is None else adapter(features)


ENCODERS.add(
    "features",
    EncoderSpec(
        title="frozen features",
        config_class=FeatureConfig,
        build=FeatureEncoder,
        reads_features=True,
    ),
)


# Features of several pretrained models, which methods combine.


@dataclass(frozen=True)
class ExpertConfig:
    """Names and widths of the features.

    experts: width of each expert by name.
    frames: the expert with one token per frame, which every video has.
    text_dim, words_dim: widths of text and word features.
    words: name of the word features to read; empty for the first.
    dim: joint width of methods.
    """

    experts: Mapping[str, int]
    frames: str
    text_dim: int
    words_dim: int
    words: str = ""
    dim: int = 512

    def __post_init__(self) -> None:
        if self.frames not in self.experts:
            names = ", ".join(self.experts) or "none"
            raise ConfigError(f"frames is {self.frames!r}, which is not an expert (known: {names})")
        widths = {**self.experts, "text_dim": self.text_dim, "words_dim": self.words_dim}
        wrong = [name for name, width in widths.items() if width < 1]
        if wrong:
            raise ConfigError(f"widths must be 1 or more; these are not: {', '.join(wrong)}")

    @property
    def frame_dim(self) -> int:
        return self.experts[self.frames]


class ExpertEncoder(BaseEncoder):
    """Passes on stored features of experts and texts, on its device and in its type.

    It has no weights; the method has all trainable ones.
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
        """Width of each expert by name, in alphabetical order, the order of every expert axis."""
        return dict(sorted(self.config.experts.items()))

    @property
    def frames_expert(self) -> str:
        return self.config.frames

    @property
    def words_dim(self) -> int:
        return self.config.words_dim

    def encode_text(self, texts: TextSource, *, words: bool = False) -> TextFeatures:
        """Return the texts; ``words`` requires stored word features."""
        if not isinstance(texts, TextFeatures):
            raise UsageError(f"an expert encoder reads TextFeatures, got {type(texts).__name__}")
        if words and texts.words is None:
            raise UsageError(
                "this method needs word features and the folder has sentence features only; "
                "write words_NAME.npy (docs/how-to/experts.md)"
            )
        return texts.to(self.device, self.logit_scale.dtype)

    def encode_video(self, videos: VideoSource, *, patches: bool = False) -> VideoFeatures:
        """Return the videos, which must have all experts of the encoder."""
        if not isinstance(videos, VideoFeatures) or videos.experts is None:
            raise UsageError("an expert encoder reads VideoFeatures with experts")
        if patches:
            raise UsageError("experts have no patches; train this method on videos")
        missing = sorted(set(self.config.experts) - set(videos.experts))
        if missing:
            raise UsageError(f"the videos have no expert {', '.join(missing)}")
        return videos.to(self.device, self.logit_scale.dtype)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there are no weights to compile."""


ENCODERS.add(
    "experts",
    EncoderSpec(
        title="features of several experts",
        config_class=ExpertConfig,
        build=ExpertEncoder,
        reads_features=True,
    ),
)
