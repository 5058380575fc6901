"""Compact models such as `small` without torch: texts with numpy, frames with onnxruntime.

``import torch`` takes seconds, and its files take most of an installation; indexing and searching
with a compact model need neither. :func:`eaglenet.models.folder.load` opens the same folder with
torch, with the same vectors and scores (``tests/models/test_light_model.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, ConfigError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.core.settings import from_plain
from eaglenet.methods.configs import CLIP4ClipConfig, WordFrameConfig
from eaglenet.models.files import (
    CONFIG,
    HEAD,
    WEIGHTS,
    Array,
    Weight,
    Weights,
    hash_model,
    model_folder,
)
from eaglenet.models.word_pieces import UNKNOWN, WordPieces
from eaglenet.store.hubness import HubnessBank

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"

MAX_CACHED = 64
"""Maximum number of texts whose vectors are cached."""


@dataclass(frozen=True)
class NumpyText:
    """Text tower of a compact model, which encodes each text as one vector.

    x = ln(embedding + position); per block x = ln_1(x + attention(x)), x = ln_2(x + mlp(x)); the
    text is the mean of W x over its tokens. ``config`` has the fields of ``CompactTextConfig``.
    """

    weights: Weights
    config: Mapping[str, Any]
    tokenizer: WordPieces
    _vectors: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)
    _weights: dict[str, Weight] = field(default_factory=dict, repr=False, compare=False)
    _arrays: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path, config: Mapping[str, Any], weights: Weights) -> NumpyText:
        """Open the text tower of a model folder; ``weights`` are read on first use."""
        path = folder / TOKENIZER
        try:
            settings = untrusted.read_json(folder / TOKENIZER_SETTINGS)["eaglenet"]
            tokenizer = WordPieces.read(path, int(settings["context_length"]))
        except (AttributeError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the tokenizer cannot be read ({error})") from error
        return cls(weights, config, tokenizer)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Return vectors [texts, dim], not normalised."""
        return np.stack([self._cached_vector(text) for text in texts])

    def _cached_vector(self, text: str) -> Array:
        """Return the vector of a text. Searches use it twice: for frames and for transcripts."""
        vector = self._vectors.get(text)
        if vector is None:
            vector = self._encode(self.tokenizer.encode(text))
            if len(self._vectors) >= MAX_CACHED:
                self._vectors.clear()
            self._vectors[text] = vector
        return vector

    def _encode(self, ids: Sequence[int]) -> Array:
        """Encode one text, which needs no padding and no mask."""
        tokens = self._weight("embedding.weight").rows(np.asarray(ids, np.int64))
        tokens = self._norm(tokens + self._array("positional_embedding")[: len(ids)], "norm")
        for number in range(int(self.config["layers"])):
            block = f"blocks.{number}"
            tokens = self._norm(tokens + self._attend(tokens, block), f"{block}.ln_1")
            output = self._linear(
                gelu(self._linear(tokens, f"{block}.mlp.up")), f"{block}.mlp.down"
            )
            tokens = self._norm(tokens + output, f"{block}.ln_2")
        # The projection is linear, so it can be applied to the mean.
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
        outputs = (scores @ value).transpose(1, 0, 2).reshape(count, width)
        return self._linear(outputs, f"{block}.attention.out")

    def _linear(self, values: Array, name: str) -> Array:
        return self._product(values, f"{name}.weight") + self._array(f"{name}.bias")

    def _product(self, values: Array, name: str) -> Array:
        """Return W x; applies the scales of an int8 matrix to the few products."""
        matrix = self._array(name)
        product: Array = values @ matrix.T
        scales = self._weight(name).scales
        return product if scales is None else product * scales

    def _norm(self, values: Array, name: str) -> Array:
        weight, bias = self._array(f"{name}.weight"), self._array(f"{name}.bias")
        deviations = values - values.mean(axis=-1, keepdims=True)
        variance = np.square(deviations).mean(axis=-1, keepdims=True)
        eps = np.float32(self.config["norm_eps"])
        result: Array = deviations / np.sqrt(variance + eps) * weight + bias
        return result

    def _array(self, name: str) -> Array:
        """Return a weight in float32; int8 matrices without their scales."""
        if name not in self._arrays:
            weight = self._weight(name)
            is_product = weight.scales is not None and name != "positional_embedding"
            self._arrays[name] = (
                weight.values.astype(np.float32) if is_product else weight.dequantise()
            )
        return self._arrays[name]

    def _weight(self, name: str) -> Weight:
        if name not in self._weights:
            self._weights[name] = self.weights.read(f"encoder.text.{name}")
        return self._weights[name]


