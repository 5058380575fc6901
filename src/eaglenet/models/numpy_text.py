"""Text tower of a compact model through numpy, with the vectors that torch gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError
from eaglenet.models.weights import Array, Weight, Weights

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"

MAX_RECENT = 64
"""Texts whose vectors are kept."""


@dataclass(frozen=True)
class NumpyText:
    """Text tower of a compact model: texts to one vector each.

    x = ln(embedding + position); per block x = ln_1(x + attention(x)), x = ln_2(x + mlp(x)); the
    text is the mean of W x over its tokens. ``config`` is that of ``CompactTextConfig``.
    """

    weights: Weights
    config: Mapping[str, Any]
    tokenizer: Any

    @classmethod
    def open(cls, folder: Path, config: Mapping[str, Any], weights: Weights) -> NumpyText:
        """Read the tokenizer of a model folder; ``weights`` are read on first use."""
        import tokenizers

        path = folder / TOKENIZER
        try:
            settings = untrusted.read_json(folder / TOKENIZER_SETTINGS)["eaglenet"]
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
            tokenizer.enable_truncation(int(settings["context_length"]))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path}: the tokenizer cannot be read ({error})") from error
        tokenizer.no_padding()
        return cls(weights, config, tokenizer)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return vectors [texts, dim], not normalised."""
        return np.stack([self._recent_or_new(text) for text in texts])

    def _recent_or_new(self, text: str) -> Array:
        """Vector of a text; frames and transcripts are searched with the same one."""
        vector = self._recent.get(text)
        if vector is None:
            vector = self._encode(self.tokenizer.encode(text).ids)
            if len(self._recent) >= MAX_RECENT:
                self._recent.clear()
            self._recent[text] = vector
        return vector

    def _encode(self, ids: Sequence[int]) -> Array:
        """Encode one text: without padding there is nothing to mask."""
        tokens = self._weight("embedding.weight").rows(np.asarray(ids, np.int64))
        tokens = self._norm(tokens + self._array("positional_embedding")[: len(ids)], "norm")
        for number in range(int(self.config["layers"])):
            block = f"blocks.{number}"
            tokens = self._norm(tokens + self._attend(tokens, block), f"{block}.ln_1")
            hidden = gelu(self._linear(tokens, f"{block}.mlp.up"))
            tokens = self._norm(tokens + self._linear(hidden, f"{block}.mlp.down"), f"{block}.ln_2")
        # The projection is linear: of the mean it is the mean of the projections.
        mean: Array = self._product(tokens.mean(axis=0, keepdims=True), "projection.weight")[0]
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
        return self._product(values, f"{name}.weight") + self._array(f"{name}.bias")

    def _product(self, values: Array, name: str) -> Array:
        """W x; the scales of an int8 matrix are applied to the products, of which there are few."""
        matrix = self._array(name)
        product: Array = values @ matrix.T
        scales = self._weight(name).scales
        return product if scales is None else product * scales

    def _norm(self, values: Array, name: str) -> Array:
        weight, bias = self._array(f"{name}.weight"), self._array(f"{name}.bias")
        centred = values - values.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        eps = np.float32(self.config["norm_eps"])
        result: Array = centred / np.sqrt(variance + eps) * weight + bias
        return result

    def _array(self, name: str) -> Array:
        """One weight in float32; of a matrix of products without its scales."""
        if name not in self._arrays:
            weight = self._weight(name)
            is_product = weight.scales is not None and name != "positional_embedding"
            self._arrays[name] = weight.values.astype(np.float32) if is_product else weight.full()
        return self._arrays[name]

    def _weight(self, name: str) -> Weight:
        if name not in self._stored:
            self._stored[name] = self.weights.read(f"encoder.text.{name}")
        return self._stored[name]

    @cached_property
    def _stored(self) -> dict[str, Weight]:
        return {}

    @cached_property
    def _recent(self) -> dict[str, Array]:
        return {}

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        return {}


def gelu(values: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2; erf by Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    scaled = np.abs(values) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * scaled)
    series: Any = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(coefficient)
    erf = np.copysign(1 - series * t * np.exp(-np.square(scaled)), values)
    result: Array = values * (1 + erf) / 2
    return result
