"""Model folders with ``config.json``, ``model.safetensors`` and ``tokenizer.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, ModelNotFoundError, UnknownNameError, UsageError
from eaglenet.core.files import expand_home, write_json, write_tensors
from eaglenet.core.progress import activity
from eaglenet.core.settings import from_plain
from eaglenet.core.types import Encoder, FrameSpec
from eaglenet.encoders import ENCODERS, Pretrained
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.catalogue import ALIASES, HUB_IDS, ST_PREFIX
from eaglenet.encoders.clip_config import check_sizes
from eaglenet.encoders.features import FeatureConfig
from eaglenet.encoders.hardware import require_device
from eaglenet.encoders.hub import find_hub_folder
from eaglenet.encoders.weights import materialise, read_safetensors, reading_on_demand
from eaglenet.layers.transformer import default_heads
from eaglenet.methods.base import METHODS, EvaluationHabits, Method
from eaglenet.models import files
from eaglenet.models.files import (
    CONFIG,
    EXPERIMENT,
    MODEL,
    SCALES,
    WEIGHTS,
    WHOLE_MODEL,
    local_folder,
)

# Storage of weights in a quarter of their size: int8 matrices with one scale per row.

MIN_ENTRIES = 4096
"""Minimum entries of a matrix that is rounded to int8; smaller ones save too little."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round large matrices to int8, and other weights to half precision, for storage."""
    arrays: dict[str, Tensor] = {}
    for name, value in weights.items():
        if value.ndim != 2 or value.numel() < MIN_ENTRIES or not value.is_floating_point():
            arrays[name] = value.half() if value.is_floating_point() else value
            continue
        scales = value.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        arrays[name] = (value.float() / scales).round().to(torch.int8)
        arrays[name + SCALES] = scales
    return arrays


