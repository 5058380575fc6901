"""Opening of folders of sentence-transformers models, and the properties of their vectors."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import (
    CheckpointError,
    EagleNetError,
    ModelNotFoundError,
    UsageError,
    missing_extra,
)
from eaglenet.core.frame_spec import MAX_SIDE
from eaglenet.core.types import Resize
from eaglenet.encoders.catalogue import ST_PREFIX
from eaglenet.encoders.openclip import declare_operators

DYNAMIC_SIZE = 448
"""Side of frames for models that accept any resolution: 14 x 14 tokens of Qwen3-VL."""
SIDE_STEP = 32
"""Pixels along one side of a token of Qwen-VL."""
NUM_FRAMES = 12
MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
MULTI_VECTOR_TYPES = ("MultiVectorEncoder", "ColBERT")
PERCEPTION_AV, PERCEPTION_VIDEO = "pe_audio_video", "pe_video"
"""Types of Perception Encoder AV in ``config.json``: whole, and without audio."""
ENCODING_LOCK = threading.RLock()
"""Held during each call, since fast tokenizers refuse concurrent use by threads."""


@dataclass(frozen=True)
class StConfig:
    """Properties of a model that determine its vectors; read from the model when it is loaded.

    source: folder of the model.
    dim: numbers per vector, after truncation.
    num_frames: frames per clip.
    is_fixed: the model accepts no other number of frames.
    reads_clips: the model encodes a clip at once, not each frame.
    prompts: instructions by task, from the settings of the model.
    """

    source: str
    dim: int
    image_size: int
    resize: Resize
    num_frames: int
    is_fixed: bool
    reads_clips: bool
    is_multi_vector: bool
    prompts: Mapping[str, str] = field(default_factory=dict)


def sentence_transformers() -> Any:
    """Import the package on first use."""
    declare_operators()
    try:
        import sentence_transformers as package
    except ModuleNotFoundError as error:
        raise (
            missing_extra(error, "a model of sentence-transformers")
            or UsageError(f"sentence-transformers cannot be imported ({error})")
        ) from error
    if not hasattr(package, "MultiVectorEncoder"):
        raise UsageError(
            f"sentence-transformers {package.__version__} is too old: pip install -U 'eaglenet[st]'"
        )
    return package


def open_model(folder: Path, dim: int | None) -> Any:
    """Open a folder with sentence-transformers, in the precision of its weights, on the CPU.

    Runs no code of the folder.
    """
    package = sentence_transformers()
    is_multi_vector = _settings(folder).get("model_type") in MULTI_VECTOR_TYPES
    options: dict[str, Any] = {"device": "cpu", "model_kwargs": {"dtype": "auto"}}
    if is_multi_vector and dim is not None:
        raise UsageError(
            f"{folder} has several vectors per text, which cannot be truncated; leave out :{dim}"
        )
    if not is_multi_vector:
        options["truncate_dim"] = dim
    kind = package.MultiVectorEncoder if is_multi_vector else package.SentenceTransformer
    try:
        with quiet_libraries():
            model_type = _model_type(folder)
            if model_type in (PERCEPTION_AV, PERCEPTION_VIDEO):
                _add_feature_methods()
            if model_type == PERCEPTION_AV:
                options["modules"] = [_open_branches(folder, options.pop("model_kwargs"))]
            else:
                options["model_name_or_path"] = str(folder)
            model = kind(local_files_only=True, **options)
    except EagleNetError:
        raise
    except Exception as error:  # Files, missing packages and other libraries have their own errors.
        raise _not_opened(folder, error) from error
    if not (folder / MODULES).is_file() and len(model) > 1:
        raise ModelNotFoundError(
            f"{folder} has no {MODULES}, so it is unknown how its token vectors are pooled; "
            "use the folder that SentenceTransformer.save wrote"
        )
    if not model.supports("text") or not (model.supports("image") or model.supports("video")):
        kinds = ", ".join(kind for kind in model.modalities if isinstance(kind, str))
        raise UsageError(
            f"{folder} reads only {kinds}; searching videos needs a model that reads text and "
            "images or video (`eaglenet models` lists some)"
        )
    return model


def _model_type(folder: Path) -> str:
    """Return the type of a model of transformers; "" for a folder without its configuration."""
    path = folder / "config.json"
    return str(untrusted.read_object(path).get("model_type", "")) if path.is_file() else ""


def _add_feature_methods() -> None:
    """Add the methods that sentence-transformers calls to the class of Perception Encoder AV.

    transformers 5.22 defines them inside a constructor, where nothing can call them. The model's
    ``logits_video_text`` are products of these vectors.
    """
    from transformers.models.pe_video import modeling_pe_video as library

    def text_features(
        self: Any, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Float[Tensor, "texts dim"]:
        states = self.text_model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        vectors: Tensor = self.text_video_head(states.hidden_states[-1][:, 0])
        return vectors

    def video_features(
        self: Any, pixel_values_videos: Tensor, padding_mask_videos: Tensor | None = None
    ) -> Float[Tensor, "videos dim"]:
        states = self.video_encoder(pixel_values_videos, padding_mask_videos=padding_mask_videos)
        vectors: Tensor = self.video_head(states.pooler_output)
        return vectors

    library.PeVideoModel.get_text_features = text_features
    library.PeVideoModel.get_video_features = video_features
    # This decorator in the constructor prints a complaint about missing documentation.
    library.auto_docstring = lambda method: method


def _open_branches(folder: Path, model_kwargs: dict[str, Any]) -> Any:
    """Load only the text and video branches of Perception Encoder AV, without audio."""
    from sentence_transformers.base.modules import Transformer
    from transformers import PeVideoModel

    PeVideoModel._keys_to_ignore_on_load_unexpected = ["audio", "_plus_text_"]

    class Branches(Transformer):  # type: ignore[misc]
        def _load_config(self, *arguments: Any) -> tuple[Any, bool]:
            config, is_adapted = super()._load_config(*arguments)
            return config.video_config, is_adapted

        def _load_model(self, name: str, task: str, config: Any, *_: Any, **options: Any) -> Any:
            model, report = PeVideoModel.from_pretrained(
                name, config=config, output_loading_info=True, **options
            )
            missing_names = sorted(report["missing_keys"])
            if missing_names:
                # The library initialises them at random.
                raise CheckpointError(
                    f"{folder}: {len(missing_names)} weights of the text and video branches are "
                    f"missing, such as {missing_names[0]}; download it again"
                )
            return model

    local = {"local_files_only": True}
    module = Branches(
        str(folder), model_kwargs=model_kwargs | local, processor_kwargs=local, config_kwargs=local
    )
    module.__class__ = Transformer  # Saved models must name a class of the library.
    return module


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the progress bars of loading weights."""
    from transformers.utils import logging as library

    was_shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            library.enable_progress_bar()


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        return untrusted.read_object(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); download it again") from error


