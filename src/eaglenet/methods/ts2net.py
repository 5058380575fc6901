"""TS2-Net: tokens shifted between frames, and the patches that matter selected."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, Encoder, TextFeatures, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.layers.masking import masked_softmax
from eaglenet.layers.temporal_transformer import TemporalTransformer, copy_text_tower, default_heads
from eaglenet.layers.token_selection import TokenSelection
from eaglenet.losses.softmax import SoftmaxLoss
from eaglenet.methods.base import METHODS, MethodSpec, shift_last_blocks
from eaglenet.methods.tower_base import TowerMethod, build_on_towers


@dataclass(frozen=True)
class TS2NetConfig:
    """Settings of TS2-Net.

    num_shifted_blocks: how many of the last visual blocks see shifted tokens.
    num_tokens: patches kept of each frame beside its class token.
    num_samples, sigma: the noise of the differentiable top-k in training.
    hard_selection: plain top-k in eval mode. Paper: the released code samples there too, with new
        draws every time; where this is off, eval mode samples with the draws of ``noise_seed``.
    sharpness: factor on the frame similarities before their softmax.
    num_positions: None takes room for CLIP's 77 or for every selected token, whichever is more.
    """

    num_frames: int = 12
    num_shifted_blocks: int = 2
    num_tokens: int = 3
    num_samples: int = 500
    sigma: float = 0.05
    hard_selection: bool = True
    noise_seed: int = 0
    sharpness: float = 4.0
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int | None = None


class TS2Net(TowerMethod):
    r"""Frames weighted by how well they fit the text.

    .. math:: s(t, v) = \sum_m \mathrm{softmax}_m(4\, c / \lVert c \rVert)\, c_m,
        \quad c_m = \cos(g_m, t)

    ``g`` are the class tokens after a temporal transformer over the selected tokens of all frames;
    ``encode_video`` stores them in ``VideoFeatures.tokens``.

    Paper: the mask is repeated per token. The released code repeats the whole mask vector, which
    marks the wrong tokens whenever a video has fewer frames than asked. Only the local term is
    here: the global one has weight 0 in the released code.
    """

    name = "ts2net"
    needs_patches = True
    config: TS2NetConfig

    def __init__(self, encoder: Encoder, config: TS2NetConfig) -> None:
        super().__init__(encoder, config)
        self.tokens_per_frame = config.num_tokens + 1
        self.selection = TokenSelection(
            encoder.dim,
            num_tokens=config.num_tokens,
            num_samples=config.num_samples,
            sigma=config.sigma,
            hard_at_inference=config.hard_selection,
            noise_seed=config.noise_seed,
        )
        self.temporal = TemporalTransformer(
            encoder.dim,
            num_layers=config.num_layers,
            num_heads=config.num_heads or default_heads(encoder),
            num_positions=config.num_positions
            or max(77, config.num_frames * self.tokens_per_frame),
        )
        self.loss = SoftmaxLoss()

    def _encode_video(self, videos: Clips | VideoFeatures) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        return dataclasses.replace(
            features, patches=None, tokens=self._tokens(features), tokens_mask=features.mask
        )

    def _tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        if video.tokens is not None:
            return video.tokens
        if video.patches is None:
            raise ConfigError(
                "ts2net was given video features with neither tokens nor patches; "
                "make them with this method's own encode_video"
            )
        num_videos, num_frames = video.mask.shape
        selected = self.selection(video.patches.flatten(0, 1))
        sequence = selected.unflatten(0, (num_videos, num_frames)).flatten(1, 2)
        mask = video.mask.repeat_interleave(self.tokens_per_frame, dim=1)
        return self.temporal(sequence, mask)[:, :: self.tokens_per_frame]  # type: ignore[no-any-return]

    @property
    def score_tile(self) -> tuple[int, int]:
        return (512, 64)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return frame_weighted_similarity(
            text.sentence, self._tokens(video), video.mask, sharpness=self.config.sharpness
        )


def frame_weighted_similarity(
    sentence: Float[Tensor, "texts dim"],
    frames: Float[Tensor, "videos frames dim"],
    mask: Bool[Tensor, "videos frames"],
    *,
    sharpness: float,
) -> Float[Tensor, "texts videos"]:
    """Sum of the frame cosines under a softmax of themselves; padded frames weigh nothing."""
    cosines = torch.einsum(
        "td,vfd->tvf", F.normalize(sentence, dim=-1), F.normalize(frames, dim=-1)
    )
    cosines = cosines.masked_fill(~mask[None], 0.0)
    weights = masked_softmax(sharpness * F.normalize(cosines, dim=-1), mask)
    return (weights * cosines).sum(dim=-1)


def build(config: TS2NetConfig, encoder: Encoder) -> TS2Net:
    """Switch on the token shift in the encoder's last blocks; start the temporal head from CLIP."""

    def prepare(towers: ClipEncoder) -> None:
        num_patches = towers.vision.config.num_tokens - 1
        if not 1 <= config.num_tokens <= num_patches:
            raise ConfigError(
                f"num_tokens is {config.num_tokens}, but a frame has {num_patches} patches; "
                f"choose 1 to {num_patches}"
            )
        shift_last_blocks(towers, config.num_shifted_blocks)

    method = build_on_towers(TS2Net, config, encoder, prepare)
    copy_text_tower(encoder, method.temporal.stack)
    return method


METHODS.add(
    TS2Net.name,
    MethodSpec(
        config_class=TS2NetConfig,
        build=build,
        paper="TS2-Net (Liu et al., ECCV 2022)",
        checked="reference loop",
    ),
)
