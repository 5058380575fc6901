"""A model on disk: ``config.json`` + ``model.safetensors`` + ``tokenizer.json`` in one folder."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from eaglenet import foreign
from eaglenet.errors import CheckpointError, ConfigError, ModelNotFoundError, UsageError
from eaglenet.methods.base import METHODS, EvaluationHabits, Method
from eaglenet.plain_values import from_plain
from eaglenet.types import FrameSpec

FORMAT = 1
MOST, MOST_LAYERS = 65_536, 512
"""Sizes in a configuration beyond any model; more is an error, not a reason to allocate."""
MARGIN = 2**24
"""Weights that a method's builder may take away from the towers."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
PACKAGED = Path(__file__).parent.parent / "models"
"""Models that come with the package, by name."""


def save(method: Method, folder: str | Path) -> None:
    """Write a model folder that :func:`load` gives back with bit-identical scores.

    Files are replaced one by one and whole, the configuration last; other files are left alone.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    encoder: Any = method.encoder
    description = {
        "eaglenet": FORMAT,
        "method": method.name,
        "config": dataclasses.asdict(method.config),
        "encoder": {
            "kind": _encoder_kind(encoder),
            "config": dataclasses.asdict(encoder.config),
        },
        "frame_spec": dataclasses.asdict(method.frame_spec),
    }
    if method.habits != EvaluationHabits():
        description["habits"] = dataclasses.asdict(method.habits)
    weights = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in method.state_dict().items()
    }
    _replace(
        folder / WEIGHTS,
        lambda path: safetensors.torch.save_file(weights, path, metadata={"format": "pt"}),
    )
    if method.tokenizer is not None:
        method.tokenizer.save(folder)
    text = json.dumps(description, indent=2) + "\n"
    _replace(folder / CONFIG, lambda path: path.write_text(text, "utf-8"))


def is_packaged(name_or_folder: str | Path) -> bool:
    """Is this the name of a model that comes with the package? A path, even ``./demo``, is not."""
    return (
        isinstance(name_or_folder, str)
        and name_or_folder.isidentifier()
        and (PACKAGED / name_or_folder / CONFIG).is_file()
    )


def load(name_or_folder: str | Path) -> Method:
    """A model in eval mode, with its tokenizer.

    Args:
        name_or_folder: ``demo`` (the small model of the package, even where a folder of that name
            lies about: write ``./demo`` for it), a folder written by :func:`save` or by training,
            or a CLIP folder, file or hub id, which gives the zero-shot model: the mean of CLIP's
            frames against CLIP's sentence.
    """
    folder = Path(name_or_folder).expanduser()
    packaged = PACKAGED / str(name_or_folder)
    if is_packaged(name_or_folder):
        folder = packaged
    for place in (folder, folder / "model"):
        description = _read_description(place)
        if description is not None:
            return _load_folder(place, description)
    if str(name_or_folder) == "demo":
        raise ModelNotFoundError(
            f"the demo model is not in {packaged}; reinstall the package, or name a model folder"
        )
    from eaglenet.encoders.pretrained import load_clip

    encoder, tokenizer = load_clip(name_or_folder)
    spec = METHODS["clip4clip"]
    method = spec.build(spec.config_class(), encoder)
    size = encoder.config.vision.image_size
    method.frame_spec = dataclasses.replace(method.frame_spec, size=size)
    method.tokenizer = tokenizer
    return method.eval()


def _read_description(folder: Path) -> dict[str, Any] | None:
    """Our ``config.json``; None where there is none, or it belongs to another format."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        description = foreign.read_json(path)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); write the model again") from error
    if not isinstance(description, dict) or "eaglenet" not in description:
        return None
    if description["eaglenet"] != FORMAT:
        raise CheckpointError(
            f"{path}: written in form {description['eaglenet']!r:.60}, this version reads form "
            f"{FORMAT}; upgrade eaglenet, or save the model with this version"
        )
    return description


