"""The model of a store: which one it is, loading it, and what a store of it holds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eaglenet.core.errors import (
    CheckpointError,
    ModelNotFoundError,
    StoreError,
    UsageError,
    shell_quote,
)
from eaglenet.core.hardware import AUTO, require_device
from eaglenet.core.object_storage import absolute_location
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.hub import exact_name
from eaglenet.methods.base import Method, evaluating
from eaglenet.models.folder import is_packaged
from eaglenet.models.head import head_folder, with_head
from eaglenet.search.reranking import prepare_for_store
from eaglenet.search.store.base import Store, kind_of
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.manifest import Manifest, Splitting, not_to_mix

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "small"
"""Ships with the package, so it needs no network."""
SAMPLED_VALUES = 4096
"""Values per tensor that a model's identity is computed from."""


def uses_default_model(location: str | Path, model: str | None) -> bool:
    """Whether indexing makes a new store with the default model."""
    return model is None and not kind_of(location).exists(str(location))


def model_for_store(location: str | Path) -> str:
    """Name of the model to index with if none is given: the store's own, or else the default."""
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return DEFAULT_MODEL
    store = kind.open(str(location))
    require_model(store)
    return store.manifest.model


def refuse_other_model(location: str | Path, name: str) -> None:
    """Refuse a model that cannot be the store's, before it is downloaded and loaded.

    Names of packaged models are compared; a folder may hold a copy of one.
    """
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return
    own = kind.open(str(location)).manifest.model
    if own != name and is_packaged(own) and not Path(name).expanduser().exists():
        raise not_to_mix(str(location), [f"model {own!r} (now {name!r})"])


def require_model(store: Store) -> None:
    """Raise an error if the model folder of a store no longer exists."""
    name = store.manifest.model
    if os.path.isabs(name) and not os.path.exists(name):
        raise StoreError(
            f"the model of {store.location} was in {name}, which no longer exists; give its new "
            "location with --model FOLDER (in Python: model=)"
        )


def load_model(name: str) -> Method:
    """Load a model to index with, and check it before anything is written."""
    from eaglenet.models.folder import load

    method = load(name)
    if method.tokenizer is None:
        raise ModelNotFoundError(
            f"{name} has no tokenizer, so it cannot encode queries; save the model with one"
        )
    check_vectors(method, name)
    return method


def load_for_search(
    store: Store, model: str | Path | Method | None, device: torch.device | str
) -> Method:
    """Load the model of a store, and check that it is the one that made the store.

    ``model`` is its new location, or the model itself, which stays on its device. ``device``
    ``auto`` uses a GPU if there is one.
    """
    from eaglenet.models.folder import load_for_texts

    manifest = store.manifest
    source = model if model is not None else manifest.model
    method = source
    if not isinstance(method, Method):
        if model is None:
            require_model(store)
        method = load_for_texts(str(source))
    if model_identity(method) != manifest.identity:
        name = source.name if isinstance(source, Method) else str(source)
        if not isinstance(source, Method) and name == manifest.model:
            raise StoreError(
                f"{store.location} was made with other weights of {name!r}: the model has changed, "
                "or is from another version of eaglenet. Index the same files into a new store, "
                "which replaces this one when it is complete: eaglenet index --store NEW --like "
                f"{shell_quote(store.location)} --model {shell_quote(name)} --swap"
            )
        raise StoreError(
            f"{store.location} was made with another model than {name!r}, whose vectors cannot be "
            f"compared. Use --model {shell_quote(manifest.model)}, or index into a new store"
        )
    method.eval()
    # A head beside the model ranks shortlists; the vectors of the store come from its towers.
    head = None if isinstance(source, Method) else head_folder(str(source))
    if head is not None:
        method = with_head(method, head)
    if device != AUTO or not isinstance(source, Method):
        method = move_to_device(method, device)
    if not isinstance(source, Method):
        release_image_tower(method, str(source))
    return method


