"""Small random CLIP models in transformers, and inputs for them and for ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.clip_config import CLIP_PIXEL_MEAN, CLIP_PIXEL_STD

# Shapes of the released models, shrunk: patches of B/32, B/16 and L/14, no two axes alike.
SHAPES = {
    "b32-quick": {"patch": 32, "image": 96, "width": 48, "heads": 3, "act": "quick_gelu"},
    "b16-quick": {"patch": 16, "image": 64, "width": 64, "heads": 2, "act": "quick_gelu"},
    "l14-quick": {"patch": 14, "image": 56, "width": 80, "heads": 5, "act": "quick_gelu"},
    "b32-gelu": {"patch": 32, "image": 96, "width": 48, "heads": 3, "act": "gelu"},
    "l14-gelu-cropped": {"patch": 14, "image": 60, "width": 80, "heads": 5, "act": "gelu"},
}
VOCABULARY, END = 199, 198


def oracle_model(shape: str, *, end_token: int = 2, seed: int = 5) -> Any:
    """Return transformers' CLIPModel with random weights and biases of a useful size."""
    from transformers import CLIPConfig, CLIPModel

    options = SHAPES[shape]
    config = CLIPConfig(
        projection_dim=28,
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 36,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "max_position_embeddings": 77,
            "hidden_act": options["act"],
            "eos_token_id": end_token,
        },
        vision_config={
            "hidden_size": options["width"],
            "intermediate_size": 3 * options["width"],
            "num_hidden_layers": 3,
            "num_attention_heads": options["heads"],
            "image_size": options["image"],
            "patch_size": options["patch"],
            "hidden_act": options["act"],
        },
    )
    return randomise_weights(CLIPModel(config), seed)


def randomise_weights(model: Any, seed: int = 5) -> Any:
    """Return the model in eval mode with random weights of a useful size."""
    model = model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(0.1 * noise + (1 if name.endswith("weight") else 0))
            elif weight.ndim > 1 and "embedding" not in name and "probe" not in name:
                weight.copy_(noise * weight[0].numel() ** -0.5)
            else:
                weight.copy_(0.3 * noise)
    return model


def random_clips(shape: str, videos: int = 2, frames: int = 5, seed: int = 11) -> Clips:
    generator = torch.Generator().manual_seed(seed)
    size = SHAPES[shape]["image"]
    pixels = torch.randint(0, 256, (videos, frames, 3, size, size), generator=generator)
    mask = torch.ones(videos, frames, dtype=torch.bool)
    return Clips(pixels.to(torch.uint8), mask, torch.zeros(videos, frames))


def random_tokens(texts: int = 4, words: int = 13, seed: int = 13) -> Tokens:
    """Return texts of different lengths, padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, END - 1, (texts, words), generator=generator)
    mask = torch.zeros(texts, words, dtype=torch.bool)
    for row in range(texts):
        end = 3 + 2 * row
        ids[row, 0], ids[row, end], ids[row, end + 1 :] = END - 1, END, 0
        mask[row, : end + 1] = True
    return Tokens(ids, mask)


def normalise_pixels(clips: Clips) -> Tensor:
    """Return pixels [images, 3, height, width], normalised like by transformers."""
    mean = torch.tensor(CLIP_PIXEL_MEAN, dtype=torch.float64)[:, None, None]
    std = torch.tensor(CLIP_PIXEL_STD, dtype=torch.float64)[:, None, None]
    return ((clips.frames.flatten(0, 1).double() / 255 - mean) / std).float()
