"""A head beside a model: the weights of a method without its towers, which re-ranks with theirs.

``MODEL/head`` holds ``config.json`` and ``model.safetensors``. The store of a model does not know
of it: coarse vectors and stored frames are the towers' own, so a head may come, change or go
without indexing again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import safetensors.torch

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.core.files import write_json, write_tensors
from eaglenet.core.settings import from_plain
from eaglenet.encoders.clip_config import check_sizes
from eaglenet.encoders.features import FeatureConfig
from eaglenet.layers.transformer import default_heads
from eaglenet.methods.base import METHODS, Method
from eaglenet.models.files import CONFIG, WEIGHTS
from eaglenet.models.folder import Storage, from_int8, to_int8

FORMAT = 1
TOWERS = "encoder."


def save_head(method: Method, folder: Path | str, *, storage: Storage = "full") -> None:
    """Write all of a method but its towers; ``storage`` as of :func:`.folder.save`.

    A method that was trained on stored features has none, and may not have adapters either: these
    would be missing where real towers give the features.
    """
    folder = Path(folder)
    own = {name for name in method.encoder.state_dict() if not name.startswith("logit_")}
    if method.encoder.family == "features" and own:
        raise UsageError(
            f"the method has adapters of its features ({', '.join(sorted(own)[:3])}): a head "
            "beside a model reads the towers' own; train it with encoder.config.identity=true"
        )
    config = method.encoder.config
    if isinstance(config, FeatureConfig) and config.scaling != "none":
        raise UsageError(
            "the method was trained on scaled features, and a head beside a model reads the "
            "towers' own; train it with encoder.config.scaling=none"
        )
    weights = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in method.state_dict().items()
        if not name.startswith(TOWERS)
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS, to_int8(weights) if storage == "int8" else weights)
    description = {
        "eaglenet_head": FORMAT,
        "method": method.name,
        "config": {**dataclasses.asdict(method.config), **_settled(method)},
        "dim": method.encoder.dim,
    }
    write_json(folder / CONFIG, description)


def _settled(method: Method) -> dict[str, int]:
    """What a method takes from its encoder where nothing is set: real towers may have another."""
    if getattr(method.config, "num_heads", 0) is not None:
        return {}
    return {"num_heads": default_heads(method.encoder)}


def with_head(model: Method, folder: Path | str) -> Method:
    """A method of the head in ``folder`` on the towers, tokenizer and frames of ``model``."""
    folder = Path(folder)
    path = folder / CONFIG
    try:
        plain = untrusted.read_json(path)
        weights = from_int8(safetensors.torch.load_file(folder / WEIGHTS))
    except Exception as error:  # a damaged file can fail in any way
        raise CheckpointError(f"{folder}: the head cannot be read ({error})") from error
    if not isinstance(plain, dict) or plain.get("eaglenet_head") != FORMAT:
        raise CheckpointError(
            f"{path}: not a head of form {FORMAT}; upgrade eaglenet, or write the head again"
        )
    if plain.get("dim") != model.encoder.dim:
        raise CheckpointError(
            f"{path}: a head for features {plain.get('dim')} wide, the model gives "
            f"{model.encoder.dim}; it belongs to another model"
        )
    try:
        spec = METHODS[str(plain["method"])]
        config = from_plain(spec.config_class, plain["config"], where="config")
        check_sizes(config)
        method = spec.build(config, model.encoder)
    except (UsageError, TypeError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}; write the head again") from error
    expected = {
        name: value for name, value in method.state_dict().items() if not name.startswith(TOWERS)
    }
    wrong = sorted(set(expected) ^ set(weights))
    wrong += [name for name in expected if name in weights and name not in wrong
              and weights[name].shape != expected[name].shape]  # fmt: skip
    if wrong:
        raise CheckpointError(f"{folder / WEIGHTS}: does not fit {CONFIG}: {', '.join(wrong[:5])}")
    method.load_state_dict(weights, strict=False)
    method.tokenizer, method.frame_spec = model.tokenizer, model.frame_spec
    method.habits = model.habits
    return method.to(model.device).eval()
