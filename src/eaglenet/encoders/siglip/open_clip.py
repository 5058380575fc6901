"""SigLIP in the layout of timm and open_clip: a timm trunk and open_clip's text tower.

GELU is by tanh, as in Google's code and in transformers; timm's trunks of B/16, L/16 and So400m/14
have the exact one, which moves features by about 1e-3.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from eaglenet.encoders.siglip.config import SiglipConfig, SiglipTextConfig, SiglipVisionConfig
from eaglenet.encoders.weight_names import (
    Weights,
    depth_of,
    openai_blocks,
    rename,
    take,
    timm_blocks,
    timm_pooling,
)

GEMMA_VOCABULARY = 256000
NAMES = {
    "vision.ln_post": "visual.trunk.norm",
    "text.token_embedding.weight": "text.token_embedding.weight",
    "text.positional_embedding": "text.positional_embedding",
    "text.ln_final": "text.ln_final",
    "text.projection": "text.text_projection",
}


def from_open_clip(weights: Weights) -> dict[str, Tensor]:
    """Weights of open_clip's ``CustomTextCLIP`` by our names."""
    trunk = "visual.trunk"
    ours = rename(weights, NAMES) | timm_blocks(weights, f"{trunk}.blocks")
    ours |= timm_pooling(weights, f"{trunk}.attn_pool")
    ours |= openai_blocks(weights, "text", "text.transformer")
    ours["vision.positional_embedding"] = take(weights, f"{trunk}.pos_embed")[0]
    patches = f"{trunk}.patch_embed.proj"
    ours["vision.patch_embedding.projection.weight"] = take(weights, f"{patches}.weight")
    ours["vision.patch_embedding.projection.bias"] = take(weights, f"{patches}.bias")
    for name in ("logit_scale", "logit_bias"):
        ours[name] = take(weights, name).reshape(())
    return ours


def config_from_weights(ours: Mapping[str, Tensor]) -> SiglipConfig:
    """The shape of a model by its weights, patches not yet flattened."""
    patches = ours["vision.patch_embedding.projection.weight"]
    vocabulary, text_width = ours["text.token_embedding.weight"].shape
    return SiglipConfig(
        vision=SiglipVisionConfig(
            image_size=round(len(ours["vision.positional_embedding"]) ** 0.5) * patches.shape[-1],
            patch_size=patches.shape[-1],
            width=len(patches),
            layers=depth_of(ours, "vision.blocks."),
            heads=_heads(len(patches)),
            mlp_width=len(ours["vision.blocks.0.mlp.up.weight"]),
        ),
        text=SiglipTextConfig(
            vocabulary_size=vocabulary,
            context_length=len(ours["text.positional_embedding"]),
            width=text_width,
            layers=depth_of(ours, "text.blocks."),
            heads=_heads(text_width),
            mlp_width=len(ours["text.blocks.0.mlp.up.weight"]),
            pad_token=0 if vocabulary == GEMMA_VOCABULARY else 1,
        ),
    )


def _heads(width: int) -> int:
    """64 wide, but never more than 16 (So400m: 72 wide, giant: 96)."""
    return min(max(width // 64, 1), 16)
