"""Open a store for writing: make it, or check that it was made in the same way."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from eaglenet.errors import ModelNotFoundError, StoreError, UsageError
from eaglenet.methods.base import Method
from eaglenet.methods.folder import is_packaged
from eaglenet.search.reranking import prepare_for_store
from eaglenet.search.store.layout import FeatureLayout
from eaglenet.search.store.locking import writer_lock
from eaglenet.search.store.manifest import NAME, Manifest, Splitting, model_identity
from eaglenet.search.store.publishing import publish
from eaglenet.search.store.snapshot import CURRENT, FOLDER
from eaglenet.search.store.tables import ClipStore, disk_errors
from eaglenet.types import Clips, FrameSpec

DEFAULT_MODEL = "openai/clip-vit-base-patch32"


def model_of(folder: Path) -> str:
    """The model to index with where none is named: the store's own, or else the default."""
    if not (folder / NAME).exists():
        return DEFAULT_MODEL
    name = Manifest.read(folder).model
    require_model(folder, name)
    return name


def require_model(folder: Path, name: str) -> None:
    """Say so where the model folder that a store was made with is gone."""
    if os.path.isabs(name) and not os.path.exists(name):
        raise StoreError(
            f"the model of {folder} was in {name}, where nothing is now; say where it is with "
            "--model FOLDER (in Python: model=)"
        )


def load_model(name: str) -> Method:
    """The model to index with; nothing has been written yet when this fails."""
    from eaglenet.methods.folder import load

    try:
        method = load(name)
    except ModelNotFoundError as error:
        if name != DEFAULT_MODEL:
            raise
        raise ModelNotFoundError(
            f"the default model {name} could not be had ({error}); nothing was written. Pass a "
            "folder with --model FOLDER, or --model demo to try the tool on the demo world"
        ) from error
    if method.tokenizer is None:
        raise ModelNotFoundError(
            f"{name} has no tokenizer, so no sentence could be searched; save the model with one"
        )
    return method


def place(method: Method, device: torch.device | str) -> Method:
    """The model on a device that is there."""
    try:
        return method.to(device)
    # torch: an unknown name is a RuntimeError, a build without CUDA an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"the model cannot be put on --device {device} ({reason}); give cpu, cuda or cuda:N "
            "of a GPU that this machine has, or leave the option out for cpu"
        ) from error


def describe(
    method: Method,
    model: str,
    spec: FrameSpec,
    splitting: Splitting,
    roots: Sequence[Path],
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
    place = Path(model).expanduser()
    # A folder that happens to be called like a packaged model or a hub id is not a model.
    is_model = not is_packaged(model) and any(
        (place / part / "config.json").is_file() for part in (".", "model")
    )
    return Manifest(
        model=os.path.abspath(place) if is_model or place.is_file() else model,
        identity=model_identity(method),
        method=method.name,
        dim=dim,
        frame_spec=spec,
        splitting=splitting,
        layout=FeatureLayout.of(features, prepared),
        roots=tuple(os.path.abspath(root) for root in roots),
    )


@contextmanager
def open_for_writing(folder: Path, wanted: Manifest) -> Iterator[tuple[Manifest, ClipStore]]:
    """The store in ``folder``, held against other writers; made if there is none."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; give a folder for --store")
    if not (folder / NAME).exists() and (folder / "clips.lance").exists():
        # The manifest is written before the tables, so it did not get lost in a crash.
        raise StoreError(
            f"{folder} holds a store's tables but no {NAME}, which says with what model and "
            "settings they were made; restore it, or give another --store"
        )
    if folder.exists() and not (folder / NAME).exists() and _has_other_things(folder):
        raise StoreError(f"{folder} holds other files and is no store; give another --store")
    if (folder / NAME).exists():
        # Before the lock, so that a wrong model is told even while another writer works.
        Manifest.read(folder).require_same(wanted, folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with writer_lock(folder):
        manifest = _write_manifest(folder, wanted)
        from eaglenet.search.store.lance import LanceStore

        store = LanceStore(folder, manifest.layout, manifest.dim)
        if not (folder / FOLDER / CURRENT).exists():
            publish(folder, store, manifest.layout, manifest.dim)
        yield manifest, store


def _has_other_things(folder: Path) -> bool:
    ours = {"writer.lock", FOLDER, "clips.lance", "files.lance"}
    return any(path.name not in ours and not path.name.startswith(".") for path in folder.iterdir())


def _write_manifest(folder: Path, wanted: Manifest) -> Manifest:
    manifest = wanted
    if (folder / NAME).exists():
        stored = Manifest.read(folder)
        stored.require_same(wanted, folder)
        roots = tuple(dict.fromkeys([*stored.roots, *wanted.roots]))
        manifest = dataclasses.replace(wanted, roots=roots, layout=stored.layout)
        if manifest == stored:
            return stored
    with disk_errors(folder):
        manifest.write(folder)
    return manifest
