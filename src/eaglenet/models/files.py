"""Files and weights of model folders, and packaged models. Does not import torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import CheckpointError
from eaglenet.core.files import expand_home

EXPERIMENT = "experiment.json"
"""Settings of a run, in its folder."""
MODEL = "model"
"""Folder in a run that contains the model of the best epoch."""
WHOLE_MODEL = "whole"
"""Folder in a run on frozen towers: a model of the towers and the trained head."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
HEAD = "head"
"""Folder in a model folder that contains a method for re-ranking shortlists."""
SCALES = "::scales"
"""Suffix of the scales of a matrix stored in int8, one per row."""
PACKAGED = Path(__file__).parent
"""Folder of the models that come with the package."""


def is_packaged(name_or_folder: str | Path) -> bool:
    """Return whether this is the name of a packaged model; a path, even ``./demo``, is not."""
    return (
        isinstance(name_or_folder, str)
        and name_or_folder.isidentifier()
        and (PACKAGED / name_or_folder / CONFIG).is_file()
    )


def local_folder(name_or_folder: str | Path) -> Path:
    """Return the folder of a packaged model, or the path itself."""
    if is_packaged(name_or_folder):
        return PACKAGED / str(name_or_folder)
    return expand_home(name_or_folder)


def model_folder(name_or_folder: str | Path) -> Path | None:
    """Return the folder with the files of a packaged model, model folder or run; else None."""
    folder = local_folder(name_or_folder)
    folders = (folder, folder / WHOLE_MODEL, folder / MODEL)
    return next((each for each in folders if (each / CONFIG).is_file()), None)


def head_folder(model: str | Path) -> Path | None:
    """Return the folder of the head of a model; None if it has none."""
    folder = local_folder(model)
    heads = (folder / HEAD, folder / MODEL / HEAD)
    return next((head for head in heads if (head / CONFIG).is_file()), None)


logger = logging.getLogger(__name__)

Array = NDArray[np.float32]
SAMPLED_VALUES = 4096
"""Values per weight from which a model's identity is computed."""


@dataclass(frozen=True)
class Weight:
    """A stored weight; a matrix in int8 has one scale per row."""

    values: NDArray[Any]
    scales: Array | None = None

    def dequantise(self) -> Array:
        """Return all values in float32."""
        values: Array = self.values.astype(np.float32)
        return values if self.scales is None else values * self.scales[:, None]

    def rows(self, numbers: NDArray[np.int64]) -> Array:
        """Return rows of a matrix; converts only these."""
        values: Array = self.values[numbers].astype(np.float32)
        return values if self.scales is None else values * self.scales[numbers, None]

    def sample(self) -> Array:
        """Return at least ``SAMPLED_VALUES`` values, evenly spaced; of a small weight, all."""
        step = max(1, self.values.size // SAMPLED_VALUES)
        values: Array = self.values.reshape(-1)[::step].astype(np.float32)
        if self.scales is not None:
            values *= self.scales[np.arange(0, self.values.size, step) // self.values.shape[1]]
        return values


class Weights:
    """Weights of a safetensors file by name; each is read when it is used."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            open_file: Any = safe_open
            self._file = open_file(str(path), "numpy")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
        self._names: set[str] = set(self._file.keys())

    @property
    def names(self) -> list[str]:
        """Names in alphabetical order."""
        return sorted(name for name in self._names if not name.endswith(SCALES))

    def read(self, name: str) -> Weight:
        if name not in self._names:
            raise CheckpointError(f"{self.path}: {name} is missing; it belongs to another model")
        values: NDArray[Any] = self._file.get_tensor(name)
        if name + SCALES not in self._names:
            return Weight(values)
        scales: Array = self._file.get_tensor(name + SCALES).astype(np.float32)
        if values.ndim != 2 or scales.shape != (len(values), 1):
            raise CheckpointError(
                f"{self.path}: {name} is {list(values.shape)}, its scales {list(scales.shape)}; "
                "expected one for each row"
            )
        return Weight(values, scales[:, 0])

    def __getitem__(self, name: str) -> Array:
        """Return a weight in float32."""
        return self.read(name).dequantise()


def hash_model(
    method: str, config: Any, samples: Iterable[tuple[str, tuple[int, ...], Array]]
) -> str:
    """Return the identity of a model: a hash of its method, configuration and weights.

    Only settings that differ from their defaults count, so a new option in a later version does
    not change the identity. Of large weights, only evenly spaced values count: training changes all
    values, and opening a store must not read gigabytes.

    Args:
        config: a dataclass; other types count as no configuration.
        samples: name, shape and sampled values of each weight, in alphabetical order.
    """
    digest = hashlib.sha256(method.encode())
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        digest.update(json.dumps(_non_default_values(config), sort_keys=True, default=str).encode())
    for name, shape, values in samples:
        digest.update(f"{name}{shape}".encode())
        digest.update(np.ascontiguousarray(values, np.float32).tobytes())
    return digest.hexdigest()[:32]


def _non_default_values(config: Any) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {
        spec.name: values[spec.name]
        for spec in dataclasses.fields(config)
        if spec.default is dataclasses.MISSING or getattr(config, spec.name) != spec.default
    }


# Check of a model: does it distinguish two images and two texts?

CHECK_TEXTS = ("an orange background", "a blue background")
COLOURS = ((1.0, 0.6, 0.2), (0.1, 0.3, 0.9))


def check_frames(size: int) -> NDArray[np.uint8]:
    """Return an orange and a blue image as videos of one frame, ``[2, 1, 3, size, size]``.

    They differ in shape and in colour, since a model may distinguish only one of these.
    """
    shades = np.linspace(0, 255, size, dtype=np.float32)
    across, down = np.tile(shades, (size, 1)), np.tile(shades[::-1, None], (1, size))
    pairs = zip(COLOURS, (across, down), strict=True)
    images = [np.array(colour, np.float32)[:, None, None] * shade for colour, shade in pairs]
    return np.stack(images).astype(np.uint8)[:, None]


def check_vectors(
    name: str, images: NDArray[np.float32], texts: NDArray[np.float32] | None
) -> None:
    """Refuse a model that gives both images, or both texts, the same vector.

    With weights that are zero or did not load, no query could distinguish clips. A text about one
    of the images must also be nearer to it than to the other. If not, a packaged model is damaged;
    for other models this is a warning, since they may be untrained on purpose.

    Args:
        images, texts: unit vectors of :func:`check_frames` and ``CHECK_TEXTS``.
    """
    for title, vectors in (("images", images), ("texts", images if texts is None else texts)):
        if not np.isfinite(vectors).all():
            raise CheckpointError(
                f"{name}: the vectors of {title} are not numbers. Nothing was written"
            )
        if (vectors[0] == vectors[1]).all() or not vectors.any():
            raise CheckpointError(
                f"{name}: different {title} have the same vector, so no search could work; the "
                "weights did not load or were never trained. Nothing was written"
            )
    if texts is None:
        return
    cosines = texts @ images.T
    if cosines[0, 0] > cosines[0, 1] and cosines[1, 1] > cosines[1, 0]:
        return
    problem = (
        f"{name}: a text about an orange or a blue image is nearer to the other image; the weights "
        "are not trained, or the tokenizer belongs to another model"
    )
    if is_packaged(name):
        raise CheckpointError(f"{problem}. Nothing was written; install the package again")
    logger.warning("%s", problem)