def gelu(values: Array) -> Array:
    """Return x (1 + erf(x / sqrt 2)) / 2; erf by Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    arguments = np.abs(values) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * arguments)
    series: Any = np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(coefficient)
    erf = np.copysign(1 - series * t * np.exp(-np.square(arguments)), values)
    result: Array = values * (1 + erf) / 2
    return result


METHOD = "clip4clip"
Precision = Literal["fp32", "int8"]
MAX_LOGIT_SCALE = 4.6053
"""Limit of the logarithm of the scale in ``losses.softmax``: ln 100, plus 0.0001 for rounding."""
MIN_NORM = 1e-12
BATCH_FRAMES = 8
"""Frames per run of the image tower; more need more memory, and are no faster on two cores."""


@dataclass(frozen=True)
class LightModel:
    """A compact model that scores texts against the mean of a video's frames.

    bank: hubness bank of the model's head; None if it has none.
    """

    folder: Path
    config: CLIP4ClipConfig
    frame_spec: FrameSpec
    towers: Mapping[str, Any]
    """Configuration of the encoder."""
    bank: HubnessBank | None
    weights: Weights
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _visions: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, name_or_folder: str | Path) -> LightModel:
        """Open a compact model; raise :class:`CheckpointError` if it is not one, or is damaged."""
        folder = model_folder(name_or_folder)
        plain = _read_compact(folder)
        if folder is None or plain is None:
            raise CheckpointError(f"{name_or_folder}: not a compact model")
        try:
            config = from_plain(CLIP4ClipConfig, plain["config"], where="config")
            frame_spec = from_plain(FrameSpec, plain["frame_spec"], where="frame_spec")
        except ConfigError as error:
            raise CheckpointError(f"{folder / CONFIG}: {error}") from error
        bank = _read_bank(folder / HEAD) if (folder / HEAD / CONFIG).is_file() else None
        weights = Weights(folder / WEIGHTS)
        return cls(folder, config, frame_spec, plain["encoder"]["config"], bank, weights)

    @staticmethod
    def supports(name_or_folder: str | Path) -> bool:
        """Return whether this is a compact model whose head, if any, is only a hubness bank."""
        folder = model_folder(name_or_folder)
        if folder is None or _read_compact(folder) is None:
            return False
        head = _read_json(folder / HEAD / CONFIG)
        return not (folder / HEAD / CONFIG).exists() or (head is not None and _is_bank(head))

    device = "cpu"

    @property
    def name(self) -> str:
        """Name of the method; see :class:`eaglenet.methods.base.Method`."""
        return METHOD

    @property
    def dim(self) -> int:
        return int(self.towers["dim"])

    @cached_property
    def identity(self) -> str:
        """Hash of the model, which a store records."""
        read = ((name, self.weights.read(name)) for name in self.weights.names)
        samples = ((name, weight.values.shape, weight.sample()) for name, weight in read)
        return hash_model(METHOD, self.config, samples)

    @cached_property
    def text(self) -> NumpyText:
        return NumpyText.open(self.folder, self.towers["text"], self.weights)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Return vectors ``[texts, dim]``, not normalised."""
        try:
            return self.text(texts)
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{self.folder}: weights and {CONFIG} differ ({error})"
            ) from error

    def encode_frames(
        self, pixels: NDArray[np.uint8], mask: NDArray[np.bool_], precision: Precision = "fp32"
    ) -> Array:
        """Return vectors ``[clips, frames, dim]`` of ``[clips, frames, 3, size, size]``.

        The vectors of padding are zeros.
        """
        vectors = np.zeros((*mask.shape, self.dim), np.float32)
        # Neighbouring clips share frames, and images repeat them; each is encoded once.
        numbers: dict[bytes, int] = {}
        indices = [numbers.setdefault(frame.tobytes(), len(numbers)) for frame in pixels[mask]]
        if indices:
            frames = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, *pixels.shape[2:])
            vision = self.vision(precision)
            starts = range(0, len(frames), BATCH_FRAMES)
            parts = [vision(frames[start : start + BATCH_FRAMES]) for start in starts]
            vectors[mask] = np.concatenate(parts)[indices]
        return vectors

    def vision(self, precision: Precision) -> Any:
        """Return the image tower in a precision, built on first use."""
        with self._lock:
            if precision not in self._visions:
                from eaglenet.models.onnx_vision import OnnxVision

                self._visions[precision] = OnnxVision(self.towers, self.weights, precision)
            return self._visions[precision]

    def score(self, texts: Array, frames: Array, mask: NDArray[np.bool_]) -> Array:
        """Return scores ``[texts, clips]`` of encoded texts and frames."""
        videos = mean_of_frames(frames, mask)
        scores = unit(texts) @ videos.T
        return scores if self.bank is None else scores - self.bank.offsets(videos)

    def frame_scores(self, texts: Array, frames: Array, mask: NDArray[np.bool_]) -> Array:
        """Return cosines ``[texts, clips, frames]``; -inf for padding."""
        cosines = np.tensordot(unit(texts), unit(frames), axes=(1, 2))
        scores: Array = np.where(mask, cosines, np.float32(-np.inf))
        return scores