@torch.no_grad()
def check_vectors(method: Method, name: str) -> None:
    """Refuse a model that gives all images, or all texts, the same vector.

    With weights that are zero or did not load, no query could tell clips apart. A text about one of
    two images must also be nearer to it: otherwise a packaged model is damaged. For other models
    this is a warning, because they may be untrained on purpose.
    """
    size = method.frame_spec.size
    shades = torch.linspace(0, 255, size)
    # They differ in shape and in colour: a model may distinguish only one of these.
    orange, blue = (
        torch.tensor(colour).view(3, 1, 1) for colour in ((1.0, 0.6, 0.2), (0.1, 0.3, 0.9))
    )
    across, down = shades.expand(size, size), shades.flip(0)[:, None].expand(size, size)
    frames = torch.stack([orange * across, blue * down]).to(torch.uint8)[:, None]
    clips = Clips(frames, torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1))
    with evaluating(method):
        videos = method.coarse_vectors(method.encode_video(clips.to(method.device)))
        texts = videos
        if method.tokenizer is not None:
            tokens = method.tokenizer(["an orange background", "a blue background"])
            texts = method.coarse_vectors(method.encode_text(tokens.to(method.device)))
    for title, vectors in (("images", videos), ("texts", texts)):
        if not bool(torch.isfinite(vectors).all()):
            raise CheckpointError(
                f"{name}: the vectors of {title} are not numbers. Nothing was written"
            )
        if torch.equal(vectors[0], vectors[1]) or not bool(vectors.any()):
            raise CheckpointError(
                f"{name}: different {title} have the same vector, so no search could work; the "
                "weights did not load or were never trained. Nothing was written"
            )
    if method.tokenizer is None:
        return
    cosines = texts @ videos.T
    if bool((cosines.diagonal() > cosines.flip(1).diagonal()).all()):
        return
    problem = (
        f"{name}: a text about an orange or a blue image is nearer to the other image; the weights "
        "are not trained, or the tokenizer belongs to another model"
    )
    if is_packaged(name):
        raise CheckpointError(f"{problem}. Nothing was written; install the package again")
    logger.warning("%s", problem)


def move_to_device(method: Method, device: torch.device | str) -> Method:
    """Move a model to a device; ``auto`` is a GPU if there is one."""
    target = require_device(device)
    try:
        return method.to(target)
    # torch raises RuntimeError for full memory, AssertionError for a build without the device.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"the model cannot be moved to --device {device} ({reason}); use --device cpu"
        ) from error


def release_image_tower(method: Method, name: str) -> None:
    """Free the image tower until a query has an image; most queries are texts."""
    from eaglenet.models.folder import load

    def load_image_tower() -> nn.Module:
        encoder = load(name).encoder
        assert isinstance(encoder, TowerEncoder)
        return encoder.vision

    if isinstance(method.encoder, TowerEncoder):
        method.encoder.release_vision(load_image_tower)


def make_manifest(
    method: Method,
    model: str,
    spec: FrameSpec,
    splitting: Splitting,
    roots: Sequence[str | Path],
    *,
    prepare: bool = False,
) -> Manifest:
    """Make the manifest of a store for a model; encoding a black clip gives the layout.

    ``prepare`` adds what the exact scorer computes from a clip alone.
    """
    frames = torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    clips = Clips(frames, mask, torch.zeros(1, spec.num_frames)).to(method.device)
    with torch.no_grad():
        features = method.encode_video(clips)
        dim = method.coarse_vectors(features).shape[-1]
        prepared = prepare_for_store(method, features) if prepare else None
    path = Path(model).expanduser()
    # A folder that has the name of a packaged model or a hub id is not a model.
    is_model = not is_packaged(model) and any(
        (path / file).is_file()
        for file in ("config.json", "model/config.json", "open_clip_config.json")
    )
    return Manifest(
        model=os.path.abspath(path) if is_model or path.is_file() else exact_name(model),
        identity=model_identity(method),
        method=method.name,
        dim=dim,
        frame_spec=spec,
        splitting=splitting,
        layout=FeatureLayout.of(features, prepared),
        roots=tuple(absolute_location(root) for root in roots),
    )


def model_identity(method: Method) -> str:
    """Hash of the method's name, its configuration and its weights.

    Only settings that differ from their defaults count, so that a new option in a later version
    does not change the identity. Of a large tensor, ``SAMPLED_VALUES`` evenly spaced values count:
    training changes all values, and opening a store must not read gigabytes.
    """
    digest = hashlib.sha256(method.name.encode())
    config = getattr(method, "config", None)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        digest.update(json.dumps(_non_default_values(config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(method.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLED_VALUES)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        # In single precision: the same weights stored in half precision are another model.
        digest.update(flat[::step].to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _non_default_values(config: Any) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {
        spec.name: values[spec.name]
        for spec in dataclasses.fields(config)
        if spec.default is dataclasses.MISSING or getattr(config, spec.name) != spec.default
    }
