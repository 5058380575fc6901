"""PE-Core's image tower: rotary positions in two directions, attention pooling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from eaglenet.encoders.attention_pooling import AttentionPooling
from eaglenet.encoders.blocks import Rotation, initialise_blocks, make_blocks, run_block
from eaglenet.encoders.perception.config import PerceptionVisionConfig
from eaglenet.encoders.tower_parts import TowerParts, pool_video
from eaglenet.encoders.vision import PatchEmbedding

TEMPERATURE = 10000.0


def grid_angles(config: PerceptionVisionConfig) -> Float[Tensor, "tokens half_head"]:
    """Angle of each pair of numbers of a head: its column times the bands, then its row.

    Band ``i`` of ``n`` is ``10000^(-i/n)``; the class token, where there is one, does not turn.
    """
    bands = config.width // config.heads // 4
    exponents = torch.arange(bands, device="cpu").float() / bands
    frequencies = 1.0 / TEMPERATURE**exponents
    places = torch.arange(config.grid, device="cpu").float() + config.grid_offset
    columns, rows = places.repeat(config.grid), places.repeat_interleave(config.grid)
    angles = torch.cat([columns[:, None] * frequencies, rows[:, None] * frequencies], dim=1)
    prefix = angles.new_zeros(int(config.class_token), angles.shape[1])
    return torch.cat([prefix, angles])


class GridRotation(nn.Module):
    """Cosines and sines of :func:`grid_angles`, each twice: for both numbers of a pair."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: PerceptionVisionConfig) -> None:
        super().__init__()
        self.config = config
        self._set_tables(torch.device("cpu"))

    def _set_tables(self, device: torch.device) -> None:
        # Real values even where the model is first built on "meta", and fp32 after any cast.
        angles = grid_angles(self.config).repeat_interleave(2, dim=1)
        self.register_buffer("cosines", angles.cos().to(device), persistent=False)
        self.register_buffer("sines", angles.sin().to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GridRotation:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._set_tables(self.cosines.device)
        return self


class PerceptionVisionTower(TowerParts):
    """Frames to one vector each: embed, ln_pre, blocks, ln_post, attention pooling, projection."""

    patch_embedding: PatchEmbedding

    def __init__(
        self,
        config: PerceptionVisionConfig,
        dim: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config, mean, std)
        self.class_embedding = (
            nn.Parameter(torch.zeros(config.width)) if config.class_token else None
        )
        self.positional_embedding = nn.Parameter(torch.zeros(config.num_tokens, config.width))
        self.ln_pre = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.rotation = GridRotation(config)
        self.blocks = make_blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.pooling = AttentionPooling(
            config.width,
            heads=config.pooling_heads,
            mlp_width=4 * config.width,
            activation=config.activation,
            norm_eps=config.norm_eps,
        )
        self.projection = nn.Linear(config.width, dim)
        self.gradient_checkpointing = 0

    def embed(
        self, pixels: Shaped[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images tokens channels"]:
        """What the first block takes: the class token, where there is one, then the patches."""
        tokens = self.patch_embedding(pixels)
        if self.class_embedding is not None:
            first = self.class_embedding.to(tokens.dtype).expand(len(tokens), 1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return self.enter(tokens + self.positional_embedding)

    def enter(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        result: Tensor = self.ln_pre(tokens)
        return result

    def turn(self, dtype: torch.dtype) -> Rotation:
        """In the type of the tokens: fp32 tables would make every query and key fp32."""
        return self.rotation.cosines.to(dtype), self.rotation.sines.to(dtype)

    def read_video(
        self,
        first: Float[Tensor, "videos firsts width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        first, patches = self.ln_post(first), self.ln_post(patches)
        video, frames = pool_video(self.pooling, first, patches, mask)
        return self.projection(video), self.projection(frames)

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images 1 dim"]:
        tokens = self.embed(pixels)
        rotation = self.turn(tokens.dtype)
        for index, block in enumerate(self.blocks):
            is_checkpointed = index < self.gradient_checkpointing and self.training
            tokens = run_block(block, tokens, is_checkpointed=is_checkpointed, rotation=rotation)
        result: Tensor = self.projection(self.pooling(self.ln_post(tokens)))
        return result[:, None]

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        weights = [self.positional_embedding, self.patch_embedding.projection.weight]
        weights += [] if self.class_embedding is None else [self.class_embedding]
        for weight in [*weights, self.projection.weight]:
            nn.init.normal_(weight, std=deviation, generator=generator)
        nn.init.zeros_(self.projection.bias)
        initialise_blocks(self.blocks, generator)
        self.pooling.initialise(generator)
