"""UCoFiA: video with sentence, frames with sentence, patches with words, one score."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, Encoder, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.layers.interactive_aggregation import InteractiveAggregation
from eaglenet.layers.mean_pooling import mean_pooling
from eaglenet.layers.temporal_transformer import TemporalTransformer, copy_text_tower, default_heads
from eaglenet.layers.token_selection import TokenSelection
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec, shift_last_blocks
from eaglenet.methods.tower_base import TowerMethod, build_on_towers


@dataclass(frozen=True)
class UCoFiAConfig:
    """Settings of UCoFiA.

    num_words: words of a text that count, start and end included; later ones are cut off.
    num_tokens: patches kept of a frame.
    temperature: of the softmaxes that aggregate similarities.
    num_shifted_blocks, num_samples, sigma, hard_selection, noise_seed: as TS2-Net's.
    """

    num_frames: int = 12
    num_words: int = 32
    num_tokens: int = 3
    num_shifted_blocks: int = 2
    num_samples: int = 500
    sigma: float = 0.05
    hard_selection: bool = True
    noise_seed: int = 0
    temperature: float = 0.01
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77


class UCoFiA(TowerMethod):
    r"""Three similarities of different grain, each aggregated by its own learned map.

    .. math:: s = \tfrac13 \Big[ \hat t G_1 \cdot \hat v G_2 + \mathrm{ISA}_m(\hat t \cdot \hat f_m)
        + \tfrac1\lambda\, \mathrm{patchword} \Big]

    The patch-word term aggregates :math:`C = (\hat w W_1)(x W_2)^T` over words then patches and
    over patches then words, and takes the mean of both; patches :math:`x` are not normalised, so it
    stands beside the others times :math:`\lambda = \exp(\mathrm{logit\ scale})`.

    Paper: padded words and frames are left out. Its test-time Sinkhorn normalisation, which needs
    the training captions, is no part of the score: ``eaglenet metrics --sinkhorn``.
    ``VideoFeatures.video`` is the temporal vector, ``tokens`` the kept patches.
    """

    name = "ucofia"
    needs_words = True
    needs_patches = True
    config: UCoFiAConfig

    def __init__(self, encoder: ClipEncoder, config: UCoFiAConfig) -> None:
        super().__init__(encoder, config)
        dim, kept = encoder.dim, config.num_frames * (config.num_tokens + 1)
        self.selection = TokenSelection(
            dim,
            num_tokens=config.num_tokens,
            num_samples=config.num_samples,
            sigma=config.sigma,
            hard_at_inference=config.hard_selection,
            noise_seed=config.noise_seed,
        )
        self.temporal = TemporalTransformer(
            dim,
            num_layers=config.num_layers,
            num_heads=config.num_heads or default_heads(encoder),
            num_positions=max(config.num_positions, config.num_frames),
        )
        self.sentence_map, self.video_map, self.word_map, self.patch_map = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        for linear in (self.sentence_map, self.video_map, self.word_map, self.patch_map):
            nn.init.eye_(linear.weight)
        self.over_frames, self.over_words, self.over_patches, self.last_patches, self.last_words = (
            InteractiveAggregation(size, temperature=config.temperature)
            for size in (config.num_frames, config.num_words, kept, kept, config.num_words)
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = super()._encode_video(videos)
        if features.patches is None:
            raise ConfigError("ucofia needs patches; make features with its own encode_video")
        num_videos, num_frames = features.mask.shape
        selected = self.selection(features.patches.flatten(0, 1))
        temporal = self.temporal(features.frames, features.mask)
        return dataclasses.replace(
            features,
            patches=None,
            video=mean_pooling(temporal, features.mask),
            tokens=selected.unflatten(0, (num_videos, num_frames)).flatten(1, 2),
            tokens_mask=features.mask.repeat_interleave(self.config.num_tokens + 1, dim=1),
        )

    @property
    def score_tile(self) -> tuple[int, int]:
        # A matrix of words x patches a pair: 6 kB.
        return (128, 64) if self.device.type == "cuda" else super().score_tile

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        by_video, by_frames, by_patches = self.similarities(text, video)
        return (by_video + by_frames + by_patches / self.loss.scale()) / 3

    def similarities(
        self, text: TextFeatures, video: VideoFeatures
    ) -> tuple[
        Float[Tensor, "texts videos"], Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]
    ]:
        """Video-sentence, frame-sentence and patch-word similarity; the last in logits."""
        if video.video is None or video.tokens is None or text.words is None:
            raise ConfigError("ucofia was given features without words, video or patches")
        sentence = F.normalize(text.sentence, dim=-1)
        vectors = F.normalize(video.video, dim=-1)
        by_video = self.sentence_map(sentence) @ self.video_map(vectors).T
        cosines = torch.einsum("td,vfd->tvf", sentence, F.normalize(video.frames, dim=-1))
        by_frames = self.over_frames(cosines, video.mask)
        return by_video, by_frames, self._patch_words(text, video)

    def _patch_words(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos"]:
        most = self.config.num_words
        words = self.word_map(F.normalize(text.words[:, :most], dim=-1))  # type: ignore[index]
        matrix = torch.einsum("twd,vpd->tvwp", words, self.patch_map(video.tokens))
        given: Tensor = text.words_mask[:, :most]  # type: ignore[index]
        words_mask, patch_mask = given[:, None, None, :], video.tokens_mask[None, :, None, :]  # type: ignore[index]
        of_patches = self.over_words(matrix.transpose(2, 3), words_mask)  # [texts, videos, patches]
        of_words = self.over_patches(matrix, patch_mask)
        first = self.last_patches(of_patches, patch_mask[:, :, 0])
        second: Tensor = self.last_words(of_words, words_mask[:, :, 0])
        return (first + second) / 2  # type: ignore[no-any-return]

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        if isinstance(features, VideoFeatures) and features.video is not None:
            return F.normalize(features.video, dim=-1)
        return super().coarse_vectors(features)


def build(config: UCoFiAConfig, encoder: Encoder) -> UCoFiA:
    """Token shift in the encoder's last blocks; the temporal head starts from CLIP."""
    method = build_on_towers(
        UCoFiA, config, encoder, lambda towers: shift_last_blocks(towers, config.num_shifted_blocks)
    )
    copy_text_tower(encoder, method.temporal.stack)
    return method


METHODS.add(
    UCoFiA.name,
    MethodSpec(
        config_class=UCoFiAConfig,
        build=build,
        paper="UCoFiA (Wang et al., ICCV 2023)",
        checked="reference loop",
    ),
)
