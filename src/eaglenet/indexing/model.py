"""The model of an index run, with the manifest and the hubness bank of the store.

Some clips are close to every text and would match every query. Their scores are lowered by a
hubness offset, computed from a fixed bank of texts when they are indexed (``scoring.hubness`` has
the arithmetic, ``store.hubness`` the stored form).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of, require_torch
from eaglenet.core.files import expand_home
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.core.progress import activity
from eaglenet.encoders import hardware
from eaglenet.indexing.decoding import with_shared_frames
from eaglenet.indexing.options import OFF, OWN, HubnessChoice, IndexOptions
from eaglenet.models.files import CHECK_TEXTS, check_frames, check_vectors, head_folder, is_packaged
from eaglenet.models.light_model import LightModel, mean_of_frames, unit
from eaglenet.search.model import require_model, require_model_name
from eaglenet.search.query import clean_text
from eaglenet.store.hubness import TEMPERATURE, HubnessBank
from eaglenet.store.manifest import SECONDS, Layout, Manifest, cannot_mix
from eaglenet.store.object_storage import absolute_location
from eaglenet.store.store import kind_of

if TYPE_CHECKING:
    from eaglenet.methods.base import Method

DEFAULT_MODEL = "small"
"""Part of the package, so it needs no network."""
MAX_TEXTS = 16_384
"""Maximum texts of a hubness bank."""
BATCH_TEXTS = 256


class ModelSource:
    """The model of one or several runs, loaded when it is first needed."""

    def __init__(
        self,
        store: str | Path,
        model: str | None,
        options: IndexOptions,
        method: Method | None = None,
    ) -> None:
        self.store = store
        self.options = options
        self._model = model
        self._method = method

    @cached_property
    def name(self) -> str:
        """The requested model, or the model of the store, or ``small`` for a new store."""
        if self._model is not None:
            return self._model
        kind = kind_of(self.store)
        if not kind.exists(str(self.store)):
            return DEFAULT_MODEL
        store = kind.open(str(self.store))
        require_model(store)
        return store.manifest.model

    @cached_property
    def method(self) -> Method | LightModel:
        """The model; it runs without torch if that is possible and as fast."""
        with activity(f"loading the model {self.name}"):
            return self._load()

    def _load(self) -> Method | LightModel:
        method = self._method
        if method is None:
            if self._model is not None:
                require_model_name(self._model)
            refuse_other_model(self.store, self.name)
            if uses_light_model(self.name, self.options):
                return load_light(self.name)
        require_torch(f"indexing with the model {self.name!r} and these options")
        from eaglenet.search.torch_model import load_model, move_to_device

        if method is None:
            method = load_model(self.name)
        method.eval()
        if self.options.device != "auto" or self._method is None:
            move_to_device(method, self.options.device)
        hardware.choose_precision(method.device, self.options.precision)
        return method

    def manifest(self, roots: Sequence[str]) -> Manifest:
        """Return the manifest to open the store with: its own if it was made with these settings.

        The model is compared only when there is something to encode.
        """
        manifest = self._stored_manifest()
        if manifest is not None:
            return dataclasses.replace(manifest, roots=tuple(roots))
        return self._make_manifest(roots)

    def hubness_bank(self) -> HubnessBank | None:
        """Return the requested bank, or the model's for a new store; None if there is neither."""
        choice = self.options.hubness
        if choice == OFF or (choice is None and kind_of(self.store).exists(str(self.store))):
            return None
        return choose_hubness_bank(choice, self.method, self.name)

    def require_same(self, manifest: Manifest, roots: Sequence[str]) -> None:
        """Raise an error if the model is not the one that the store was made with."""
        manifest.require_same(self._make_manifest(roots), str(self.store))

    def _make_manifest(self, roots: Sequence[str]) -> Manifest:
        method = self.method
        spec = dataclasses.replace(method.frame_spec, fast=self.options.fast)
        splitting = with_shared_frames(self.options.splitting, spec)
        if isinstance(method, LightModel):
            return make_light_manifest(method, self.name, spec, splitting, roots)
        from eaglenet.search.torch_model import make_manifest

        return make_manifest(
            method, self.name, spec, splitting, roots, prepare=self.options.prepare
        )

    def _stored_manifest(self) -> Manifest | None:
        """Return the manifest of a store with these settings; None if the model must be loaded."""
        kind = kind_of(self.store)
        if self._method is not None or not kind.exists(str(self.store)):
            return None
        manifest = kind.open(str(self.store)).manifest
        splitting = dataclasses.replace(
            self.options.splitting, frame_step=manifest.splitting.frame_step
        )
        is_same = (
            self._model in (None, manifest.model)
            and splitting == manifest.splitting
            and self.options.fast == manifest.frame_spec.fast
        )
        return manifest if is_same else None


