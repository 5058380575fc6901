"""Interface of all methods: encode once, score many times."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.registry import Registry
from eaglenet.core.types import (
    Clips,
    Encoder,
    FrameSpec,
    HasLogitScale,
    Losses,
    RightPairs,
    TextFeatures,
    Tokenizer,
    Tokens,
    VideoFeatures,
    unit_entries,
)
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.hubness import HubnessLayer
from eaglenet.layers.masking import mean_pooling
from eaglenet.losses import SigmoidLoss, SoftmaxLoss
from eaglenet.methods import method_modules
from eaglenet.video.inputs import FrameBatch, clips_of

Frames = np.ndarray[Any, np.dtype[np.uint8]] | Tensor
SomeMethod = TypeVar("SomeMethod", bound="Method")  # beartype refuses Self.
VideoInput = (
    str | Path | Frames | Sequence[str | Path | Frames] | FrameBatch | Clips | VideoFeatures
)
"""A file, frames, several of either, or their decoded or encoded form."""


@dataclass(frozen=True)
class EvaluationHabits:
    """Default evaluation settings of a model; a dataset may override them.

    max_words: tokens per text, including start and end; None: the dataset's default.
    precision: precision of the towers: ``fp32``, ``bf16`` or ``fp16``.
    """

    max_words: int | None = None
    precision: str = "fp32"


class Method(nn.Module, ABC):
    """Model that scores texts with videos.

    Subclasses set ``name``, create their layers and ``loss`` in ``__init__``, and implement
    ``score``. ``encode_text`` depends on texts only and ``encode_video`` on videos only, so that
    both can be cached and indexed. In eval mode, ``score`` is deterministic, and a score depends on
    its pair only.
    """

    name: ClassVar[str]
    needs_words: ClassVar[bool] = False
    reads_words: bool = False
    """Encode words if the encoder or the features have any; else the text counts as one word."""
    needs_patches: ClassVar[bool] = False
    needs_frames: bool = True
    """The method compares or mixes single frames, which encoders of whole clips do not return."""
    is_cross_encoder: bool = False
    """One network reads text and video together, so that nothing can be prepared; search uses the
    method only to rank a shortlist."""
    unit_features: bool = False
    """Scale texts and frames to entries of about 1 first: for methods that add noise of a fixed
    length to features of towers other than CLIP."""
    needs_ids: bool = False
    """``losses`` needs the ids of the videos (``VideoFeatures.ids``)."""

    config: Any
    """A :class:`MethodConfig`, saved beside the weights."""
    loss: Any
    """Module that :meth:`losses` applies to scores; :meth:`build` sets its initial scale."""
    tokenizer: Tokenizer | None = None
    """Converts texts to ``Tokens``; set by :func:`eaglenet.load`, saved with the model."""
    source: str = ""
    """Name or folder that :func:`eaglenet.load` read the model from."""
    habits: EvaluationHabits = EvaluationHabits()
    """Default evaluation settings, saved with the model."""

    def __init__(self, encoder: Encoder, config: Any) -> None:
        super().__init__()
        for is_needed, is_available, what in (
            (self.needs_frames, encoder.abilities.frames, "the features of single frames"),
            (self.needs_patches, encoder.abilities.patches, "patches"),
            (self.needs_words, encoder.abilities.words, "words"),
        ):
            if is_needed and not is_available:
                raise ConfigError(
                    f"{self.name} needs {what}, which {ENCODERS[encoder.family].title} does not "
                    "return; choose a CLIP model or another method"
                )
        self.encoder = encoder
        self.config = config
        # 224 if the encoder reads stored features.
        self.frame_spec = FrameSpec(
            num_frames=config.num_frames, size=encoder.image_size or 224, resize=encoder.resize
        )

    def __repr__(self) -> str:
        """Describe the model in a line; ``model.encoder`` shows the modules of its towers."""
        from eaglenet.encoders.catalogue import CARDS, HUB_IDS

        encoder, frames = self.encoder, self.frame_spec
        weights = f"{sum(value.numel() for value in self.parameters()) / 1e6:.1f} M parameters"
        has_towers = encoder.image_size is not None
        facts = [f"{encoder.family} towers" if has_towers else "stored features", weights]
        facts.append(f"{encoder.dim} dimensions")
        if has_towers:
            facts.append(f"{frames.num_frames} frames of {frames.size} pixels per clip")
        card = CARDS.get(HUB_IDS.get(self.source, self.source))
        if card is not None:
            facts.append(card.languages)
        name = f"{self.source!r}, " if self.source else ""
        return f"<Model {name}method {self.name}: {', '.join(facts)}; on {self.device}>"

    @classmethod
    def build(cls: type[SomeMethod], config: Any, encoder: Encoder) -> SomeMethod:
        """Create the method; the loss starts from the logit scale of the encoder."""
        method = cls(encoder, config)
        adopt_logit_scale(encoder, getattr(method, "loss", None))
        return method

    @final
    def encode_text(self, texts: str | Sequence[str] | Tokens | TextFeatures) -> TextFeatures:
        """Encode texts, one row per text.

        Strings are tokenised, and encoded without gradients on the device of the model.
        """
        if isinstance(texts, Tokens | TextFeatures):
            return self._encode_text(texts)
        text_list = [texts] if isinstance(texts, str) else texts
        if not isinstance(text_list, Iterable):
            raise UsageError(f"expected a text or a list of texts, not {text_list!r:.60}")
        text_list = list(text_list)
        for text in text_list:
            if not isinstance(text, str):
                raise UsageError(f"expected a list of texts; one of them is {text!r:.60}")
        with torch.no_grad():
            return self._encode_text(self.tokenize(text_list).to(self.device))

    @final
    def encode_video(self, videos: VideoInput) -> VideoFeatures:
        """Encode videos, one row per video.

        A video is a file, an array ``[frames, height, width, 3]`` or a tensor
        ``[frames, 3, height, width]`` of uint8; pass a list for several. Frames are sampled by
        ``frame_spec``, and encoded without gradients on the device of the model.
        """
        if isinstance(videos, VideoFeatures):
            return self._encode_video(videos)
        if isinstance(videos, Clips):
            return self._encode_video(self._blank_padding(videos))
        batch = videos if isinstance(videos, FrameBatch) else clips_of(videos, self.frame_spec)
        arrays = (batch.frames, batch.mask, batch.seconds)
        clips = Clips(*(torch.from_numpy(array) for array in arrays))
        with torch.no_grad():
            return self._encode_video(self._blank_padding(clips).to(self.device))

    def _blank_padding(self, clips: Clips) -> Clips:
        """Fill padded frames with the mean colour, 0 once normalised, for ``padding="official"``.

        The authors' code has zeros there; otherwise, padded frames repeat the last real one.
        """
        mean = getattr(getattr(self.encoder, "config", None), "pixel_mean", None)
        is_official = getattr(self.config, "padding", "masked") == "official"
        if not is_official or mean is None or bool(clips.mask.all()):
            return clips
        is_normalised = clips.frames.is_floating_point()
        color = [0.0 if is_normalised else round(255 * channel) for channel in mean]
        blank = torch.tensor(color).to(clips.frames)[:, None, None]
        mask = clips.mask.to(clips.frames.device)[..., None, None, None]
        return dataclasses.replace(clips, frames=torch.where(mask, clips.frames, blank))

    def similarity(
        self, texts: str | Sequence[str] | Tokens | TextFeatures, videos: VideoInput
    ) -> Float[Tensor, "texts videos"]:
        """Score every text with every video, in eval mode and without gradients.

        Arguments are those of :meth:`encode_text` and :meth:`encode_video`, or their results.
        Models for stored features take features only.
        """
        has_towers = self.encoder.image_size is not None
        with evaluating(self), torch.no_grad():
            if not (has_towers and isinstance(texts, TextFeatures)):
                texts = self.encode_text(texts)
            if not (has_towers and isinstance(videos, VideoFeatures)):
                videos = self.encode_video(videos)
            rows, columns = self.score_tile
            return torch.cat(
                [
                    torch.cat(
                        [
                            self.score(texts[start : start + rows], videos[first : first + columns])
                            for first in range(0, len(videos), columns)
                        ],
                        dim=1,
                    )
                    for start in range(0, len(texts), rows)
                ]
            )

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        """Encode tokens or features of texts; overridden by methods."""
        has_words = self.encoder.abilities.words
        if isinstance(texts, TextFeatures):
            has_words = texts.words is not None
        with_words = self.needs_words or (self.reads_words and has_words)
        features = self.encoder.encode_text(texts, words=with_words)
        if not self.unit_features:
            return features
        return dataclasses.replace(features, sentence=unit_entries(features.sentence))

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        """Encode clips or features of videos; overridden by methods."""
        features = self.encoder.encode_video(videos, patches=self.needs_patches)
        if not self.unit_features:
            return features
        return dataclasses.replace(features, frames=unit_entries(features.frames))

    def tokenize(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Tokenize texts with the tokenizer of the model."""
        if self.tokenizer is None:
            raise UsageError(
                "the method has no tokenizer for texts; load it with eaglenet.load, or set "
                "method.tokenizer"
            )
        if max_length is not None:
            return self.tokenizer(texts, max_length=max_length)
        tokens = self.tokenizer(texts)
        # The default of CLIP's tokenizer is that of the datasets. Layers that read words may need
        # it; a tower alone reads longer texts.
        context = self.encoder.context_length or 0
        limit = 0 if self.needs_words or self.reads_words else context
        limit = min(self.habits.max_words or limit, context)
        if limit > tokens.ids.shape[1] and bool(tokens.mask[:, -1].any()):
            return self.tokenizer(texts, max_length=limit)
        return tokens

    @abstractmethod
    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        """Return the score of every text with every video; higher is better."""

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        """Return the terms of the training loss; ``positives`` marks the matching pairs."""
        return Losses({"contrastive": self.loss(self.score(text, video), positives)})

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        """Return one unit vector per text or video for the shortlist: text, or mean frame."""
        if isinstance(features, TextFeatures):
            return F.normalize(features.sentence, dim=-1)
        return mean_pooling(features.frames, features.mask)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        """Return the score of each frame with each text, for moments; -inf for padding.

        With an encoder of whole clips, every vector has the score of its clip.
        """
        if not self.encoder.abilities.frames:
            clip_scores = self.score(text, video)[..., None].expand(-1, -1, video.mask.shape[1])
            return clip_scores.masked_fill(~video.mask[None], float("-inf"))
        sentence = F.normalize(text.sentence, dim=-1)
        frames = F.normalize(video.frames, dim=-1)
        scores = torch.einsum("td,vfd->tvf", sentence, frames)
        return scores.masked_fill(~video.mask[None], float("-inf"))

    def feature_seconds(
        self, features: VideoFeatures, clips: Clips
    ) -> Float[Tensor, "videos features"]:
        """Return the time of each vector of ``features.frames``; the middle of a whole clip."""
        if self.encoder.abilities.frames:
            return clips.seconds
        weights = clips.mask.to(clips.seconds.dtype)
        middle = (clips.seconds * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        return middle[:, None].expand(-1, features.mask.shape[1])

    @property
    def hubness_layer(self) -> tuple[HubnessLayer, Tensor] | None:
        """Hubness bank and scale that :meth:`score` uses; None if it does not correct hubness."""
        return None

    @property
    def score_tile(self) -> tuple[int, int]:
        """Number of texts and videos per call of :meth:`score`; small if pairs need much memory.

        The default suits one vector per pair: it fits the cache of a CPU, and keeps a GPU busy.
        """
        return (256, 64) if self.device.type == "cuda" else (16, 64)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the expensive modules of a training step in place: by default the encoder."""
        self.encoder.compile(*args, **kwargs)

    @property
    def device(self) -> torch.device:
        return self.encoder.device


@contextmanager
def evaluating(method: nn.Module) -> Iterator[None]:
    """Switch all modules to eval mode, and restore their modes afterwards."""
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def adopt_logit_scale(encoder: Encoder, loss: nn.Module | None) -> None:
    """Initialise a loss with the logit scale of the encoder, which is then frozen as unused.

    A softmax loss takes the scale of any encoder. A sigmoid loss takes scale and bias together,
    from an encoder that was trained with both.
    """
    scaled_encoder = cast(HasLogitScale, encoder)
    scale, bias = scaled_encoder.logit_scale, scaled_encoder.logit_bias
    for value in (scale, bias):
        if value is not None:
            value.requires_grad_(False)
    if isinstance(loss, SoftmaxLoss):
        loss.logit_scale.data.copy_(scale.detach())
    elif isinstance(loss, SigmoidLoss) and bias is not None:
        loss.temperature.data.copy_(scale.detach())
        loss.bias.data.copy_(bias.detach())


@dataclass(frozen=True)
class MethodSpec:
    """Entry of the registry: configuration, builder and origin of a method."""

    config_class: type[Any]
    build: Callable[[Any, Encoder], Method]
    paper: str
    checked_by: str
    """``golden`` (numbers of the authors' code), ``reference loop`` (a loop written from the
    equations), or ``approximate from the abstract``."""
    reads_experts: bool = False
    """True if it reads folders of several experts; an encoder counts as one expert."""

    @property
    def is_approximate(self) -> bool:
        """True for a method implemented from an abstract only."""
        return self.checked_by.startswith("approximate")


METHODS: Registry[MethodSpec] = Registry("method", is_open=True, modules=method_modules())
"""Methods by name; a method has the name of its file, which is imported on first use."""


def method_title(name: str) -> str:
    """Return the name of a method, marked if it is approximate."""
    is_approximate = name in METHODS and METHODS[name].is_approximate
    return f"{name} (approximate)" if is_approximate else name


MethodClass = TypeVar("MethodClass", bound=type[Method])


def register(
    config_class: type[Any], *, paper: str, checked_by: str, reads_experts: bool = False
) -> Callable[[MethodClass], MethodClass]:
    """Add the decorated class to ``METHODS`` under its ``name``; see :class:`MethodSpec`."""

    def add(method_class: MethodClass) -> MethodClass:
        spec = MethodSpec(config_class, method_class.build, paper, checked_by, reads_experts)
        METHODS.add(method_class.name, spec)
        return method_class

    return add
