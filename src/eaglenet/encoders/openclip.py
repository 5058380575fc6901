"""Models of open_clip as encoders of texts and videos: one vector per text, one per frame."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, ModelNotFoundError, UsageError, naming_extra
from eaglenet.core.files import expand_home
from eaglenet.core.process import module_path
from eaglenet.core.types import Abilities, Resize, TextFeatures, TextStack, Tokenizer, Tokens
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip_files import clip_tokenizer_for
from eaglenet.encoders.hub import require_licence_on_hub


@dataclass(frozen=True)
class OpenClipConfig:
    """Shape of a model: ``name`` as in open_clip (``ViT-B-32``); the rest comes from the model."""

    name: str
    dim: int
    image_size: int
    context_length: int
    pixel_mean: tuple[float, float, float]
    pixel_std: tuple[float, float, float]
    resize: Resize = "crop"
    pad_token: int = 0


def open_clip() -> Any:
    """Import the package on first use. No other module imports it."""
    declare_operators()
    with naming_extra("openclip", "models of open_clip need the package"):
        import open_clip as package
    return package


def random_model(name: str, seed: int = 0) -> Any:
    """Return a model of open_clip with random weights; download nothing."""
    package = open_clip()
    if package.get_model_config(name) is None:
        names = ", ".join(package.list_models()[:8])
        raise ModelNotFoundError(
            f"open_clip has no model {name!r}; `open_clip.list_models()` lists all ({names}, ...)"
        )
    # Not on "meta", even inside ``with torch.device("meta")``: masks and tables are computed here
    # and are in no file. Only DisableTorchFunction overrides such a context.
    with torch.random.fork_rng(devices=[]), torch._C.DisableTorchFunction():
        torch.manual_seed(seed)
        return package.create_model(name, load_weights=False, pretrained_text=False)


class OpenClipVision(nn.Module):
    """open_clip's image tower; normalises uint8 pixels, and takes floats as normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module, config: OpenClipConfig) -> None:
        super().__init__()
        self.trunk = trunk
        self.blocks = nn.ModuleList()  # open_clip's blocks have other interfaces than ours.
        self.gradient_checkpointing = 0
        for name, values in (("mean", config.pixel_mean), ("std", config.pixel_std)):
            value = torch.tensor(values, device="cpu").view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def forward(
        self,
        pixels: Shaped[Tensor, "images 3 rows columns"],
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
    """An open_clip model without its image tower."""

    def __init__(self, rest: nn.Module, config: OpenClipConfig) -> None:
        super().__init__()
        self.rest = rest
        self.blocks = nn.ModuleList()
        self.gradient_checkpointing = 0
        self.width, self.pad_token = config.context_length, config.pad_token

    def read(
        self, ids: Int[Tensor, "texts words"], mask: Bool[Tensor, "texts words"], *, words: bool
    ) -> TextFeatures:
        return TextFeatures(sentence=self(ids))

    def forward(self, ids: Int[Tensor, "texts words"]) -> Float[Tensor, "texts dim"]:
        # The text towers of open_clip need the full context length.
        full_ids = F.pad(ids, (0, self.width - ids.shape[1]), value=self.pad_token)
        vectors: Tensor = self.rest.encode_text(full_ids)  # type: ignore[operator]
        return vectors


class OpenClipEncoder(TowerEncoder):
    """Encodes frames and texts to one vector each, without patches, tokens or token shift."""

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
        model = random_model(config.name, seed) if model is None else model
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

    def text_stack(self) -> TextStack | None:
        return None


PREFIX = "openclip:"
RESIZES: dict[str, Resize] = {"shortest": "crop", "squash": "stretch"}


class OpenClipTokenizer:
    """A tokenizer of open_clip other than CLIP's."""

    def __init__(self, name: str, context_length: int, pad_token: int) -> None:
        self.name, self.context_length, self.pad_token = name, context_length, pad_token
        self._tokenize = open_clip().get_tokenizer(name, context_length=context_length)

    def __call__(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Tokenize texts; the mask ends at the last id that is not padding."""
        width = self.context_length if max_length is None else max_length
        if not 2 < width <= self.context_length:
            raise UsageError(f"max_length {width}: this model takes 3 to {self.context_length}")
        texts = [texts] if isinstance(texts, str) else list(texts)
        ids: torch.Tensor = self._tokenize(texts, context_length=width)
        mask = (ids != self.pad_token).flip(1).cumsum(1).flip(1) > 0
        return Tokens(ids, mask)

    def save(self, folder: str | Path) -> None:
        raise UsageError(
            f"the tokenizer of open_clip's {self.name} has no file of its own, so a model with it "
            f"cannot be saved in a folder; index and search with {PREFIX}{self.name}/PRETRAINED"
        )


def load_openclip(name: str) -> Pretrained:
    """Load ``openclip:NAME/PRETRAINED``: open_clip's names, or a file of weights as the second."""
    model_name, _, weights = name.removeprefix(PREFIX).partition("/")
    if not model_name or not weights:
        raise UsageError(
            f"{name!r}: write {PREFIX}NAME/PRETRAINED, such as "
            f"{PREFIX}ViT-B-32/laion2b_s34b_b79k; `open_clip.list_pretrained()` lists all pairs"
        )
    package = open_clip()
    config = package.get_model_config(model_name)
    if config is None:
        raise ModelNotFoundError(
            f"open_clip has no model {model_name!r}; `open_clip.list_models()` lists all"
        )
    tags = package.list_pretrained_tags_by_model(model_name)
    if weights not in tags and not expand_home(weights).is_file():
        names = ", ".join(tags) or "none"
        raise ModelNotFoundError(
            f"open_clip has no weights {weights!r} of {model_name} (it has: {names}), and there is "
            "no such file"
        )
    source = weights if weights in tags else str(expand_home(weights))
    repository = (package.get_pretrained_cfg(model_name, weights) or {}).get("hf_hub", "")
    if weights in tags and repository:
        require_licence_on_hub("/".join(repository.split("/")[:2]))
    try:
        model = package.create_model(model_name, pretrained=source, pretrained_text=False)
    except Exception as error:  # The hub, the file and other libraries have their own errors.
        lines = str(error).splitlines() or [type(error).__name__]
        raise ModelNotFoundError(f"{name} could not be loaded: {lines[0]}") from error
    # Other classes, such as CoCa, read texts differently.
    if type(model).__name__ not in ("CLIP", "CustomTextCLIP"):
        raise ConfigError(f"{name}: towers of open_clip's {type(model).__name__} cannot be used")
    our_config = describe(model_name, model, config)
    encoder = OpenClipEncoder(our_config, model=model).eval()
    return Pretrained(encoder, tokenizer_of(our_config, config))


def describe(name: str, model: Any, config: dict[str, Any]) -> OpenClipConfig:
    """Return the configuration of a loaded model."""
    images = open_clip().get_model_preprocess_cfg(model)
    size = images["size"]
    height, width = (size, size) if isinstance(size, int) else size
    resize = RESIZES.get(images.get("resize_mode", "shortest"))
    if height != width or resize is None:
        raise ConfigError(
            f"open_clip's {name} takes images of {height} x {width} "
            f"({images.get('resize_mode')}); frames here are squares, cropped or squeezed"
        )
    context_length = int(getattr(model, "context_length", 0) or model.text.context_length)
    pad = getattr(model, "text_pad_id", None) or getattr(getattr(model, "text", None), "pad_id", 0)
    return OpenClipConfig(
        name=name,
        dim=int(config["embed_dim"]),
        image_size=int(height),
        context_length=context_length,
        pixel_mean=tuple(images["mean"]),
        pixel_std=tuple(images["std"]),
        resize=resize,
        pad_token=int(pad or 0),
    )


def tokenizer_of(our_config: OpenClipConfig, config: dict[str, Any]) -> Tokenizer:
    """Return our tokenizer, which can be saved, if the model has CLIP's; else open_clip's."""
    text = config.get("text_cfg", {})
    is_other = any(text.get(key) for key in ("hf_tokenizer_name", "tokenizer_kwargs"))
    if not is_other and our_config.context_length == 77 and text.get("vocab_size") == 49408:
        return clip_tokenizer_for(Path(open_clip().__file__).parent)
    return OpenClipTokenizer(our_config.name, our_config.context_length, our_config.pad_token)


ENCODERS.add(
    "openclip",
    EncoderSpec(
        title="models of open_clip by name (openclip:NAME/PRETRAINED)",
        config_class=OpenClipConfig,
        build=OpenClipEncoder,
    ),
)


OPERATORS = ("nms", "qnms")
"""Operators that must exist when torchvision is imported."""


@functools.cache
def declare_operators() -> Any:
    """Declare torchvision's operators if its library cannot be loaded, so it can be imported.

    A declared operator has no implementation: calling it raises an error. Returns the declarations,
    which end with their last reference; None if the library can be loaded or is not installed.
    """
    # Not from the current folder, which may be untrusted: loading a library runs its code.
    package = PathFinder.find_spec("torchvision", module_path())
    if package is None or package.origin is None:
        return None
    library = PathFinder.find_spec("_C", [str(Path(package.origin).parent)])
    if library is None or library.origin is None:
        return None
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        declarations = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS:
            declarations.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        return declarations
    return None