def _not_opened(folder: Path, error: Exception) -> EagleNetError:
    """Return the error for a model that the library cannot open."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "trust_remote_code" in str(error):
        return UsageError(
            f"{folder} needs Python code from its own repository, which eaglenet does not run"
        )
    for name in ("torchvision", "timm"):
        if name in str(error).lower():
            return UsageError(f"{folder} needs {name}: pip install 'eaglenet[st]'")
    return CheckpointError(f"{folder}: sentence-transformers cannot open this model ({reason})")


def describe(folder: Path, model: Any, dim: int | None) -> StConfig:
    """Return the properties of a model that determine its vectors."""
    with ENCODING_LOCK:
        text = model.encode_query([{"text": "a video"}], show_progress_bar=False)[0]
    width = int(text.shape[-1])
    if dim is not None and width != dim:
        raise UsageError(
            f"{ST_PREFIX}{folder}:{dim}: the model has vectors of {width} numbers; use a "
            f"dimension from 1 to {width}"
        )
    size, resize = frame_size(model.processor)
    frame_count = _fixed_frames(getattr(model.transformers_model, "config", None), model.processor)
    return StConfig(
        source=str(folder),
        dim=width,
        image_size=size,
        resize=resize,
        num_frames=frame_count or NUM_FRAMES,
        is_fixed=frame_count is not None,
        reads_clips=model.supports("video"),
        is_multi_vector=text.ndim == 2,
        prompts=dict(model.prompts),
    )


def _fixed_frames(config: Any, processor: Any) -> int | None:
    """Return the number of frames that a model requires; None for any number.

    VideoPrism has positions for this number; the processors of Perception Encoder AV's 16-frame
    models sample it.
    """
    videos = getattr(processor, "video_processor", None)
    sampler = videos if getattr(videos, "do_sample_frames", False) else None
    for part in (getattr(config, "vision_config", None), config, sampler):
        count = getattr(part, "num_frames", None)
        if isinstance(count, int) and count > 0:
            return count
    return None


def frame_size(processor: Any) -> tuple[int, Resize]:
    """Return side and resizing of the frames to decode, as the model's processor makes them.

    Models that accept any resolution get ``DYNAMIC_SIZE``, with uncropped frames.
    """
    for name in ("video_processor", "image_processor"):
        part = getattr(processor, name, None)
        if part is None:
            continue
        crop, size = getattr(part, "crop_size", None), getattr(part, "size", None)
        if getattr(part, "do_center_crop", False) and _side(crop, "height"):
            return _side(crop, "height"), "crop"
        if _side(size, "height"):
            return max(_side(size, "height"), _side(size, "width")), "stretch"
        pixels = _side(size, "longest_edge")
        if pixels > MAX_SIDE:  # Not a side, but the pixels of all frames together (Qwen-VL).
            side = min(DYNAMIC_SIZE, math.isqrt(pixels // NUM_FRAMES))
            return max(side // SIDE_STEP, 1) * SIDE_STEP, "stretch"
    return DYNAMIC_SIZE, "stretch"


def _side(size: Any, name: str) -> int:
    value = size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)
    return int(value or 0)
