"""Image towers with int8 products, for CPUs with fast int8 instructions.

A layer y = W x + b becomes

    y[j] = step s[j] sum_k q[k] w[j, k] + low s[j] sum_k w[j, k] + b[j] + sum_a W[j, a] x[a]

with w[j, k] from -127 to 127 and a scale s[j] = max_k |W[j, k]| / 127 per output; with q[k] from 0
to 255, low = min x and step = (max x - min x) / 255 per token, so the vector of a frame does not
depend on others in its batch; and with a over the few inputs of largest values, which would make
the steps coarse and are multiplied in fp32 (Dettmers et al., LLM.int8, 2022).

On ARM CPUs, torch has no such product that is faster than fp32; onnxruntime has one
(docs/reference/measurements.md).
"""

from __future__ import annotations

import copy
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor, nn

from eaglenet.core.errors import UsageError
from eaglenet.core.platform import num_cores
from eaglenet.encoders.onnx_graph import OWN_DOMAIN, Graph, open_session

NUM_OUTLIERS = 8
"""Number of inputs per layer that are multiplied in fp32."""
FEW_ROWS = 128
"""Minimum rows of a product for which more threads are faster."""
AGREEMENT = 0.999
"""Minimum cosine between the vectors of a frame in int8 and in fp32."""


def is_installed() -> bool:
    """Return whether onnxruntime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


class Int8Linear(nn.Module):
    """A linear layer that computes the equation above, without gradients.

    outliers: indices of the inputs that are multiplied in fp32.
    """

    def __init__(self, layer: nn.Linear, outliers: Int[Tensor, "outliers"]) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        rest = weight.index_fill(1, outliers, 0.0)
        scales = rest.abs().amax(dim=1).clamp(min=1e-12) / 127
        int8_weight = (rest / scales[:, None]).round()
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach().float()
        fp32_rows = torch.cat(
            [bias[None], (scales * int8_weight.sum(dim=1))[None], weight[:, outliers].T]
        )
        self.register_buffer("int8_weight", int8_weight.to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("outliers", outliers)
        self.register_buffer("fp32_rows", fp32_rows.contiguous())
        self._session = _product_with(self.int8_weight, self.scales)

    int8_weight: Tensor
    scales: Tensor
    outliers: Tensor
    fp32_rows: Tensor

    @property
    def weight(self) -> Float[Tensor, "outputs inputs"]:
        """Weights in fp32, for code that uses a part of them."""
        return (self.int8_weight * self.scales[:, None]).index_copy(
            1, self.outliers, self.fp32_rows[2:].T
        )

    def forward(self, values: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        rows = values.flatten(0, -2)
        large = rows.index_select(1, self.outliers)
        rows = rows.index_fill(1, self.outliers, 0.0)
        low, high = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)
        steps = (high - low).clamp_(min=1e-12) / 255
        # Adding half a step makes the truncation of the session round, without another pass.
        numbers = rows.sub_(low - steps / 2).mul_(steps.reciprocal())
        # One narrow product adds the other terms in place.
        result = self._multiply(numbers).mul_(steps)
        result.addmm_(torch.cat([torch.ones_like(low), low, large], dim=1), self.fp32_rows)
        return result.view(*values.shape[:-1], len(self.scales))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._session = _product_with(self.int8_weight, self.scales)

    def _multiply(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        threads = torch.get_num_threads()
        if threads == 1 or len(rows) < FEW_ROWS:
            return self._run(rows)
        return torch.cat(list(_threads().map(self._run, rows.chunk(threads))))

    def _run(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return torch.from_numpy(self._session.run(None, {"rows": rows.numpy()})[0])


@torch.no_grad()
def int8_tower(tower: nn.Module, size: int) -> nn.Module:
    """Return a copy of an image tower with int8 products in its blocks.

    ``size`` is the side of its images. A tower whose frame vectors change too much is refused.
    """
    if not is_installed():
        raise UsageError(
            "int8 products need onnxruntime: pip install onnxruntime, or use the precision fp32"
        )
    images = _sample_images(size)
    int8_copy = copy.deepcopy(tower)
    blocks = int8_copy.blocks
    assert isinstance(blocks, nn.ModuleList)
    layers = [
        (module, name, layer)
        for module in blocks.modules()
        for name, layer in module.named_children()
        if type(layer) is nn.Linear
    ]
    if not layers:
        raise UsageError("this image tower has no blocks for int8; use the precision fp32")
    largest: dict[nn.Module, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(partial(_note_largest, largest)) for _, _, layer in layers
    ]
    exact = int8_copy(images)[:, 0].float()
    for hook in hooks:
        hook.remove()
    for module, name, layer in layers:
        if layer in largest:  # The tower does not call other layers.
            outliers = largest[layer].topk(min(NUM_OUTLIERS, layer.in_features)).indices
            setattr(module, name, Int8Linear(layer, outliers))
    cosine = float(F.cosine_similarity(exact, int8_copy(images)[:, 0].float(), dim=-1).min())
    if not cosine >= AGREEMENT:
        raise UsageError(
            f"int8 changes the frame vectors of this model too much (cosine {cosine:.4f}, at least "
            f"{AGREEMENT} is needed); use the precision fp32"
        )
    return int8_copy


def _note_largest(largest: dict[nn.Module, Tensor], layer: nn.Module, inputs: Any) -> None:
    values = inputs[0].abs().flatten(0, -2).amax(dim=0)
    largest[layer] = torch.maximum(largest[layer], values) if layer in largest else values


def _sample_images(size: int) -> UInt8[Tensor, "images 3 size size"]:
    """Return fixed test images: two with soft colours, noise, and stripes."""
    generator = torch.Generator().manual_seed(0)
    soft = F.interpolate(
        torch.rand(2, 3, 6, 6, generator=generator), (size, size), mode="bicubic"
    ).clamp(0, 1)
    noise = torch.rand(3, size, size, generator=generator)
    stripes = (torch.arange(size) // 8 % 2).float().expand(3, size, size)
    return (torch.cat([soft, torch.stack([noise, stripes])]) * 255).to(torch.uint8)


def _product_with(weights: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, "outputs"]) -> Any:
    """Return a session that computes s[j] sum_k q[k] w[j, k], where q is the integer part of a row.

    The session converts floats to bytes and products to floats. In torch this would take another
    pass each, and three times as long for the bytes.
    """
    graph = Graph()
    graph.input("rows", np.float32, ["rows", weights.shape[1]])
    product = graph.node(
        "MatMulIntegerToFloat",
        graph.cast("rows", np.uint8),
        graph.constant(weights.T.numpy()),
        graph.constant(np.float32(1)),
        graph.constant(scales.numpy()),
        domain=OWN_DOMAIN,
    )
    graph.output(product, "product", np.float32, ["rows", len(weights)])
    # One thread, since a pool for each of fifty layers would make hundreds. No arena, since each of
    # fifty would keep the memory of its largest product, gigabytes in total.
    return open_session(graph.to_bytes(), 1, has_arena=False)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_cores(), thread_name_prefix="int8")