def _load_folder(folder: Path, description: dict[str, Any]) -> Method:
    path = folder / CONFIG
    expected = {"eaglenet", "method", "config", "encoder", "frame_spec"}
    if set(description) - {"habits"} != expected:
        odd = ", ".join(sorted(set(description) - {"habits"} ^ expected))
        raise CheckpointError(f"{path}: missing or unknown {odd}; upgrade eaglenet or save again")
    weights = _read_weights(folder / WEIGHTS)
    try:
        spec = METHODS[str(description["method"])]
        config = _checked(from_plain(spec.config_class, description["config"], where="config"))
        frame_spec = _checked(from_plain(FrameSpec, description["frame_spec"], where="frame_spec"))
        encoder = _build_encoder(description["encoder"], weights, path)
        method = spec.build(config, encoder)
        method.frame_spec = frame_spec
        method.habits = from_plain(EvaluationHabits, description.get("habits", {}), where="habits")
    except (UsageError, TypeError, KeyError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    _assign(method, weights, folder)
    method.tokenizer = _read_tokenizer(folder)
    return method.eval()


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path} is not there; copy it beside {CONFIG} or save the model again"
        )
    try:
        weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
    return weights


def _read_tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file():
        return None
    from eaglenet.encoders.tokenizer import Tokenizer

    return Tokenizer.from_folder(folder)


def _encoder_kind(encoder: Any) -> str:
    """``clip`` or ``features``, by what the encoder reads."""
    return "clip" if hasattr(encoder, "vision") else "features"


def _build_encoder(plain: Any, weights: Mapping[str, Tensor], path: Path) -> Any:
    if not isinstance(plain, Mapping) or not isinstance(plain.get("kind"), str):
        raise CheckpointError(f"{path}: encoder should say its kind and config")
    if plain["kind"] == "features":
        from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

        return FeatureEncoder(_checked(from_plain(FeatureConfig, plain["config"], where="encoder")))
    if plain["kind"] != "clip":
        raise CheckpointError(f"{path}: unknown encoder {plain['kind']!r} (known: clip, features)")
    from eaglenet.encoders.clip import ClipEncoder
    from eaglenet.encoders.config import ClipConfig

    config = ClipConfig.from_dict(plain["config"])
    # Without values first: drawing random weights only to replace them takes seconds.
    with torch.device("meta"):
        encoder = ClipEncoder(config)
    start = "encoder."
    own = {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}
    known = encoder.state_dict()
    if all(name in own and own[name].shape == value.shape for name, value in known.items()):
        encoder.load_state_dict({name: own[name] for name in known}, assign=True)
        return encoder
    wanted, held = (sum(v.numel() for v in part.values()) for part in (known, weights))
    if wanted > 2 * held + MARGIN:
        raise CheckpointError(
            f"{path}: describes an encoder of {wanted:,} weights, {WEIGHTS} holds {held:,}"
        )
    # The method's builder changes the towers, so that names or shapes differ until then.
    return ClipEncoder(config)


def _assign(method: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    expected = method.state_dict()
    for title, names in (
        ("are missing", set(expected) - set(weights)),
        ("are not of this model", set(weights) - set(expected)),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            raise CheckpointError(
                f"{folder / WEIGHTS}: {len(names)} weights {title}: {listed}; the file does not "
                f"belong to this {CONFIG}"
            )
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} is {list(weights[name].shape)}, {CONFIG} says "
                f"{list(value.shape)}"
            )
    # Assigned, not copied: a model saved in half precision stays so.
    method.load_state_dict(weights, assign=True)


def _checked(config: Any) -> Any:
    """A configuration without impossible sizes, before anything is built with it."""
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        most = MOST_LAYERS if "layers" in spec.name else MOST
        if isinstance(value, int) and not -1 <= value <= most:
            raise ConfigError(f"{spec.name} is {value!r:.60}; expected at most {most}")
        if isinstance(value, float) and value != value:
            raise ConfigError(f"{spec.name} is no number")
    return config


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside ``path`` and rename: a reader sees the old file or the new one, whole."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
