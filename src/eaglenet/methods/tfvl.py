"""TFVL, approximate: a frozen CLIP whose towers read frames as an image and as a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, too_many_frames
from eaglenet.core.types import VideoFeatures
from eaglenet.encoders.base import VideoSource
from eaglenet.encoders.blocks import run_block
from eaglenet.encoders.clip import ClipEncoder, TextTower, take_positions
from eaglenet.encoders.low_rank import freeze_tower
from eaglenet.encoders.video_tower import require_clips
from eaglenet.encoders.vision import VisionTower, add_frame_positions
from eaglenet.layers.masking import mean_pooling, real_first
from eaglenet.losses import SoftmaxLoss
from eaglenet.methods.base import register
from eaglenet.methods.configs import MethodConfig
from eaglenet.methods.tower_base import CosineMethod, TowerMethod


class FramesAsImage(nn.Module):
    """Vision tower whose last blocks read all frames and prompts as one image (ImageTemp)."""

    def __init__(self, tower: VisionTower, *, num_joint: int, num_prompts: int) -> None:
        super().__init__()
        config = tower.config
        self.first = max(config.layers - num_joint, 0)
        self.prompts = nn.Parameter(
            torch.randn(config.layers - self.first, num_prompts, config.width) * 0.02
        )

    def forward(
        self, tower: VisionTower, frames: Tensor, mask: Bool[Tensor, "videos frames"]
    ) -> Float[Tensor, "videos frames dim"]:
        """Return the projected class token of every frame."""
        num_videos, num_frames = mask.shape
        tokens = tower.embed(frames.flatten(0, 1))
        if tower.frame_embedding is not None:
            tokens = add_frame_positions(tokens, tower.frame_embedding, num_frames)
        for block in tower.blocks[: self.first]:
            tokens = run_block(block, tokens, is_checkpointed=False)
        length = tokens.shape[1]
        video_tokens = tokens.reshape(num_videos, num_frames * length, -1)
        for index, block in enumerate(tower.blocks[self.first :]):
            prompts = self.prompts[index].to(video_tokens.dtype).expand(num_videos, -1, -1)
            is_real = mask.repeat_interleave(length, dim=1)
            is_real = torch.cat([is_real.new_ones(prompts.shape[:2]), is_real], dim=1)
            states = torch.cat([prompts, video_tokens], dim=1)
            states = run_block(block, states, is_checkpointed=False, mask=is_real[:, None, None, :])
            video_tokens = states[:, prompts.shape[1] :]
        class_tokens = video_tokens.reshape(num_videos, num_frames, length, -1)[:, :, 0]
        return tower.project(class_tokens)


class FramesAsWords(nn.Module):
    """Text tower that reads frames, projected to words, after prompts (TextTemp)."""

    def __init__(self, tower: TextTower, dim: int, *, num_frames: int, num_prompts: int) -> None:
        super().__init__()
        config = tower.config
        max_prompts = config.context_length - 2 - num_frames
        if max_prompts < 0:
            raise ConfigError(
                f"{num_frames} frames, start and end are {num_frames + 2} tokens, but the text "
                f"tower takes {config.context_length}; sample fewer frames"
            )
        self.words = nn.Linear(dim, config.width)
        self.prompts = nn.Parameter(torch.randn(min(num_prompts, max_prompts), config.width) * 0.02)

    def forward(
        self,
        tower: TextTower,
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos dim"]:
        """Return the output of the tower for [start, prompts, frames, end]; real frames first."""
        num_videos = len(mask)
        start, end = tower.token_embedding.weight[-2], tower.token_embedding.weight[-1]
        words = self.words(frames)
        before = torch.cat([start[None], self.prompts]).to(words.dtype)
        after = end.to(words.dtype).expand(num_videos, 1, -1)
        sequence = torch.cat([before.expand(num_videos, -1, -1), words, after], dim=1)
        # The end follows the last real frame; causal attention ignores what comes later.
        last = before.shape[0] + mask.sum(dim=1)
        positions = torch.arange(sequence.shape[1], device=mask.device)[None]
        is_end = (positions == last[:, None])[..., None]
        sequence = torch.where(is_end, end.to(words.dtype), sequence)
        states = sequence + tower.positional_embedding[: sequence.shape[1]]
        for block in tower.blocks:
            states = run_block(block, states, is_checkpointed=False, is_causal=True)
        return tower.project(take_positions(states, last))


@dataclass(frozen=True)
class TFVLConfig(MethodConfig):
    """Settings of our interpretation of TFVL.

    frozen: do not train the towers. num_joint: last visual blocks, which read all frames at once.
    num_prompts: learned tokens in each of these blocks. num_word_prompts: learned tokens before the
    frames in the text tower.
    """

    frozen: bool = True
    num_joint: int = 2
    num_prompts: int = 4
    num_word_prompts: int = 4


@register(
    TFVLConfig, paper="TFVL (Shen et al., TNNLS 2025)", checked_by="approximate from the abstract"
)
class TFVL(CosineMethod, TowerMethod):
    """``s(t, v) = cos(t, v)`` with ``v`` the mean frame plus the text tower's output for frames.

    Approximate: implemented from the abstract. ``VideoFeatures.video`` is the sum.
    """

    name = "tfvl"
    config: TFVLConfig

    def __init__(self, encoder: ClipEncoder, config: TFVLConfig) -> None:
        super().__init__(encoder, config)
        self.frames_as_image = FramesAsImage(
            encoder.vision, num_joint=config.num_joint, num_prompts=config.num_prompts
        )
        self.sentence = FramesAsWords(
            encoder.text,
            encoder.dim,
            num_frames=config.num_frames,
            num_prompts=config.num_word_prompts,
        )
        self.loss = SoftmaxLoss()

    @classmethod
    def prepare(cls, config: TFVLConfig, encoder: ClipEncoder) -> None:
        if config.frozen:
            freeze_tower(encoder)

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        clips = require_clips(videos, self.name)
        mask = clips.mask.to(self.device)
        if mask.shape[1] > self.config.num_frames:
            raise too_many_frames(mask.shape[1], self.config.num_frames)
        order, back = real_first(mask)
        ordered_mask = mask.take_along_dim(order, dim=1)
        frames = clips.frames.to(self.device, non_blocking=True)
        frames = frames.take_along_dim(order[..., None, None, None], dim=1)
        features = self.frames_as_image(self.encoder.vision, frames, ordered_mask)
        sentence_vector = self.sentence(self.encoder.text, features, ordered_mask)
        return VideoFeatures(
            features.take_along_dim(back[..., None], dim=1),
            mask,
            video=mean_pooling(features, ordered_mask) + F.normalize(sentence_vector, dim=-1),
        )
