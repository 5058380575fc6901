"""The names and shapes of OpenAI's CLIP class, as its archives hold them, in any size."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

CONTEXT = 77


@dataclass(frozen=True)
class OpenaiShape:
    """Sizes of both towers; ``mlp`` is how many times as wide a block is inside."""

    grid: int
    patch: int
    width: int
    text_width: int
    dim: int
    vocabulary: int
    layers: int
    text_layers: int
    mlp: int


class _Block(nn.Module):
    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Module()
        self.mlp.c_fc = nn.Linear(width, mlp * width)
        self.mlp.c_proj = nn.Linear(mlp * width, width)


class _Transformer(nn.Module):
    def __init__(self, width: int, layers: int, mlp: int) -> None:
        super().__init__()
        self.resblocks = nn.Sequential(*(_Block(width, mlp) for _ in range(layers)))


class _Visual(nn.Module):
    def __init__(self, shape: OpenaiShape) -> None:
        super().__init__()
        width = shape.width
        self.conv1 = nn.Conv2d(3, width, shape.patch, shape.patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn(shape.grid**2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = _Transformer(width, shape.layers, shape.mlp)
        self.proj = nn.Parameter(torch.randn(width, shape.dim))


class OpenaiClip(nn.Module):
    """Random weights, and the values that archives carry beside."""

    def __init__(self, shape: OpenaiShape) -> None:
        super().__init__()
        width = shape.text_width
        self.visual = _Visual(shape)
        self.transformer = _Transformer(width, shape.text_layers, shape.mlp)
        self.token_embedding = nn.Embedding(shape.vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, shape.dim))
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        for name in ("input_resolution", "context_length", "vocab_size"):
            self.register_buffer(name, torch.tensor(7))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels * self.logit_scale


def save_archive(model: OpenaiClip, path: Path) -> Path:
    """A script archive, as OpenAI publishes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, torch.zeros(2)), str(path))
    return path
