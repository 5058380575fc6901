"""Compact models such as `small` without torch: texts through numpy, frames through onnxruntime.

``import torch`` takes two seconds and 750 MB on disk; a text query over a store needs neither. The
towers here read the same model folder as :func:`eaglenet.models.folder.load` and give the same
vectors (tests/models/test_light.py compares both).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError

Array = NDArray[np.float32]
CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
SCALES = "::scales"
"""Suffix of the scales of a matrix stored in int8, one per row."""


class Weights(Mapping[str, Array]):
    """Weights of a safetensors file by name, in float32, read one at a time."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            open_file: Any = safe_open
            self._file = open_file(str(path), "numpy")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
        self._names: set[str] = set(self._file.keys())
        self._large: dict[str, tuple[NDArray[Any], Array | None]] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        value: Array = self._file.get_tensor(name).astype(np.float32)
        return (
            value * self._file.get_tensor(name + SCALES) if name + SCALES in self._names else value
        )

    def rows(self, name: str, numbers: NDArray[np.int64]) -> Array:
        """Return rows of a large matrix; only these are converted."""
        if name not in self._large:
            scales = self._file.get_tensor(name + SCALES) if name + SCALES in self._names else None
            self._large[name] = (self._file.get_tensor(name), scales)
        stored, scales = self._large[name]
        values: Array = stored[numbers].astype(np.float32)
        return values if scales is None else values * scales[numbers]

    def __iter__(self) -> Any:
        return (name for name in self._names if not name.endswith(SCALES))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class LightText:
    """Text tower of a compact model: token ids to one vector per text.

    x = ln(embedding + position); per block x = ln_1(x + attention(x)), x = ln_2(x + mlp(x)); the
    text is the mean of W x over its tokens.
    """

    weights: Weights
    config: Mapping[str, Any]
    tokenizer: Any
    context_length: int

    @classmethod
    def open(cls, folder: Path) -> LightText:
        """Read the text tower of a model folder."""
        import tokenizers

        config = read_config(folder)["encoder"]["config"]["text"]
        settings = untrusted.read_json(folder / TOKENIZER_SETTINGS)["eaglenet"]
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{folder / TOKENIZER}: not a tokenizer ({error})") from error
        tokenizer.enable_truncation(int(settings["context_length"]))
        tokenizer.no_padding()
        return cls(Weights(folder / WEIGHTS), config, tokenizer, int(settings["context_length"]))

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return vectors [texts, dim], not normalised."""
        return np.stack([self._encode(self.tokenizer.encode(text).ids) for text in texts])

    def _encode(self, ids: Sequence[int]) -> Array:
        """Encode one text: without padding there is nothing to mask."""
        get, eps = self._matrix, float(self.config["norm_eps"])
        tokens = self.weights.rows("encoder.text.embedding.weight", np.asarray(ids, np.int64))
        tokens = tokens + get("positional_embedding")[: len(ids)]
        tokens = _normalise(tokens, get("norm.weight"), get("norm.bias"), eps)
        for number in range(int(self.config["layers"])):
            block = f"blocks.{number}"
            attended = self._attend(tokens, block)
            tokens = self._norm(tokens + attended, f"{block}.ln_1")
            hidden = _gelu(self._linear(tokens, f"{block}.mlp.up"))
            tokens = self._norm(tokens + self._linear(hidden, f"{block}.mlp.down"), f"{block}.ln_2")
        vectors: Array = tokens @ get("projection.weight").T
        mean: Array = vectors.mean(axis=0)
        return mean

    def _attend(self, tokens: Array, block: str) -> Array:
        heads = int(self.config["heads"])
        count, width = tokens.shape
        qkv = self._linear(tokens, f"{block}.attention.qkv")
        query, key, value = qkv.reshape(count, 3, heads, -1).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(width // heads))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ value).transpose(1, 0, 2).reshape(count, width)
        return self._linear(mixed, f"{block}.attention.out")

    def _linear(self, values: Array, name: str) -> Array:
        result: Array = values @ self._matrix(f"{name}.weight").T + self._matrix(f"{name}.bias")
        return result

    def _norm(self, values: Array, name: str) -> Array:
        weight, bias = self._matrix(f"{name}.weight"), self._matrix(f"{name}.bias")
        return _normalise(values, weight, bias, float(self.config["norm_eps"]))

    def _matrix(self, name: str) -> Array:
        if name not in self._matrices:
            self._matrices[name] = self.weights[f"encoder.text.{name}"]
        return self._matrices[name]

    @cached_property
    def _matrices(self) -> dict[str, Array]:
        return {}


def read_config(folder: Path) -> dict[str, Any]:
    """Read the description of a compact model; other models need torch."""
    config = untrusted.read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("encoder", {}).get("kind") != "compact":
        raise CheckpointError(f"{folder}: not a compact model")
    return config


def _normalise(values: Array, weight: Array, bias: Array, eps: float) -> Array:
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    result: Array = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
    return result


def _gelu(values: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2; erf by Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    scaled = np.abs(values) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * scaled)
    series: Any = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(coefficient)
    erf = np.copysign(1 - series * t * np.exp(-np.square(scaled)), values)
    result: Array = values * (1 + erf) / 2
    return result