def from_int8(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert :func:`to_int8`. A file without int8 matrices does not change."""
    if not any(name.endswith(SCALES) for name in arrays):
        return dict(arrays)
    weights: dict[str, Tensor] = {}
    for name, value in arrays.items():
        if name.endswith(SCALES):
            continue
        scales = arrays.get(name + SCALES)
        if scales is None:
            weights[name] = value.float() if value.is_floating_point() else value
        elif value.ndim != 2 or scales.shape != (len(value), 1):
            raise CheckpointError(
                f"{name} is {list(value.shape)}, its scales {list(scales.shape)}; "
                "expected one for each row"
            )
        else:
            weights[name] = value.float() * scales.float()
    return weights


FORMAT = 1
FIELDS = ("eaglenet", "method", "config", "encoder", "frame_spec")
"""Required fields of ``config.json``."""
Storage = Literal["full", "int8"]
MARGIN = 2**24
"""Maximum number of weights that the builder of a method may remove from the towers."""


def save(
    method: Method,
    folder: str | Path,
    *,
    storage: Storage = "full",
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model folder; :func:`load` reads a model with bit-identical scores from it.

    Each file is replaced atomically, the configuration last; other files are not changed.

    Args:
        storage: ``int8`` takes a quarter of the space and rounds the weights (:func:`to_int8`).
        weights: state to write instead of the method's, which may be sharded over processes.
    """
    if not isinstance(method, Method):
        raise UsageError(
            f"save takes a loaded model, such as eaglenet.load('small'), not {method!r:.60}"
        )
    if not isinstance(folder, str | Path):
        raise UsageError(f"folder must be a path, not {folder!r:.60}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    encoder = method.encoder
    state = method.state_dict() if weights is None else weights
    config: Any = encoder.config
    if ENCODERS[encoder.family].open_own_files is not None:
        if storage == "int8":
            raise UsageError(f"weights of {ENCODERS[encoder.family].title} are not stored in int8")
        config, state = encoder.save_own_files(folder, state)  # type: ignore[attr-defined]
    description = {
        "eaglenet": FORMAT,
        "method": method.name,
        "config": dataclasses.asdict(method.config),
        "encoder": {
            "kind": encoder.family,
            "config": dataclasses.asdict(config),
        },
        "frame_spec": dataclasses.asdict(method.frame_spec),
    }
    if method.habits != EvaluationHabits():
        description["habits"] = dataclasses.asdict(method.habits)
    _write_weights(folder / WEIGHTS, state, storage)
    if method.tokenizer is not None:
        method.tokenizer.save(folder)
    write_json(folder / CONFIG, description)


def _write_weights(path: Path, state: Mapping[str, Tensor], storage: Storage) -> None:
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    write_tensors(path, to_int8(weights) if storage == "int8" else weights)


def load(name_or_folder: str | Path, *, device: torch.device | str = "cpu") -> Method:
    """Load a model in eval mode, with its tokenizer.

    Args:
        name_or_folder: name of a packaged model (``small`` or ``demo``; write ``./demo`` for a
            folder of that name), a folder written by :func:`save` or by training, or a folder,
            file, hub id or name (``fast``, ``balanced``, ``best``, ``multilingual``) of towers,
            which become a zero-shot model: its score is the cosine of the text and the mean of the
            frames.
        device: device to compute on; ``auto`` is a GPU if there is one.
    """
    if not isinstance(name_or_folder, str | Path):
        raise UsageError(f"expected the name or the folder of a model, not {name_or_folder!r:.60}")
    if isinstance(device, str):
        device = require_device(device)
    return _find(name_or_folder).to(device).eval()


def load_for_texts(name_or_folder: str | Path) -> Method:
    """Load a model on the CPU without reading the image tower, whose weights are deferred.

    See :mod:`eaglenet.encoders.weights`. Call ``encoder.release_vision`` next.
    """
    with reading_on_demand():
        method = _find(name_or_folder)
    encoder = method.encoder
    materialise(method, without=encoder.vision if isinstance(encoder, TowerEncoder) else None)
    return method.eval()


def _find(name_or_folder: str | Path) -> Method:
    with activity(f"loading the model {name_or_folder}"):
        method = _read(name_or_folder)
    method.source = str(name_or_folder)
    return method


def _read(name_or_folder: str | Path) -> Method:
    if isinstance(name_or_folder, str):
        name_or_folder = ALIASES.get(name_or_folder, name_or_folder)
    folder = local_folder(name_or_folder)
    for inside in (folder, folder / WHOLE_MODEL, folder / MODEL):
        description = _read_description(inside)
        if description is not None:
            return _load_folder(inside, description)
    if str(name_or_folder) == "demo":
        raise ModelNotFoundError(
            f"the demo model is not in {files.PACKAGED}; reinstall the package, or name a model "
            "folder"
        )
    encoder, tokenizer = load_pretrained(name_or_folder)
    method = _zero_shot(encoder)
    method.tokenizer = tokenizer
    return method


def load_pretrained(name_or_folder: str | Path) -> Pretrained:
    """Load a trained encoder in eval mode, with its tokenizer. Its files determine the family.

    Args:
        name_or_folder: a published folder or file, a hub id, a short name,
            ``openclip:NAME/PRETRAINED``, or ``st:MODEL``.
    """
    from eaglenet.encoders.openclip import PREFIX, load_openclip
    from eaglenet.encoders.sentence_transformer import load_st

    name = HUB_IDS.get(str(name_or_folder), str(name_or_folder))
    if name.startswith(PREFIX):
        return load_openclip(name)
    if name.startswith(ST_PREFIX):
        return load_st(name)
    path = expand_home(name_or_folder)
    location = path if path.exists() else find_hub_folder(str(name_or_folder))
    for family in ENCODERS:
        spec = ENCODERS[family]
        if spec.load is not None and spec.recognises(location):
            return spec.load(location)
    if (location / EXPERIMENT).is_file():
        raise ModelNotFoundError(
            f"{location} is a run without a model: it is saved after the first evaluation; resume "
            "the run with the same `eaglenet train` command"
        )
    families = ", ".join(ENCODERS[name].title for name in ENCODERS if ENCODERS[name].load)
    if not (location / "config.json").is_file():
        raise ModelNotFoundError(
            f"{location} has no config.json; expected a folder of a known model ({families})"
        )
    raise CheckpointError(f"{location}: not a model of a known family (known: {families})")


def _zero_shot(encoder: Encoder) -> Method:
    """Return a method without parameters for pretrained towers.

    Its score is the cosine of the text and the mean of the frames. For several vectors per text and
    per clip, it is the mean over the text's vectors of the largest cosine with the clip's.
    """
    settings: dict[str, Any] = {}
    num_frames = getattr(encoder, "num_frames", None)
    if num_frames is not None:
        settings["num_frames"] = num_frames
    name = "clip4clip"
    if encoder.abilities.words and not encoder.abilities.frames:
        name = "wordframe"
        settings |= {"coarse": False, "changes": False, "num_layers": 0, "weighted": False}
        settings |= {"bank": 0}
    spec = METHODS[name]
    return spec.build(spec.config_class(**settings), encoder)


def _read_description(folder: Path) -> dict[str, Any] | None:
    """Read our ``config.json``; return None if there is none, or it has another format."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        description = untrusted.read_json(path)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); write the model again") from error
    if not isinstance(description, dict) or "eaglenet" not in description:
        return None
    if description["eaglenet"] != FORMAT:
        raise CheckpointError(
            f"{path}: written in format {description['eaglenet']!r:.60}, but this version reads "
            f"format {FORMAT}; upgrade eaglenet, or save the model with this version"
        )
    return description


def _load_folder(folder: Path, description: dict[str, Any]) -> Method:
    path = folder / CONFIG
    differences = set(description) - {"habits"} ^ {*FIELDS}
    if differences:
        names = ", ".join(sorted(differences))
        raise CheckpointError(f"{path}: missing or unknown {names}; upgrade eaglenet or save again")
    weights = _read_weights(folder / WEIGHTS)
    try:
        spec = METHODS[str(description["method"])]
        config = from_plain(spec.config_class, description["config"], where="config")
        check_sizes(config)
        frame_spec = from_plain(FrameSpec, description["frame_spec"], where="frame_spec")
        habits = from_plain(EvaluationHabits, description.get("habits", {}), where="habits")
        encoder = _build_encoder(description["encoder"], weights, path)
        method = spec.build(config, encoder)
        method.frame_spec, method.habits = frame_spec, habits
    except (UsageError, TypeError, KeyError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(
            f"{path}: {error}; a newer eaglenet may have written it: upgrade, or save it again"
        ) from error
    if ENCODERS[encoder.family].open_own_files is not None:
        state = method.state_dict()
        own = {n: value for n, value in state.items() if n.startswith(TOWERS) and n not in weights}
        weights = {**own, **weights}
    _assign(method, weights, folder)
    from eaglenet.encoders.tokenizers import read_tokenizer

    method.tokenizer = getattr(encoder, "tokenizer", None) or read_tokenizer(folder)
    return method


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; copy it beside {CONFIG} or save the model again"
        )
    try:
        weights = read_safetensors(path)
    except Exception as error:  # A damaged file can fail in any way.
        raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
    return from_int8(weights)


def _build_encoder(plain: Any, weights: Mapping[str, Tensor], path: Path) -> Encoder:
    if not isinstance(plain, Mapping) or not isinstance(plain.get("kind"), str):
        raise CheckpointError(f"{path}: encoder should say its kind and config")
    try:
        spec = ENCODERS[str(plain["kind"])]
    except UnknownNameError as error:
        raise CheckpointError(f"{path}: {error}") from error
    config = from_plain(spec.config_class, plain["config"], where="encoder.config")
    check_sizes(config)
    if spec.reads_features:
        return spec.build(config)
    if spec.open_own_files is not None:
        return spec.open_own_files(config, path.parent)
    # Without values, since drawing random weights that are replaced takes seconds.
    with torch.device("meta"):
        encoder = spec.build(config)
    start = "encoder."
    own = {name[len(start) :]: value for name, value in weights.items() if name.startswith(start)}
    known_shapes = {name: value.shape for name, value in encoder.state_dict().items()}
    if all(name in own and own[name].shape == shape for name, shape in known_shapes.items()):
        encoder.load_state_dict({name: own[name] for name in known_shapes}, assign=True)
        return encoder
    num_expected = sum(shape.numel() for shape in known_shapes.values())
    num_stored = sum(value.numel() for value in weights.values())
    if num_expected > 2 * num_stored + MARGIN:
        raise CheckpointError(
            f"{path}: describes an encoder of {num_expected:,} weights, {WEIGHTS} holds "
            f"{num_stored:,}"
        )
    # The builder of the method will change the towers, and with them names or shapes.
    return spec.build(config)


def _assign(method: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    state = method.state_dict()
    for title, names in (
        ("are missing", set(state) - set(weights)),
        ("are not of this model", set(weights) - set(state)),
    ):
        if names:
            first_names = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            raise CheckpointError(
                f"{folder / WEIGHTS}: {len(names)} weights {title}: {first_names}; the file does "
                f"not belong to this {CONFIG}"
            )
    for name, value in state.items():
        if weights[name].shape != value.shape:
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} is {list(weights[name].shape)}, {CONFIG} says "
                f"{list(value.shape)}"
            )
    # Assigned, not copied, so that a model in half precision stays in half precision.
    method.load_state_dict(weights, assign=True)


# Head of a model: the weights of a method without its towers, which re-ranks with the features of
# the model's towers. ``MODEL/head`` contains ``config.json`` and ``model.safetensors``. The store
# of a model contains features of the towers and does not depend on the head: a head may be added,
# replaced or removed without indexing again.

HEAD_FORMAT = 1
TOWERS = "encoder."


def save_head(method: Method, folder: Path | str, *, storage: Storage = "full") -> None:
    """Write a method without its towers; ``storage`` as in :func:`save`.

    A method trained on stored features must have no adapters, since a head reads the features of
    the towers.
    """
    folder = Path(folder)
    own = {name for name in method.encoder.state_dict() if not name.startswith("logit_")}
    if method.encoder.family == "features" and own:
        raise UsageError(
            f"the method has adapters of its features ({', '.join(sorted(own)[:3])}): a head "
            "beside a model reads the towers' own features; train it with "
            "encoder.config.identity=true"
        )
    config = method.encoder.config
    if isinstance(config, FeatureConfig) and config.scaling != "none":
        raise UsageError(
            "the method was trained on scaled features, but a head beside a model reads the "
            "towers' own features; train it with encoder.config.scaling=none"
        )
    state = method.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    own_state = {name: value for name, value in state.items() if not name.startswith(TOWERS)}
    _write_weights(folder / WEIGHTS, own_state, storage)
    description = {
        "eaglenet_head": HEAD_FORMAT,
        "method": method.name,
        "config": {**dataclasses.asdict(method.config), **_encoder_defaults(method)},
        "dim": method.encoder.dim,
    }
    write_json(folder / CONFIG, description)


def _encoder_defaults(method: Method) -> dict[str, int]:
    """Return settings that the method took from its encoder, since other towers may differ."""
    if getattr(method.config, "num_heads", 0) is not None:
        return {}
    return {"num_heads": default_heads(method.encoder)}


def with_head(model: Method, folder: Path | str) -> Method:
    """Return the method of a head, with the towers, tokenizer and frame settings of ``model``."""
    folder = Path(folder)
    path = folder / CONFIG
    try:
        plain = untrusted.read_json(path)
        weights = from_int8(read_safetensors(folder / WEIGHTS))
    except Exception as error:  # A damaged file can fail in any way.
        raise CheckpointError(f"{folder}: the head cannot be read ({error})") from error
    if not isinstance(plain, dict) or plain.get("eaglenet_head") != HEAD_FORMAT:
        raise CheckpointError(
            f"{path}: not a head of format {HEAD_FORMAT}; upgrade eaglenet, or write the head again"
        )
    if plain.get("dim") != model.encoder.dim:
        raise CheckpointError(
            f"{path}: a head for features {plain.get('dim')} wide, but those of the model are "
            f"{model.encoder.dim}; it belongs to another model"
        )
    try:
        spec = METHODS[str(plain["method"])]
        config = from_plain(spec.config_class, plain["config"], where="config")
        check_sizes(config)
        method = spec.build(config, model.encoder)
    except (UsageError, TypeError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}; write the head again") from error
    state = {
        name: value for name, value in method.state_dict().items() if not name.startswith(TOWERS)
    }
    wrong = sorted(set(state) ^ set(weights))
    wrong += [
        name for name in state if name in weights and weights[name].shape != state[name].shape
    ]
    if wrong:
        raise CheckpointError(f"{folder / WEIGHTS}: does not fit {CONFIG}: {', '.join(wrong[:5])}")
    method.load_state_dict(weights, strict=False)
    method.tokenizer, method.frame_spec = model.tokenizer, model.frame_spec
    method.habits = model.habits
    return method.to(model.device).eval()
