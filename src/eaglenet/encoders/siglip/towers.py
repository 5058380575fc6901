"""SigLIP's towers: no class token but attention pooling; texts without a causal mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.encoders.attention_pooling import AttentionPooling
from eaglenet.encoders.blocks import initialise_blocks, make_blocks, run_block
from eaglenet.encoders.siglip.config import SiglipTextConfig, SiglipVisionConfig
from eaglenet.encoders.tower_parts import TowerParts, pool_video
from eaglenet.encoders.vision import PatchEmbedding


class SiglipVisionTower(TowerParts):
    """Frames to one vector each: patches and positions, blocks, ln_post, attention pooling."""

    patch_embedding: PatchEmbedding

    def __init__(
        self, config: SiglipVisionConfig, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = PatchEmbedding(config, mean, std, bias=True)
        self.class_embedding = None
        self.positional_embedding = nn.Parameter(torch.zeros(config.grid**2, config.width))
        self.blocks = make_blocks(config)
        self.ln_post = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.pooling = AttentionPooling(
            config.width,
            heads=config.heads,
            mlp_width=config.mlp_width,
            activation=config.activation,
            norm_eps=config.norm_eps,
        )
        self.gradient_checkpointing = 0

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images 1 dim"]:
        tokens = self.place_patches(pixels)
        for index, block in enumerate(self.blocks):
            is_checkpointed = index < self.gradient_checkpointing and self.training
            tokens = run_block(block, tokens, is_checkpointed=is_checkpointed)
        result: Tensor = self.pooling(self.ln_post(tokens))
        return result[:, None]

    def read_video(
        self,
        first: Float[Tensor, "videos 0 width"],
        patches: Float[Tensor, "videos frames patches width"],
        mask: Bool[Tensor, "videos frames"],
    ) -> tuple[Float[Tensor, "videos dim"], Float[Tensor, "videos frames dim"]]:
        return pool_video(self.pooling, first, self.ln_post(patches), mask)

    def initialise(self, generator: torch.Generator) -> None:
        deviation = self.config.width**-0.5
        nn.init.normal_(self.positional_embedding, std=deviation, generator=generator)
        projection = self.patch_embedding.projection
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5, generator=generator)
        nn.init.zeros_(projection.bias)
        initialise_blocks(self.blocks, generator)
        self.pooling.initialise(generator)


class SiglipTextTower(nn.Module):
    """Token ids to words and sentences: embed, blocks, ln_final, projection with bias.

    The sentence is read at the last of ``context_length`` positions, whatever stands there, and
    pads are seen like words, as the models were trained. So every text is filled up with the pad
    token here, however wide it came.
    """

    def __init__(self, config: SiglipTextConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.positional_embedding = nn.Parameter(torch.zeros(config.context_length, config.width))
        self.blocks = make_blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(config.width, dim)
        self.gradient_checkpointing = 0

    def forward(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"]
    ) -> Float[Tensor, "texts positions dim"]:
        """The projection of every position; the last is the sentence."""
        missing = self.config.context_length - ids.shape[1]
        pad = self.config.pad_token
        ids = F.pad(ids.masked_fill(~mask, pad), (0, missing), value=pad)
        tokens = self.token_embedding(ids) + self.positional_embedding
        for index, block in enumerate(self.blocks):
            is_checkpointed = index < self.gradient_checkpointing and self.training
            tokens = run_block(block, tokens, is_checkpointed=is_checkpointed)
        result: Tensor = self.projection(self.ln_final(tokens))
        return result

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.token_embedding.weight, std=0.02, generator=generator)
        nn.init.normal_(self.positional_embedding, std=0.01, generator=generator)
        nn.init.normal_(self.projection.weight, std=self.config.width**-0.5, generator=generator)
        nn.init.zeros_(self.projection.bias)
        initialise_blocks(self.blocks, generator)
