"""A model of open_clip as an encoder of texts and videos: one vector a sentence, one a frame."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.openclip.config import OpenClipConfig
from eaglenet.errors import ModelNotFoundError, UsageError
from eaglenet.types import Abilities, Resize, TextFeatures, TextStack


def open_clip() -> Any:
    """The package, imported on first use: the one door to it."""
    try:
        import open_clip as package
    except ImportError as error:
        raise UsageError(
            f"models of open_clip need the package ({error}): pip install 'eaglenet[openclip]'"
        ) from error
    return package


def bare_model(name: str, seed: int = 0) -> Any:
    """A model of open_clip with random weights; nothing is downloaded."""
    package = open_clip()
    if package.get_model_config(name) is None:
        known = ", ".join(package.list_models()[:8])
        raise ModelNotFoundError(
            f"open_clip has no model {name!r}; `open_clip.list_models()` lists all ({known}, ...)"
        )
    # Not on "meta" even where that is the default: masks and tables are computed when it is built,
    # and are in no file. Only this ends a ``with torch.device(...)`` from inside.
    with torch.random.fork_rng(devices=[]), torch._C.DisableTorchFunction():
        torch.manual_seed(seed)
        return package.create_model(name, load_weights=False, pretrained_text=False)


class OpenClipVision(nn.Module):
    """open_clip's image tower: uint8 pixels normalised here, floats as they are."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module, config: OpenClipConfig) -> None:
        super().__init__()
        self.trunk = trunk
        self.blocks = nn.ModuleList()  # none that others could work in
        self.gradient_checkpointing = 0
        for name, values in (("mean", config.pixel_mean), ("std", config.pixel_std)):
            value = torch.tensor(values, device="cpu").view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 height width"],
        *,
        num_frames: int = 1,
        frame_mask: Bool[Tensor, "videos frames"] | None = None,
        patches: bool = False,
    ) -> Float[Tensor, "images 1 dim"]:
        if not pixels.is_floating_point():
            pixels = (pixels / 255 - self.mean) / self.std
        vectors: Tensor = self.trunk(pixels)
        return vectors[:, None]


class OpenClipText(nn.Module):
    """What remains of an open_clip model without its image tower."""

    def __init__(self, rest: nn.Module, config: OpenClipConfig) -> None:
        super().__init__()
        self.rest = rest
        self.blocks = nn.ModuleList()
        self.gradient_checkpointing = 0
        self.width, self.pad_token = config.context_length, config.pad_token

    def forward(self, ids: Int[Tensor, "texts words"]) -> Float[Tensor, "texts dim"]:
        # Its towers add positions to the full width.
        filled = F.pad(ids, (0, self.width - ids.shape[1]), value=self.pad_token)
        vectors: Tensor = self.rest.encode_text(filled)  # type: ignore[operator]
        return vectors


class OpenClipEncoder(TowerEncoder):
    """Whole frames and sentences only: no patches, no words, no token shift, no blocks."""

    family = "openclip"
    abilities = Abilities()
    config: OpenClipConfig
    resize: Resize  # type: ignore[misc]
    vision: OpenClipVision
    text: OpenClipText

    def __init__(
        self, config: OpenClipConfig, *, seed: int = 0, model: nn.Module | None = None
    ) -> None:
        super().__init__()
        model = bare_model(config.name, seed) if model is None else model
        self.config = config
        self.dim, self.image_size = config.dim, config.image_size
        self.context_length, self.resize = config.context_length, config.resize
        for name in ("logit_scale", "logit_bias"):
            value = getattr(model, name, None)
            if value is not None:
                setattr(self, name, nn.Parameter(value.detach().reshape(()).clone()))
                delattr(model, name)
        self.vision = OpenClipVision(model.visual, config)  # type: ignore[arg-type]
        del model.visual
        self.text = OpenClipText(model, config)

    def read_tokens(
        self,
        ids: Int[Tensor, "texts words"],
        mask: Bool[Tensor, "texts words"],
        *,
        words: bool,
    ) -> TextFeatures:
        return TextFeatures(sentence=self.text(ids))

    def text_stack(self) -> TextStack | None:
        return None
