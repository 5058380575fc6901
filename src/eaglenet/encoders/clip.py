"""CLIP as an encoder of texts and videos."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.types import Abilities, TextFeatures
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.blocks import initialise_blocks, make_blocks, run_blocks
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE, ClipConfig, TextConfig
from eaglenet.encoders.vision import VisionTower


class TextTower(nn.Module):
    """CLIP's text tower: embed, causal blocks, ln_final, projection."""

    def __init__(self, config: TextConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        # `initialise` draws the values: on the meta device this would import torch's compiler, 1 s.
        self.token_embedding = nn.Embedding.from_pretrained(
            torch.empty(config.vocabulary_size, config.width), freeze=False
        )
        self.positional_embedding = nn.Parameter(torch.zeros(config.context_length, config.width))
        self.blocks = make_blocks(config)
        self.ln_final = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(config.width, dim, bias=False)
        self.gradient_checkpointing = 0

    def embed(self, ids: Int[Tensor, "texts words"]) -> Float[Tensor, "texts words width"]:
        """Return the inputs of the first block."""
        tokens: Tensor = self.token_embedding(ids)
        return tokens + self.positional_embedding[: ids.shape[1]]

    def end_positions(self, ids: Int[Tensor, "texts words"]) -> Int[Tensor, "texts"]:
        """Return the index of each first end token, or of the largest id (OpenAI's rule)."""
        end_token = self.config.end_token
        if end_token is None:
            return ids.argmax(dim=1)
        return (ids == end_token).int().argmax(dim=1)

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        """Return the vector of each text at its end token; with ``words``, also every token."""
        features = self(ids, words=words)
        if not words:
            return TextFeatures(sentence=features[:, 0])
        sentence = take_positions(features, self.end_positions(ids))
        return TextFeatures(sentence=sentence, words=features, words_mask=mask)

    def project(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch dim"]:
        """Project to the joint width, without normalising."""
        result: Tensor = self.projection(self.ln_final(tokens))
        return result

    def forward(
        self, ids: Int[Tensor, "texts words"], *, words: bool = False
    ) -> Float[Tensor, "texts outputs dim"]:
        """Return vectors of texts [texts, 1, dim], or with ``words`` of all positions."""
        if not words and len(ids) and not torch.is_grad_enabled() and not ids.is_meta:
            # Blocks are causal, so tokens after the end of the longest text have no effect.
            ids = ids[:, : int(self.end_positions(ids).max()) + 1]
        tokens = run_blocks(self, self.embed(ids), is_causal=True)
        if not words:
            tokens = take_positions(tokens, self.end_positions(ids))[:, None]
        return self.project(tokens)

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.token_embedding.weight, std=0.02, generator=generator)
        nn.init.normal_(self.positional_embedding, std=0.01, generator=generator)
        nn.init.normal_(self.projection.weight, std=self.config.width**-0.5, generator=generator)
        initialise_blocks(self.blocks, generator)


def take_positions(
    tokens: Float[Tensor, "texts words dim"], positions: Int[Tensor, "texts"]
) -> Float[Tensor, "texts dim"]:
    """Select one token of each text."""
    return tokens[torch.arange(len(tokens), device=tokens.device), positions]


class ClipEncoder(TowerEncoder):
    """Encodes a frame as its class token, a text as its end token.

    Weights may be fp32, bf16 or fp16; training runs bf16 autocast over fp32 weights. A new encoder
    is random (``seed``); :func:`eaglenet.encoders.clip_files.load_clip` loads a trained one.
    """

    family = "clip"
    abilities = Abilities(words=True, patches=True, token_shift=True)
    config: ClipConfig
    vision: VisionTower
    text: TextTower

    def __init__(self, config: ClipConfig, *, seed: int = 0) -> None:
        super().__init__()
        vision = VisionTower(config.vision, config.dim, config.pixel_mean, config.pixel_std)
        text = TextTower(config.text, config.dim)
        self.set_towers(config, vision, text, logit_scale=CLIP_LOGIT_SCALE, seed=seed)
