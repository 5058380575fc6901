"""A model folder that is small enough to be made in every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from clip_folder import learn_tokenizer
from eaglenet.core.types import FrameSpec
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.methods.base import METHODS
from eaglenet.models.folder import save

WORDS = ("a", "red", "green", "blue", "car")


def save_small_model(
    folder: Path,
    method_name: str = "clip4clip",
    tokenizer: ClipTokenizer | None = None,
    **config_changes: Any,
) -> Path:
    """A model with random weights that knows a few words, or those of ``tokenizer``.

    Zero-shot unless a method is named; ``config_changes`` are settings of the method.
    """
    if tokenizer is None:
        tokenizer = learn_tokenizer(list(WORDS))
    torch.manual_seed(0)
    config = ClipConfig(
        dim=24,
        vision=VisionConfig(image_size=16, patch_size=8, width=12, layers=1, heads=2, mlp_width=20),
        text=TextConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            context_length=32,
            width=18,
            layers=1,
            heads=2,
            mlp_width=28,
        ),
    )
    spec = METHODS[method_name]
    method = spec.build(spec.config_class(**config_changes), ClipEncoder(config))
    method.frame_spec = FrameSpec(num_frames=5, size=16)
    method.tokenizer = tokenizer
    save(method.eval(), folder)
    return folder
