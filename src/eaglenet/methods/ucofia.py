"""UCoFiA: similarities of video and text, frames and text, patches and words in one score."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.masking import Padding, effective_mask, masked_softmax, mean_pooling
from eaglenet.layers.token_selection import SelectionContext, SelectionGradient, TokenSelection
from eaglenet.layers.transformer import TemporalTransformer, stack_on
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import PatchEncoder, TowerMethod, shift_last_blocks


class InteractiveAggregation(nn.Module):
    r"""Sum of similarities, weighted by a learned map of their own softmax.

    .. math:: \mathrm{ISA}(c) = \sum_i c_i\, \mathrm{softmax}_i\!\big((\mathrm{softmax}(c / \tau)
        A) / \tau\big), \quad A \in R^{n \times n}\ \text{initially the identity}

    Padded entries have weight 0. Paper: the official code has no masks.
    """

    def __init__(self, size: int, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.eye(size))
        self.temperature = temperature

    def forward(
        self, similarities: Float[Tensor, "*any entries"], mask: Bool[Tensor, "..."]
    ) -> Float[Tensor, "*any"]:
        count, limit = similarities.shape[-1], self.mixing.shape[0]
        if count > limit:
            raise ConfigError(
                f"{count} entries to aggregate, but the model was built for {limit}; increase "
                "num_frames or num_words"
            )
        similarities = similarities.masked_fill(~mask, 0.0)
        softmax = masked_softmax(similarities / self.temperature, mask)
        logits = softmax @ self.mixing[:count, :count].to(softmax.dtype)
        weights = masked_softmax(logits / self.temperature, mask)
        return (similarities * weights).sum(dim=-1)


@dataclass(frozen=True)
class UCoFiAConfig(MethodConfig):
    """Settings of UCoFiA.

    num_words: maximum tokens of a text, start and end included; later ones are cut off.
    num_tokens: patches selected per frame.
    selection_context: context of the score of a patch: the class token of its ``frame``, as in the
        authors' training code, or of all frames of the ``video``, as in their evaluation code.
    temperature: temperature of the softmaxes that aggregate similarities.
    num_shifted_blocks, num_samples, sigma, selection_gradient, hard_selection, noise_seed: as in
        TS2-Net.
    padding: ``official`` counts padded words and frames in the frame-sentence and patch-word
        similarities, as the authors' code does.
    """

    num_words: int = 32
    num_tokens: int = 3
    num_shifted_blocks: int = 2
    num_samples: int = 500
    sigma: float = 0.05
    selection_gradient: SelectionGradient = "diagonal"
    selection_context: SelectionContext = "frame"
    hard_selection: bool = True
    noise_seed: int = 0
    temperature: float = 0.01
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_samples")


@register(UCoFiAConfig, paper="UCoFiA (Wang et al., ICCV 2023)", checked_by="golden")
class UCoFiA(TowerMethod):
    r"""Three similarities of different grain, each aggregated by its own learned map.

    .. math:: s = \tfrac13 \Big[ \hat t G_1 \cdot \hat v G_2 + \mathrm{ISA}_m(\hat t \cdot \hat f_m)
        + \tfrac1\lambda\, \mathrm{patchword} \Big]

    The patch-word term aggregates :math:`C = (\hat w W_1)(x W_2)^T` over words then patches and
    over patches then words, and takes the mean of both. Patches :math:`x` are not normalised; this
    term has the scale of logits, so it is divided by :math:`\lambda = \exp(\mathrm{logit\ scale})`.

    Paper: padded words and frames are left out by default. The authors' evaluation code selects
    patches differently from their training code (``selection_context="video"``). Its test-time
    Sinkhorn normalisation, which needs the training captions, is not part of the score
    (``evaluation.postprocessing.sinkhorn_levels``). ``VideoFeatures.video`` is the temporal vector,
    ``tokens`` the selected patches.
    """

    name = "ucofia"
    needs_words = True
    needs_clip = False
    needs_patches = True
    config: UCoFiAConfig

    def __init__(self, encoder: Encoder, config: UCoFiAConfig) -> None:
        super().__init__(encoder, config)
        dim, num_selected = encoder.dim, config.num_frames * (config.num_tokens + 1)
        self.selection = TokenSelection.of(dim, config, config.selection_context)
        self.temporal = TemporalTransformer(
            stack_on(encoder, config, num_positions=max(config.num_positions, config.num_frames))
        )
        self.sentence_map, self.video_map, self.word_map, self.patch_map = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        for linear in (self.sentence_map, self.video_map, self.word_map, self.patch_map):
            nn.init.eye_(linear.weight)
        self.over_frames, self.over_words, self.over_patches, self.last_patches, self.last_words = (
            InteractiveAggregation(size, temperature=config.temperature)
            for size in (
                config.num_frames,
                config.num_words,
                num_selected,
                num_selected,
                config.num_words,
            )
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: UCoFiAConfig, encoder: PatchEncoder) -> None:
        num_patches = encoder.vision.config.num_tokens - 1
        if config.num_tokens > num_patches:
            raise ConfigError(
                f"num_tokens is {config.num_tokens}, but a frame has {num_patches} patches; "
                "choose at most that"
            )
        shift_last_blocks(encoder, config.num_shifted_blocks)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = super()._encode_video(videos)
        if features.patches is None:
            raise ConfigError("ucofia needs patches; encode the videos with its encode_video")
        mask = effective_mask(features.mask, self.config.padding)
        tokens = self.selection(features.patches.flatten(0, 1), mask=mask)
        return self.with_tokens(features, tokens.unflatten(0, features.mask.shape))

    def with_tokens(
        self, video: VideoFeatures, tokens: Float[Tensor, "videos frames selected dim"]
    ) -> VideoFeatures:
        """Return features with the temporal vector of the frames and the selected tokens."""
        return dataclasses.replace(
            video,
            patches=None,
            video=mean_pooling(self.temporal(video.frames, video.mask), video.mask),
            tokens=tokens.flatten(1, 2),
            tokens_mask=video.mask.repeat_interleave(tokens.shape[2], dim=1),
        )

    @property
    def score_tile(self) -> tuple[int, int]:
        # A matrix of words x patches per pair: 6 kB.
        return (128, 64) if self.device.type == "cuda" else super().score_tile

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        by_video, by_frames, by_patches = self.similarities(text, video)
        return (by_video + by_frames + by_patches / self.loss.scale()) / 3

    def levels(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts videos"], Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]
    ]:
        """Return the three similarities as logits: their mean is the score times the scale."""
        by_video, by_frames, by_patches = self.similarities(text, video)
        return self.loss.scale() * by_video, self.loss.scale() * by_frames, by_patches

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts videos"], Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]
    ]:
        """Return the similarities of video, frames and patches; the last as logits."""
        if video.video is None or video.tokens is None or text.words is None:
            raise ConfigError(
                "ucofia needs words, videos and patches; encode texts and videos with it"
            )
        sentence = F.normalize(text.sentence, dim=-1)
        vectors = F.normalize(video.video, dim=-1)
        by_video = self.sentence_map(sentence) @ self.video_map(vectors).T
        cosines = torch.einsum("td,vfd->tvf", sentence, F.normalize(video.frames, dim=-1))
        by_frames = self.over_frames(cosines, effective_mask(video.mask, self.config.padding))
        return by_video, by_frames, self._patch_words(text, video)

    def _patch_words(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos"]:
        limit = self.config.num_words
        words = self.word_map(F.normalize(text.words[:, :limit], dim=-1))  # type: ignore[index]
        matrix = torch.einsum("twd,vpd->tvwp", words, self.patch_map(video.tokens))
        words_mask = effective_mask(text.words_mask[:, :limit], self.config.padding)  # type: ignore[index]
        patch_mask = effective_mask(video.tokens_mask, self.config.padding)  # type: ignore[arg-type]
        words_mask, patch_mask = words_mask[:, None, None, :], patch_mask[None, :, None, :]
        of_patches = self.over_words(matrix.transpose(2, 3), words_mask)  # [texts, videos, patches]
        of_words = self.over_patches(matrix, patch_mask)
        first = self.last_patches(of_patches, patch_mask[:, :, 0])
        second: Tensor = self.last_words(of_words, words_mask[:, :, 0])
        return (first + second) / 2  # type: ignore[no-any-return]

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, VideoFeatures) and features.video is not None:
            return F.normalize(features.video, dim=-1)
        return super().coarse_vectors(features)
