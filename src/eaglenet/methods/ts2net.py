"""TS2-Net: tokens shifted between frames, and a selection of patches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder, TextFeatures, VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.layers.masking import Padding, masked_softmax
from eaglenet.layers.token_selection import SelectionGradient, TokenSelection
from eaglenet.layers.transformer import TemporalTransformer, stack_on
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import PatchEncoder, TowerMethod, shift_last_blocks


@dataclass(frozen=True)
class TS2NetConfig(MethodConfig):
    """Settings of TS2-Net.

    num_shifted_blocks: number of the last visual blocks with shifted tokens.
    num_tokens: patches selected per frame, besides its class token.
    num_samples, sigma: noise of the differentiable top-k in training.
    selection_gradient: backward pass of the top-k, ``diagonal`` (official code) or ``jacobian``
        (the whole Monte-Carlo estimate).
    hard_selection: plain top-k in eval mode. If off, eval mode samples with the noise of
        ``noise_seed``. Paper: the official code samples with new noise every time.
    sharpness: factor of the frame similarities before their softmax.
    num_positions: None: CLIP's 77 or the number of selected tokens, whichever is more.
    padding: ``masked`` leaves the tokens of padded frames out. ``official`` repeats the whole
        frame mask for the tokens, as the authors' code does, which masks the wrong tokens of a
        video with fewer frames.
    """

    num_shifted_blocks: int = 2
    num_tokens: int = 3
    num_samples: int = 500
    sigma: float = 0.05
    selection_gradient: SelectionGradient = "diagonal"
    hard_selection: bool = True
    noise_seed: int = 0
    sharpness: float = 4.0
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int | None = None
    padding: Padding = "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("num_samples")


@register(TS2NetConfig, paper="TS2-Net (Liu et al., ECCV 2022)", checked_by="golden")
class TS2Net(TowerMethod):
    r"""Mean of frame similarities, weighted by a softmax of themselves.

    .. math:: s(t, v) = \sum_m \mathrm{softmax}_m(4\, c / \lVert c \rVert)\, c_m,
        \quad c_m = \cos(g_m, t)

    ``g`` are the class tokens after a temporal transformer over the selected tokens of all frames;
    ``encode_video`` stores them in ``VideoFeatures.tokens``.

    Paper: only the local term is implemented; the global one has weight 0 in the official code.
    """

    name = "ts2net"
    needs_clip = False
    needs_patches = True
    config: TS2NetConfig
    score_tile = (512, 64)

    def __init__(self, encoder: Encoder, config: TS2NetConfig) -> None:
        super().__init__(encoder, config)
        self.tokens_per_frame = config.num_tokens + 1
        self.selection = TokenSelection.of(encoder.dim, config)
        num_selected = config.num_frames * self.tokens_per_frame
        self.temporal = TemporalTransformer(
            stack_on(encoder, config, num_positions=config.num_positions or max(77, num_selected))
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: TS2NetConfig, encoder: PatchEncoder) -> None:
        num_patches = encoder.vision.config.num_tokens - 1
        if not 1 <= config.num_tokens <= num_patches:
            raise ConfigError(
                f"num_tokens is {config.num_tokens}, but a frame has {num_patches} patches; "
                f"choose 1 to {num_patches}"
            )
        shift_last_blocks(encoder, config.num_shifted_blocks)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        features = dataclasses.replace(super()._encode_video(videos), tokens=None)
        return dataclasses.replace(
            features, patches=None, tokens=self._tokens(features), tokens_mask=features.mask
        )

    def _tokens(self, video: VideoFeatures) -> Float[Tensor, "videos frames dim"]:
        if video.tokens is not None:
            return video.tokens
        if video.patches is None:
            raise ConfigError(
                "ts2net needs tokens or patches of videos; encode the videos with its encode_video"
            )
        tokens = self.selection(video.patches.flatten(0, 1))
        return self.temporal_frames(tokens.unflatten(0, video.mask.shape), video.mask)

    def temporal_frames(
        self,
        selected_tokens: Float[Tensor, "videos frames selected dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos frames dim"]:
        """Return the class tokens after the temporal transformer over all selected tokens."""
        frames = self.temporal(selected_tokens.flatten(1, 2), self._tokens_mask(mask))
        return frames[:, :: self.tokens_per_frame]  # type: ignore[no-any-return]

    def _tokens_mask(self, mask: Bool[Tensor, "videos frames"]) -> Bool[Tensor, "videos tokens"]:
        if self.config.padding == "official":
            return mask.repeat(1, self.tokens_per_frame)
        return mask.repeat_interleave(self.tokens_per_frame, dim=1)

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return frame_weighted_similarity(
            text.sentence,
            self._tokens(video),
            self._tokens_mask(video.mask)[:, :: self.tokens_per_frame],
            sharpness=self.config.sharpness,
        )


def frame_weighted_similarity(
    sentence: Float[Tensor, "texts dim"],
    frames: Float[Tensor, "videos frames dim"],
    mask: Bool[Tensor, "videos frames"],
    *,
    sharpness: float,
) -> Float[Tensor, "texts videos"]:
    """Return the sum of frame cosines, weighted by their softmax; padding has weight 0."""
    cosines = torch.einsum(
        "td,vfd->tvf", F.normalize(sentence, dim=-1), F.normalize(frames, dim=-1)
    )
    cosines = cosines.masked_fill(~mask[None], 0.0)
    weights = masked_softmax(sharpness * F.normalize(cosines, dim=-1), mask)
    return (weights * cosines).sum(dim=-1)
