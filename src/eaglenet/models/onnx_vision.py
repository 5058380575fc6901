"""Image tower of a compact model as one onnxruntime graph, in fp32 or with int8 products.

The int8 products are those of :mod:`eaglenet.encoders.int8`: a step per token, a scale per output,
and the few inputs with the largest values multiplied in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import num_cores
from eaglenet.encoders.onnx_graph import OWN_DOMAIN, Graph, open_session
from eaglenet.models.files import Array, Weights

Precision = Literal["fp32", "int8"]
NUM_OUTLIERS = 8
"""Number of inputs per layer that are multiplied in fp32."""
AGREEMENT = 0.999
"""Minimum cosine between the vectors of a frame in int8 and in fp32."""


class OnnxVision:
    """Encodes frames, uint8 [frames, 3, size, size], as vectors, float32 [frames, dim]."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Weights,
        precision: Precision = "fp32",
    ) -> None:
        """``config`` has the fields of ``CompactConfig``."""
        self.size = int(config["vision"]["image_size"])
        threads = num_cores()
        if precision == "fp32":
            self._session = open_session(_Tower(weights, config).build(), threads)
            return
        calibration = _Tower(weights, config, is_calibration=True)
        session = open_session(calibration.build(), threads)
        layers = calibration.layers
        exact, *maxima = session.run(["frames", *layers], {"pixels": sample_images(self.size)})
        tower = _Tower(weights, config, largest=dict(zip(layers, maxima, strict=True)))
        self._session = open_session(tower.build(), threads)
        cosine = _min_cosine(exact, self(sample_images(self.size)))
        if not cosine >= AGREEMENT:
            raise UsageError(
                f"int8 changes the frame vectors of this model too much (cosine {cosine:.4f}, at "
                f"least {AGREEMENT} is needed); use the precision fp32"
            )

    def __call__(self, frames: NDArray[np.uint8]) -> Array:
        result: Array = self._session.run(["frames"], {"pixels": frames})[0]
        return result


