"""Models in torch: loading, checks, search, and manifests of their stores."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eaglenet.core.errors import ModelNotFoundError, UsageError
from eaglenet.core.files import expand_home
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.types import Clips, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.hardware import AUTO, require_device
from eaglenet.encoders.hub import exact_name
from eaglenet.methods.base import Method, evaluating
from eaglenet.models.files import (
    CHECK_TEXTS,
    SAMPLED_VALUES,
    check_frames,
    check_vectors,
    hash_model,
    head_folder,
    is_packaged,
)
from eaglenet.models.folder import with_head
from eaglenet.scoring import Scorer, choose
from eaglenet.scoring.scorer import ReferenceScorer
from eaglenet.search.model import ClipFeatures, ManifestSource, require_identity, require_model
from eaglenet.store.manifest import Layout, Manifest, feature_arrays, video_features
from eaglenet.store.object_storage import absolute_location

logger = logging.getLogger(__name__)

CACHE_BYTES = 384 * 2**20
"""Size of the cache of prepared clips: 3,000 clips of EagleNet. Preparing a clip takes half as long
as scoring it, and some clips are on the shortlists of many texts."""

Rows = Mapping[str, Tensor]
"""Tensors by name; index 0 of each runs over the keys."""


def load_model(name: str) -> Method:
    """Load a model for indexing, and check its outputs."""
    from eaglenet.models.folder import load

    method = load(name)
    if method.tokenizer is None:
        raise ModelNotFoundError(
            f"{name} has no tokenizer, so it cannot encode texts; save the model with a tokenizer. "
            "A head trained on stored features has none: to search with a head, train it with "
            "--data folder --tower small-frozen"
        )
    check_method(method, name)
    return method


def load_for_search(
    store: ManifestSource, model: str | Path | Method | None, device: torch.device | str
) -> Method:
    """Load the model of a store, and check that it is the one that the store was made with.

    ``model``: its new location, or a loaded model. ``device`` ``auto`` uses a GPU if there is one,
    and leaves a loaded model on its device.
    """
    from eaglenet.models.folder import load_for_texts

    if isinstance(model, Method):
        require_identity(store, model.name, model_identity(model), is_location=False)
        model.eval()
        return model if device == AUTO else move_to_device(model, device)
    if model is None:
        require_model(store)
    name = store.manifest.model if model is None else str(model)
    method = load_for_texts(name)
    require_identity(store, name, model_identity(method))
    method.eval()
    # The head ranks shortlists; the vectors of the store come from the towers alone.
    head = head_folder(name)
    if head is not None:
        method = with_head(method, head)
    method = move_to_device(method, device)
    release_image_tower(method, name)
    return method


@torch.no_grad()
def check_method(method: Method, name: str) -> None:
    """Raise an error if the weights did not load; see :func:`.weights.check_vectors`."""
    frames = torch.from_numpy(check_frames(method.frame_spec.size))
    clips = Clips(frames, torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1))
    texts = None
    with evaluating(method):
        images = method.coarse_vectors(method.encode_video(clips.to(method.device)))
        if method.tokenizer is not None:
            tokens = method.tokenizer(CHECK_TEXTS)
            texts = _to_numpy(method.coarse_vectors(method.encode_text(tokens.to(method.device))))
    check_vectors(name, _to_numpy(images), texts)


def move_to_device(method: Method, device: torch.device | str) -> Method:
    """Move a model to a device; ``auto`` uses a GPU if there is one."""
    target = require_device(device)
    try:
        return method.to(target)
    # torch raises RuntimeError for full memory, AssertionError for a build without the device.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"the model cannot be moved to device {device} ({reason}); use cpu"
        ) from error


def release_image_tower(method: Method, name: str) -> None:
    """Free the image tower; it is loaded again when a query has an image."""
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
    """Make the manifest of a store; the layout is that of an encoded black clip.

    ``prepare``: also store what the exact scorer computes from a clip alone.
    """
    frames = torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.ones(1, spec.num_frames, dtype=torch.bool)
    clips = Clips(frames, mask, torch.zeros(1, spec.num_frames)).to(method.device)
    with torch.no_grad():
        features = method.encode_video(clips)
        dim = method.coarse_vectors(features).shape[-1]
        rows = prepare_for_store(method, features) if prepare else None
    path = expand_home(model)
    # Not any folder that happens to have the name of a packaged model or a hub id.
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
        layout=Layout.of(feature_arrays(features, method.feature_seconds(features, clips), rows)),
        roots=tuple(absolute_location(root) for root in roots),
    )


def model_identity(method: Method) -> str:
    """Return the hash of the name, the configuration and a sample of the weights of a method."""

    def samples() -> Iterator[tuple[str, tuple[int, ...], NDArray[np.float32]]]:
        for name, tensor in sorted(method.state_dict().items()):
            flat = tensor.detach().reshape(-1)
            step = max(1, flat.numel() // SAMPLED_VALUES)
            # In single precision: weights stored in half precision are another model.
            yield name, tuple(tensor.shape), _to_numpy(flat[::step])

    return hash_model(method.name, getattr(method, "config", None), samples())


@torch.no_grad()
def hubness_layer(
    method: Method, head: Path | None
) -> tuple[NDArray[np.float32], float, float] | None:
    """Return vectors, weight and scale of the hubness bank of a model or its head, if any."""
    if head is not None:
        # Attach the head to a copy that shares the weights, because a head may modify the towers.
        shared_tensors = (*method.parameters(), *method.buffers(), method.tokenizer)
        method = with_head(copy.deepcopy(method, {id(each): each for each in shared_tensors}), head)
    if method.hubness_layer is None:
        return None
    bank, scale = method.hubness_layer
    return _to_numpy(bank.stored_vectors()), bank.weight, float(scale)


class RowCache:
    """Least-recently-used cache of rows of tensors, limited in bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._indices: OrderedDict[Hashable, int] = OrderedDict()
        self._tables: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def gather(
        self, keys: Sequence[Hashable], compute: Callable[[list[int]], Rows]
    ) -> dict[str, Tensor]:
        """Return the rows of ``keys``; call ``compute`` for those that are not cached.

        It receives their positions in ``keys``, and may run in several threads at once. Copies of
        a file have equal keys.
        """
        first_positions = {key: number for number, key in reversed(list(enumerate(keys)))}
        with self._lock:
            positions = sorted(
                number for key, number in first_positions.items() if key not in self._indices
            )
            if not positions:
                return self._read(keys)
            for key in keys:
                if key in self._indices:
                    self._indices.move_to_end(key)
        rows = compute(positions)
        with self._lock:
            self._write([keys[number] for number in positions], rows)
            if all(key in self._indices for key in keys):
                return self._read(keys)
        # The cache is too small, or another thread evicted some rows.
        return dict(rows if len(positions) == len(keys) else compute(list(range(len(keys)))))

    def _read(self, keys: Sequence[Hashable]) -> dict[str, Tensor]:
        for key in keys:
            self._indices.move_to_end(key)
        indices = torch.tensor([self._indices[key] for key in keys])
        return {name: table.index_select(0, indices) for name, table in self._tables.items()}

    def _write(self, keys: Sequence[Hashable], rows: Rows) -> None:
        if not self._tables:
            self._tables = self._allocate(rows)
        capacity = len(next(iter(self._tables.values()), ()))
        new_keys = [number for number, key in enumerate(keys) if key not in self._indices]
        new_keys = new_keys[-capacity:]
        if not capacity or not new_keys:
            return
        indices = []
        for number in new_keys:
            index = len(self._indices)
            if index >= capacity:
                _, index = self._indices.popitem(last=False)
            self._indices[keys[number]] = index
            indices.append(index)
        for name, table in self._tables.items():
            table[torch.tensor(indices)] = rows[name][new_keys]

    def _allocate(self, rows: Rows) -> dict[str, Tensor]:
        """Allocate tables for as many rows as fit; memory is committed when it is written."""
        row_bytes = sum(value[0].numel() * value.element_size() for value in rows.values())
        capacity = self.max_bytes // max(row_bytes, 1)
        return {name: value.new_empty((capacity, *value.shape[1:])) for name, value in rows.items()}