def uses_light_model(name: str, options: IndexOptions) -> bool:
    """Return whether a run encodes without torch: with a compact model, on this machine's CPU.

    Where torch is installed and faster, on a GPU or a CPU with bf16, the run uses torch.
    """
    if not LightModel.supports(name) or options.prepare or options.executor != "local":
        return False
    if options.device not in ("auto", "cpu") or options.precision not in ("auto", "fp32", "int8"):
        return False
    if not hardware.is_torch_installed():
        return True
    is_gpu = options.device == "auto" and hardware.has_gpu()
    is_bf16 = options.precision == "auto" and hardware.has_fast_bf16("cpu")
    return not is_gpu and not is_bf16


def refuse_other_model(location: str | Path, name: str) -> None:
    """Refuse a model that cannot be the one of the store, before it is downloaded and loaded.

    Only packaged models are compared by name: a folder may contain a copy of one.
    """
    kind = kind_of(location)
    if not kind.exists(str(location)):
        return
    store_model = kind.open(str(location)).manifest.model
    if store_model != name and is_packaged(store_model) and not expand_home(name).exists():
        raise cannot_mix(str(location), [f"model {store_model!r} (now {name!r})"])


def load_light(name: str) -> LightModel:
    """Open a compact model for indexing, and check its outputs."""
    model = LightModel.open(name)
    frames = check_frames(model.frame_spec.size)
    mask = np.ones(frames.shape[:2], np.bool_)
    images = mean_of_frames(model.encode_frames(frames, mask), mask)
    check_vectors(name, images, unit(model.encode_texts(CHECK_TEXTS)))
    return model


def make_light_manifest(
    model: LightModel, name: str, spec: FrameSpec, splitting: Splitting, roots: Sequence[str | Path]
) -> Manifest:
    """Make the manifest of a store; equal to that of the same model in torch."""
    shape = (1, spec.num_frames)
    arrays = {
        "frames": np.zeros((*shape, model.dim), np.float32),
        "mask": np.ones(shape, np.bool_),
        SECONDS: np.zeros(shape, np.float32),
    }
    return Manifest(
        model=name if is_packaged(name) else os.path.abspath(expand_home(name)),
        identity=model.identity,
        method=model.name,
        dim=model.dim,
        frame_spec=spec,
        splitting=splitting,
        layout=Layout.of(arrays),
        roots=tuple(absolute_location(root) for root in roots),
    )


def read_hubness_texts(choice: HubnessChoice) -> tuple[str, ...]:
    """Return the texts of a file or sequence; none for ``own`` and ``off``."""
    if choice is None or choice in (OWN, OFF):
        return ()
    if isinstance(choice, str):
        return read_text_file(choice, "own, off, or ")
    return _unique_texts(choice)


def read_text_file(path: str, alternatives: str = "") -> tuple[str, ...]:
    """Read unique texts, one per line; ``alternatives`` is for the error message."""
    try:
        text = untrusted.read_text(expand_home(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot read it ({cause_of(error)}); use {alternatives}a file with one text "
            "per line"
        ) from error
    return _unique_texts(text.splitlines())


def _unique_texts(lines: Sequence[str]) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(clean_text(line) for line in lines if line.strip()))
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise UsageError(
            f"a hubness bank of {len(texts)} texts; use 1 to {MAX_TEXTS}, best about a thousand "
            "that resemble the queries of your users"
        )
    return texts


def choose_hubness_bank(
    choice: HubnessChoice, method: Method | LightModel, model: str
) -> HubnessBank | None:
    """Return the chosen bank, encoded with this model; None without a bank."""
    if choice is None or choice == OWN:
        bank = model_hubness_bank(method, model)
        if bank is None and choice == OWN:
            raise UsageError(
                f"hubness own: {model} has no hubness bank; use a file with one text per line, "
                "or off"
            )
        return bank
    texts = read_hubness_texts(choice)
    return encode_hubness_bank(texts, method) if texts else None


def model_hubness_bank(method: Method | LightModel, model: str) -> HubnessBank | None:
    """Return the bank that was saved with a model or with the head beside it."""
    if isinstance(method, LightModel):
        bank = method.bank
        parts = None if bank is None else (bank.vectors, bank.weight, bank.scale)
    else:
        from eaglenet.search.torch_model import hubness_layer

        parts = hubness_layer(method, head_folder(model))
    return None if parts is None else HubnessBank("of the model's own", *parts)


def encode_hubness_bank(texts: Sequence[str], method: Method | LightModel) -> HubnessBank:
    """Encode texts as a bank, with the weight and temperature of ``evaluate --hubness``."""
    if isinstance(method, LightModel):
        vectors = unit(method.encode_texts(texts))
    else:
        from eaglenet.search.torch_model import TorchModel

        starts = range(0, len(texts), BATCH_TEXTS)
        batches = (texts[start : start + BATCH_TEXTS] for start in starts)
        model = TorchModel(method)
        vectors = np.concatenate([model.encode_texts(batch).vectors for batch in batches])
    return HubnessBank("given", vectors, 1.0, TEMPERATURE, tuple(texts))