class _Tower(Graph):
    """The graph of a tower; methods add operators and return the name of their output."""

    def __init__(
        self,
        weights: Weights,
        config: Mapping[str, Any],
        *,
        largest: Mapping[str, Array] | None = None,
        is_calibration: bool = False,
    ) -> None:
        """
        largest: maximum of each input of each layer, for int8 products; None for fp32.
        is_calibration: output these maxima, under the names in ``layers``.
        """
        super().__init__()
        self.weights, self.config, self.vision = weights, config, config["vision"]
        self.largest, self.is_calibration = largest, is_calibration
        self.layers: list[str] = []

    def get(self, name: str) -> Array:
        return self.weights[f"encoder.vision.{name}"]

    def build(self) -> bytes:
        """Build the graph and serialise it."""
        size = int(self.vision["image_size"])
        self.input("pixels", np.uint8, ["frames", 3, size, size])
        tokens = self.embed()
        for number in range(int(self.vision["layers"])):
            tokens = self.block(tokens, f"blocks.{number}")
        tokens = self.norm(tokens, "norm")
        first = self.node("Gather", tokens, self.constant(np.int64(0)), axis=1)
        bounds = [self.constant(np.array([value], np.int64)) for value in (1, 2**31, 1)]
        patches = self.node("Slice", tokens, *bounds)
        mean = self.node("ReduceMean", patches, axes=[1], keepdims=0)
        features = self.node("Concat", first, mean, axis=1)
        product = self.node("MatMul", features, self.constant(self.get("projection.weight").T))
        self.output(product, "frames", np.float32, ["frames", int(self.config["dim"])])
        return self.to_bytes()

    def embed(self) -> str:
        """Add a convolution that normalises pixels and embeds patches, and the class token."""
        side, width = int(self.vision["patch_size"]), int(self.vision["width"])
        kernel = self.get("patch_embedding.projection.weight").reshape(width, 3, side, side)
        mean, std = (
            np.array(self.config[name], np.float64) for name in ("pixel_mean", "pixel_std")
        )
        scaled_kernel = (kernel / (255 * std[:, None, None])).astype(np.float32)
        shift = -(kernel * (mean / std)[:, None, None]).sum(axis=(1, 2, 3)).astype(np.float32)
        pixels = self.cast("pixels", np.float32)
        patches = self.node(
            "Conv", pixels, self.constant(scaled_kernel), self.constant(shift), strides=[side, side]
        )
        shape = self.constant(np.array([0, width, -1], np.int64))
        tokens = self.node("Transpose", self.node("Reshape", patches, shape), perm=[0, 2, 1])
        positions = self.get("positional_embedding")
        tokens = self.node("Add", tokens, self.constant(positions[1:]))
        first = (self.get("class_embedding") + positions[0])[None, None]
        count = self.node("Shape", tokens, start=0, end=1)
        ends = self.constant(np.array([1, width], np.int64))
        firsts = self.node("Expand", self.constant(first), self.node("Concat", count, ends, axis=0))
        return self.node("Concat", firsts, tokens, axis=1)

    def block(self, tokens: str, name: str) -> str:
        """Add x + s1 attention(ln_1(x)), then x + s2 mlp(ln_2(x)); weights include the scales."""
        output = self.attention(self.norm(tokens, f"{name}.ln_1"), name)
        tokens = self.node("Add", tokens, output)
        hidden_states = self.linear(self.norm(tokens, f"{name}.ln_2"), f"{name}.mlp.up")
        hidden_states = self.node("Gelu", hidden_states, domain=OWN_DOMAIN)
        output = self.linear(hidden_states, f"{name}.mlp.down", self.get(f"{name}.scale_2"))
        return self.node("Add", tokens, output)

    def attention(self, tokens: str, name: str) -> str:
        heads = int(self.vision["heads"])
        qkv = self.linear(tokens, f"{name}.attention.qkv")
        query, key, value = self.nodes("Split", qkv, count=3, axis=2)
        outputs = self.node(
            "MultiHeadAttention", query, key, value, domain=OWN_DOMAIN, num_heads=heads
        )
        return self.linear(outputs, f"{name}.attention.out", self.get(f"{name}.scale_1"))

    def norm(self, tokens: str, name: str) -> str:
        weight, bias = (self.constant(self.get(f"{name}.{part}")) for part in ("weight", "bias"))
        epsilon = float(self.vision["norm_eps"])
        return self.node("LayerNormalization", tokens, weight, bias, axis=-1, epsilon=epsilon)

    def linear(self, values: str, name: str, scale: Array | None = None) -> str:
        weight, bias = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        if scale is not None:
            weight, bias = weight * scale[:, None], bias * scale
        if self.is_calibration:
            maxima = self.node("ReduceMax", self.node("Abs", values), axes=[0, 1], keepdims=0)
            self.output(maxima, name, np.float32, [weight.shape[1]])
            self.layers.append(name)
        if self.largest is None:
            product = self.node("MatMul", values, self.constant(weight.T))
            return self.node("Add", product, self.constant(bias))
        return self.int8_linear(
            values, weight, bias, np.argsort(-self.largest[name])[:NUM_OUTLIERS]
        )

    def int8_linear(
        self, values: str, weight: Array, bias: Array, outliers: NDArray[np.int64]
    ) -> str:
        """Add the product of :mod:`eaglenet.encoders.int8`."""
        rest = weight.copy()
        rest[:, outliers] = 0
        scales = np.maximum(np.abs(rest).max(axis=1), 1e-12) / 127
        int8_weight = np.round(rest / scales[:, None])
        fp32_rows = [(scales * int8_weight.sum(axis=1))[None], weight[:, outliers].T, bias[None]]
        keep = np.ones(weight.shape[1], np.float32)
        keep[outliers] = 0
        large = self.node("Gather", values, self.constant(outliers.astype(np.int64)), axis=2)
        rows = self.node("Mul", values, self.constant(keep))
        low = self.node("ReduceMin", rows, axes=[2])
        high = self.node("ReduceMax", rows, axes=[2])
        span = self.node("Max", self.node("Sub", high, low), self.constant(np.float32(1e-12)))
        step = self.node("Mul", span, self.constant(np.float32(1 / 255)))
        # (x - low) / step + 1/2, to be truncated, in two passes over the inputs.
        inverse = self.node("Reciprocal", step)
        half = self.constant(np.float32(0.5))
        offset = self.node("Sub", half, self.node("Mul", low, inverse))
        numbers = self.node("Add", self.node("Mul", rows, inverse), offset)
        product = self.node(
            "MatMulIntegerToFloat",
            self.cast(numbers, np.uint8),
            self.constant(int8_weight.T.astype(np.int8)),
            self.constant(np.float32(1)),
            self.constant(scales.astype(np.float32)),
            domain=OWN_DOMAIN,
        )
        product = self.node("Mul", product, step)
        # One narrow product adds the other terms: minima, inputs in fp32, and ones for the bias.
        ones = self.node("Equal", low, low)
        narrow = self.node("Concat", low, large, self.cast(ones, np.float32), axis=2)
        rest = np.concatenate(fp32_rows).astype(np.float32)
        return self.node("Add", product, self.node("MatMul", narrow, self.constant(rest)))


def sample_images(size: int) -> NDArray[np.uint8]:
    """Return four fixed test images: two with soft colours, noise, and stripes."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[0:size, 0:size] / size
    waves = generator.uniform(1, 9, (2, 3, 2))
    soft = [
        [np.sin(rows * up + columns * along) / 2 + 0.5 for up, along in image] for image in waves
    ]
    noise = generator.random((3, size, size))
    stripes = np.broadcast_to(np.arange(size) // 8 % 2, (3, size, size))
    return (np.stack([*np.array(soft), noise, stripes]) * 255).astype(np.uint8)


def _min_cosine(first: Array, second: Array) -> float:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(axis=1) / lengths).min())