def unit(vectors: Array) -> Array:
    """Normalise vectors along the last axis; zeros stay zeros."""
    lengths = np.sqrt(np.square(vectors).sum(axis=-1, keepdims=True))
    result: Array = vectors / np.maximum(lengths, np.float32(MIN_NORM))
    return result


def mean_of_frames(frames: Array, mask: NDArray[np.bool_]) -> Array:
    """Return the normalised mean ``[clips, dim]`` of normalised frames, without padding."""
    real = unit(frames) * mask[..., None]
    counts = np.maximum(mask.sum(axis=1), 1).astype(np.float32)
    return unit(real.sum(axis=1) / counts[:, None])


def _read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if it cannot be read. Callers report the damage."""
    try:
        plain = untrusted.read_json(path)
    except (OSError, ValueError):
        return None
    return plain if isinstance(plain, dict) else None


def _read_compact(folder: Path | None) -> dict[str, Any] | None:
    """Read the ``config.json`` of a model; None if :class:`LightModel` cannot run the model."""
    plain = None if folder is None else _read_json(folder / CONFIG)
    if plain is None:
        return None
    try:
        encoder, config = plain["encoder"], plain["config"]
        is_compact = (
            plain["eaglenet"] == 1
            and encoder["kind"] == "compact"
            and plain["method"] == METHOD
            and config.get("head", "mean") == "mean"
            and config.get("stem", "2d") == "2d"
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return plain if is_compact else None


def _is_bank(plain: Mapping[str, Any]) -> bool:
    """Return whether a head is only the mean of frames and a hubness bank."""
    try:
        config = from_plain(WordFrameConfig, plain["config"], where="config")
    except (KeyError, ConfigError):
        return False
    is_wordframe = plain.get("eaglenet_head") == 1 and plain.get("method") == "wordframe"
    return is_wordframe and config.coarse and not config.interaction and not config.token_shift


def _read_bank(folder: Path) -> HubnessBank | None:
    plain = _read_json(folder / CONFIG)
    if plain is None or not _is_bank(plain):
        raise CheckpointError(f"{folder / CONFIG}: not a head of a compact model")
    config = from_plain(WordFrameConfig, plain["config"], where="config")
    if not config.bank:
        return None
    weights = Weights(folder / WEIGHTS)
    count = min(int(weights["bank.count"]), config.bank)
    scale = float(np.exp(np.minimum(weights["loss.logit_scale"], np.float32(MAX_LOGIT_SCALE))))
    vectors = weights["bank.vectors"][:count]
    return HubnessBank("of the head", vectors, config.bank_weight, scale) if count else None


MEANING_MODEL = "small"
MEANING_FORMAT = "windows 1"
"""Changes when windows or vectors are computed differently, so that all are computed again."""
MAX_PIECES = 1.3
"""Maximum word pieces per word of a text that counts as English. 98% of English lines have fewer;
Italian, German, French and Spanish lines have more. The tower is trained on English only: lines of
other languages all have similar vectors."""
UNKNOWN_PIECES = 3
"""Number of word pieces as which an unknown word counts."""


class MeaningEncoder:
    """Encodes English lines as unit vectors; texts of similar meaning have a large cosine.

    Subtracts the mean vector of the texts in the hubness bank, since what all texts have in common
    does not distinguish them.
    """

    def __init__(self, model: LightModel) -> None:
        self.model = model

    @classmethod
    def open(cls) -> MeaningEncoder:
        return cls(LightModel.open(MEANING_MODEL))

    @cached_property
    def identity(self) -> str:
        """Name and version of the vectors, which a store records."""
        return f"{MEANING_FORMAT} {MEANING_MODEL} {self.model.identity}"

    @property
    def dim(self) -> int:
        return self.model.dim

    def reads(self, text: str) -> bool:
        """Return whether a text is in the language of the tower.

        >>> encoder = MeaningEncoder.open()
        >>> encoder.reads("a man drives a car"), encoder.reads("ein Mann f\u00e4hrt Auto")
        (True, False)
        """
        tokenizer = self.model.text.tokenizer
        words = tokenizer.words(text)
        unknown = tokenizer.vocabulary[UNKNOWN]
        num_pieces = sum(UNKNOWN_PIECES if unknown in word else len(word) for word in words)
        return bool(words) and num_pieces <= MAX_PIECES * len(words)

    def encode(self, texts: Sequence[str]) -> Array:
        """Return unit vectors ``[texts, dim]``."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return unit(unit(self.model.encode_texts(texts)) - self._mean)

    @cached_property
    def _mean(self) -> Array:
        bank = self.model.bank
        if bank is None:
            return np.zeros(self.dim, np.float32)
        mean: Array = bank.vectors.mean(axis=0)
        return mean