class TorchTexts:
    """Implementation of :class:`eaglenet.search.model.EncodedTexts` in torch."""

    def __init__(self, features: TextFeatures, vectors: NDArray[np.float32]) -> None:
        self.features = features
        self.vectors = vectors

    def __getitem__(self, rows: Sequence[int]) -> TorchTexts:
        indices = list(rows)
        return TorchTexts(self.features[indices], self.vectors[indices])


class TorchModel:
    """Implementation of :class:`eaglenet.search.model.SearchModel` with a :class:`Method`.

    Scores equal those of :func:`eaglenet.scoring.score_all`. The back end is chosen once, because
    that takes as long as scoring a few clips. Clips that the store has in prepared form are not
    prepared again.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._scorer: Scorer | None = None
        self._cache = RowCache(CACHE_BYTES)

    @property
    def device(self) -> str:
        return str(self.method.device)

    @property
    def has_cosine_scores(self) -> bool:
        return self.method.hubness_layer is None and not self.method.is_cross_encoder

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> TorchTexts:
        features = self.method.encode_text(list(texts))
        return TorchTexts(features, _to_numpy(self.method.coarse_vectors(features)))

    def is_cut(self, text: str) -> bool:
        tokens = self.method.tokenize([text])
        # The end of a text that just fits is a token, or a part of one.
        is_full = bool(tokens.mask[0, -1])
        return is_full and torch.equal(tokens.ids, self.method.tokenize([text[:-1]]).ids)

    @torch.no_grad()
    def encode_frames(
        self, frames: NDArray[np.uint8], mask: NDArray[np.bool_], seconds: NDArray[np.float32]
    ) -> ClipFeatures:
        clips = Clips(*(torch.from_numpy(array) for array in (frames, mask, seconds)))
        features = self.method.encode_video(clips.to(self.method.device))
        return ClipFeatures(feature_arrays(features, self.method.feature_seconds(features, clips)))

    @torch.no_grad()
    def vectors(self, clips: ClipFeatures) -> NDArray[np.float32]:
        return _to_numpy(self.method.coarse_vectors(self._features(clips)))

    @torch.no_grad()
    def score(self, texts: TorchTexts, clips: ClipFeatures) -> NDArray[np.float32]:
        features, _, stored_rows = video_features(clips.arrays, self.method.device)
        if not len(features):
            return np.zeros((len(texts.vectors), 0), np.float32)
        scorer = self._scorer_for(features)
        is_on_cpu = features.frames.device.type == "cpu"
        rows: Rows | None = stored_rows if stored_rows and is_on_cpu else None
        if rows is None and clips.keys is not None and is_on_cpu:
            rows = self._prepare(scorer, features, clips.keys)
        tiles = []
        for start in range(0, len(features), scorer.tile_videos):
            tile = slice(start, start + scorer.tile_videos)
            prepared_tile = (
                scorer.prepare(features[tile])
                if rows is None
                else {name: value[tile] for name, value in rows.items()}
            )
            tiles.append(scorer.score(texts.features, prepared_tile))
        return _to_numpy(torch.cat(tiles, dim=1))

    @torch.no_grad()
    def frame_scores(self, texts: TorchTexts, clips: ClipFeatures) -> NDArray[np.float32]:
        features = self._features(clips)
        scores = self.method.frame_scores(texts.features, features)
        return _to_numpy(scores.masked_fill(~features.mask[None], float("-inf")))

    def _features(self, clips: ClipFeatures) -> VideoFeatures:
        return video_features(clips.without_prepared().arrays, self.method.device)[0]

    def _scorer_for(self, features: VideoFeatures) -> Scorer:
        if self._scorer is None:
            scorer = choose(self.method, features)
            scorer.allow_shortcuts()
            self._scorer = scorer
        return self._scorer

    def _prepare(
        self, scorer: Scorer, features: VideoFeatures, keys: Sequence[Hashable]
    ) -> Rows | None:
        """Prepare clips for the scorer, using the cache; None if the scorer does not use it."""
        if isinstance(scorer, ReferenceScorer):
            return None
        return self._cache.gather(keys, lambda positions: scorer.prepare(features[positions]))


@torch.no_grad()
def prepare_for_store(method: Method, features: VideoFeatures) -> Rows:
    """Prepare videos for the factorised scorer; raise an error if the model has none."""
    return choose(method, features, backend="factorised").prepare(features)  # type: ignore[no-any-return]


def _to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array
