"""A model on disk: ``config.json`` + ``model.safetensors`` + ``tokenizer.json`` in one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from eaglenet.errors import CheckpointError, ConfigError, ModelNotFoundError
from eaglenet.files import read_json, write_json, written_whole
from eaglenet.methods.base import METHODS, EvaluationHabits, Method
from eaglenet.types import FrameSpec

FORMAT = 1
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
    with written_whole(folder / WEIGHTS) as partial:
        safetensors.torch.save_file(weights, partial, metadata={"format": "pt"})
    if method.tokenizer is not None:
        method.tokenizer.save(folder)
    write_json(folder / CONFIG, description)


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
        description = read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); write the model again") from error
    if not isinstance(description, dict) or "eaglenet" not in description:
        return None
    if description["eaglenet"] != FORMAT:
        raise CheckpointError(
            f"{path}: written in form {description['eaglenet']}, this version reads form {FORMAT}; "
            "upgrade eaglenet, or save the model with this version"
        )
    return description


def _load_folder(folder: Path, description: dict[str, Any]) -> Method:
    path = folder / CONFIG
    expected = {"eaglenet", "method", "config", "encoder", "frame_spec"}
    if set(description) - {"habits"} != expected:
        odd = ", ".join(sorted(set(description) - {"habits"} ^ expected))
        raise CheckpointError(f"{path}: missing or unknown {odd}; upgrade eaglenet or save again")
    spec = METHODS[str(description["method"])]
    weights = _read_weights(folder / WEIGHTS)
    try:
        config = _from_plain(spec.config_class, description["config"], path)
        encoder = _build_encoder(description["encoder"], weights, path)
        method = spec.build(config, encoder)
        method.frame_spec = _from_plain(FrameSpec, description["frame_spec"], path)
        method.habits = _from_plain(EvaluationHabits, description.get("habits", {}), path)
    except (ConfigError, TypeError, KeyError) as error:
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
    """``clip``, ``features`` or ``experts``, by what the encoder reads."""
    if hasattr(encoder, "experts"):
        return "experts"
    return "clip" if hasattr(encoder, "vision") else "features"


def _build_encoder(plain: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path) -> Any:
    if plain["kind"] == "features":
        from eaglenet.encoders.features import FeatureConfig, FeatureEncoder

        return FeatureEncoder(_from_plain(FeatureConfig, plain["config"], path))
    if plain["kind"] == "experts":
        from eaglenet.encoders.experts import ExpertConfig, ExpertEncoder

        return ExpertEncoder(_from_plain(ExpertConfig, plain["config"], path))
    if plain["kind"] != "clip":
        kinds = "clip, features, experts"
        raise CheckpointError(f"{path}: unknown encoder {plain['kind']!r} (known: {kinds})")
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


def _from_plain(kind: type[Any], values: Any, path: Path) -> Any:
    """A dataclass from JSON values; lists become tuples."""
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{path}: {kind.__name__} should be an object, is {values!r}")
    known = [spec.name for spec in dataclasses.fields(kind)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise CheckpointError(
            f"{path}: {kind.__name__} has no option {', '.join(unknown)}; a newer eaglenet may "
            f"have written it: upgrade, or remove it (known: {', '.join(known)})"
        )
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
