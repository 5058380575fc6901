"""TFVL's borrowed towers: frames of a video as one picture, and as the words of one sentence.

Read from the abstract and summaries alone: prompts, blocks and the residual are our choice.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.blocks import run_block
from eaglenet.encoders.clip import TextTower, take_positions
from eaglenet.encoders.vision import VisionTower, place_in_time


class FramesAsPicture(nn.Module):
    """The last blocks see the tokens of all frames, and prompts, as one picture (ImageTemp)."""

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
        """The class token of every frame, projected."""
        num_videos, num_frames = mask.shape
        tokens = tower.embed(frames.flatten(0, 1))
        if tower.frame_embedding is not None:
            tokens = place_in_time(tokens, tower.frame_embedding, num_frames)
        for block in tower.blocks[: self.first]:
            tokens = run_block(block, tokens, is_checkpointed=False)
        length = tokens.shape[1]
        joined = tokens.reshape(num_videos, num_frames * length, -1)
        for index, block in enumerate(tower.blocks[self.first :]):
            prompts = self.prompts[index].to(joined.dtype).expand(num_videos, -1, -1)
            shown = mask.repeat_interleave(length, dim=1)
            shown = torch.cat([shown.new_ones(prompts.shape[:2]), shown], dim=1)
            together = torch.cat([prompts, joined], dim=1)
            together = run_block(
                block, together, is_checkpointed=False, mask=shown[:, None, None, :]
            )
            joined = together[:, prompts.shape[1] :]
        classes = joined.reshape(num_videos, num_frames, length, -1)[:, :, 0]
        return tower.project(classes)


class FramesAsWords(nn.Module):
    """Frames, projected to words, between prompts in a sentence for the text tower (TextTemp)."""

    def __init__(self, tower: TextTower, dim: int, *, num_frames: int, num_prompts: int) -> None:
        super().__init__()
        config = tower.config
        room = config.context_length - 2 - num_frames
        if room < 0:
            raise ConfigError(
                f"{num_frames} frames and two ends make a sentence of {num_frames + 2} words, the "
                f"text tower takes {config.context_length}; sample fewer frames"
            )
        self.words = nn.Linear(dim, config.width)
        self.prompts = nn.Parameter(torch.randn(min(num_prompts, room), config.width) * 0.02)

    def forward(
        self,
        tower: TextTower,
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"],
    ) -> Float[Tensor, "videos dim"]:
        """What the tower says at the end of [start, prompts, frames, end]; real frames first."""
        num_videos = len(mask)
        start, end = tower.token_embedding.weight[-2], tower.token_embedding.weight[-1]
        words = self.words(frames)
        before = torch.cat([start[None], self.prompts]).to(words.dtype)
        after = end.to(words.dtype).expand(num_videos, 1, -1)
        sequence = torch.cat([before.expand(num_videos, -1, -1), words, after], dim=1)
        # The end stands after the last real frame; what comes later is never seen.
        last = before.shape[0] + mask.sum(dim=1)
        places = torch.arange(sequence.shape[1], device=mask.device)[None]
        is_end = (places == last[:, None])[..., None]
        sequence = torch.where(is_end, end.to(words.dtype), sequence)
        states = sequence + tower.positional_embedding[: sequence.shape[1]]
        for block in tower.blocks:
            states = run_block(block, states, is_checkpointed=False, is_causal=True)
        return tower.project(take_positions(states, last))
