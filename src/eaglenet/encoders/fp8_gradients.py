"""Backward passes of the towers' linear layers as products of fp8 numbers.

The forward pass Y = X W^T + b is that of bf16, so a step has the loss of a step in bf16. The
gradients

    dX = s_g s_w Q(dY / s_g) Q(W / s_w),    dW = s_g s_x Q(dY / s_g)^T Q(X / s_x)

are products of fp8 numbers with sums in fp32; Q rounds gradients to e5m2, and W and X to e4m3
(Micikevicius et al., FP8 formats for deep learning, 2022). Inputs are kept in fp8 for the backward
pass, in half the memory. A scale s is :data:`ROOM` times the largest value of every
:data:`STRIDE`-th row and of the first token of every frame, over the largest number of the format:
a pass over all rows to find the exact maximum costs more than fp8 saves.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import SLOPE, quick_gelu
from eaglenet.encoders.blocks import Attention, FeedForward

GRADIENT, VALUE = torch.float8_e5m2, torch.float8_e4m3fn
ROOM = 4.0
"""Larger values are clipped. Each factor of two costs e5m2 one of 32 octaves, e4m3 one of 18."""
STRIDE = 61
"""A prime, so that all tokens of a frame are among the rows."""
MIN_ROWS = 100_000
"""Minimum rows. A step of 64 pairs of 12 frames on an H200 takes 0.188 instead of 0.203 s with the
151,296 rows of ViT-B/16, but 0.079 instead of 0.060 s with the 38,400 of ViT-B/32, which are
computed before the host has started the next kernels."""
MULTIPLE = 16
"""Sizes of fp8 matrices are multiples of this."""
CAPABILITY = (8, 9)
"""Ada, the oldest devices with fp8 products."""


def use_fp8_gradients(encoder: nn.Module, device: torch.device) -> int:
    """Let the attention and feed-forward layers of all towers compute gradients in fp8.

    Returns the number of layers. Parameters and their names stay.

    Raises:
        ConfigError: the device has no fp8 products, or the encoder no such layers.
    """
    if device.type == "cuda" and (
        torch.version.hip is not None or torch.cuda.get_device_capability(device) < CAPABILITY
    ):
        raise ConfigError(
            "training.precision=fp8_gradients needs an NVIDIA GPU with fp8 products (Ada, Hopper "
            "or newer): --set training.precision=bf16"
        )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "training.precision=fp8_gradients needs Triton: pip install 'eaglenet[triton]', or "
            "--set training.precision=bf16"
        )
    parts = [
        (module, name, child)
        for module in encoder.modules()
        for name, child in module.named_children()
        if isinstance(module, Attention | FeedForward) or type(child) is FeedForward
    ]
    count = 0
    for module, name, child in parts:
        if (
            type(child) is nn.Linear and child.bias is not None
        ):  # Not a layer with low-rank changes.
            setattr(module, name, Fp8Linear(child))
            count += 1
    for module, name, child in parts:
        if type(child) is FeedForward and child.activation == "quick_gelu":
            setattr(module, name, Fp8FeedForward(child))
    if not count:
        raise ConfigError(
            "training.precision=fp8_gradients: the encoder has no towers with such layers; "
            "--set training.precision=bf16"
        )
    return count


class Fp8Linear(nn.Linear):
    """An existing layer with gradients in fp8, while it is trained and has many rows."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)

    def forward(self, input: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch out"]:
        if not self.is_used_for(input):
            return super().forward(input)
        rows = input.flatten(0, -2).to(torch.bfloat16)
        weight, bias = self.weight.to(torch.bfloat16), self.bias.to(torch.bfloat16)
        result: Tensor = _Linear.apply(rows, weight, bias, input.shape[-2])  # type: ignore[no-untyped-call]
        return result.view(*input.shape[:-1], self.out_features)

    def is_used_for(self, input: Tensor) -> bool:
        """Return whether the gradients are computed in fp8 for this many rows."""
        count = input.shape[:-1].numel()
        sizes = (count, self.in_features, self.out_features)
        return (
            self.training
            and torch.is_grad_enabled()
            and self.weight.requires_grad
            and count >= MIN_ROWS
            and not any(size % MULTIPLE for size in sizes)
        )


class Fp8FeedForward(FeedForward):
    """A layer with QuickGELU whose backward pass reads the hidden states once."""

    def __init__(self, layer: FeedForward) -> None:
        nn.Module.__init__(self)
        self.up, self.down, self.activation = layer.up, layer.down, layer.activation
        self.training = layer.training

    def forward(self, tokens: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        up, down = self.up, self.down
        layers = (up, down)
        if not all(isinstance(part, Fp8Linear) and part.is_used_for(tokens) for part in layers):
            return super().forward(tokens)
        rows = tokens.flatten(0, -2).to(torch.bfloat16)
        parameters = (up.weight, up.bias, down.weight, down.bias)
        half = (parameter.to(torch.bfloat16) for parameter in parameters)
        result: Tensor = _FeedForward.apply(rows, *half, tokens.shape[-2])  # type: ignore[no-untyped-call]
        return result.view(tokens.shape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, num_tokens: int) -> Tensor:
        ctx.num_tokens = num_tokens
        scale = _sampled_scale(rows, VALUE, num_tokens)
        ctx.save_for_backward(fp8_columns(rows, scale), scale, weight)
        return torch.addmm(bias, rows, weight.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        inputs, input_scale, weight = ctx.saved_tensors
        scale = _sampled_scale(gradient, GRADIENT, ctx.num_tokens)
        rows, columns, sums = fp8_layouts(gradient, scale)
        to_rows = _product_with(rows, scale, weight)
        to_weight = _product(columns, inputs, scale, input_scale)
        return to_rows, to_weight, sums.to(gradient.dtype), None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        up: Tensor,
        up_bias: Tensor,
        down: Tensor,
        down_bias: Tensor,
        num_tokens: int,
    ) -> Tensor:
        ctx.num_tokens = num_tokens
        scale = _sampled_scale(rows, VALUE, num_tokens)
        hidden = torch.addmm(up_bias, rows, up.T)
        ctx.save_for_backward(fp8_columns(rows, scale), scale, hidden, up, down)
        return torch.addmm(down_bias, quick_gelu(hidden), down.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None]:
        inputs, input_scale, hidden, up, down = ctx.saved_tensors
        scale = _sampled_scale(gradient, GRADIENT, ctx.num_tokens)
        rows, columns, down_sums = fp8_layouts(gradient, scale)
        to_outputs = _product_with(rows, scale, down)
        sample = _sample(hidden, ctx.num_tokens).float()
        to_sample = _sample(to_outputs, ctx.num_tokens)
        hidden_scale = _scale(to_sample * slope(sample), GRADIENT, ROOM)
        output_scale = _scale(quick_gelu(sample), VALUE, ROOM)
        hidden_rows, hidden_columns, up_sums, outputs = fp8_quick_gelu_gradient(
            to_outputs, hidden, hidden_scale, output_scale
        )
        return (
            _product_with(hidden_rows, hidden_scale, up),
            _product(hidden_columns, inputs, hidden_scale, input_scale),
            up_sums.to(gradient.dtype),
            _product(columns, outputs, scale, output_scale),
            down_sums.to(gradient.dtype),
            None,
        )


def slope(values: Tensor) -> Tensor:
    """Return the derivative of QuickGELU."""
    gate = torch.sigmoid(SLOPE * values)
    return gate * (1 + SLOPE * values * (1 - gate))


def _scale(values: Tensor, dtype: torch.dtype, room: float = 1.0) -> Tensor:
    largest = values.abs().amax().float() * (room / torch.finfo(dtype).max)
    return largest.clamp(min=torch.finfo(torch.float32).tiny)


def _sampled_scale(rows: Tensor, dtype: torch.dtype, num_tokens: int) -> Tensor:
    return _scale(_sample(rows, num_tokens), dtype, ROOM)


def _sample(rows: Tensor, num_tokens: int) -> Tensor:
    """Return some rows of frames of ``num_tokens`` tokens.

    The last block has gradients of first tokens only, most of which are tiny once a model is good.
    """
    return torch.cat([rows[::STRIDE], rows[::num_tokens]])


def _product(rows: Tensor, columns: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor:
    """Return rows columns^T of two fp8 matrices."""
    return torch._scaled_mm(
        rows, columns.T, row_scale, column_scale, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def _product_with(rows: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """Return rows weight."""
    weight_scale = _scale(weight, VALUE)
    return _product(rows, fp8_columns(weight, weight_scale), scale, weight_scale)


# Operations that torch.compile does not trace: the kernel on a GPU, the same in PyTorch on a CPU.


@torch.library.custom_op(
    "eaglenet::fp8_columns", mutates_args=(), schema="(Tensor values, Tensor scale) -> Tensor"
)
def fp8_columns(values: Tensor, scale: Tensor) -> Tensor:
    """Return Q(values / scale)^T in e4m3, contiguous."""
    if not values.is_cuda:
        return _rounded(values, scale, VALUE).T.contiguous()
    columns = values.new_empty(values.shape[::-1], dtype=VALUE)
    _launch(values.contiguous(), scale, columns)
    return columns


@torch.library.custom_op(
    "eaglenet::fp8_layouts",
    mutates_args=(),
    schema="(Tensor gradient, Tensor scale) -> (Tensor, Tensor, Tensor)",
)
def fp8_layouts(gradient: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q(gradient / scale) in e5m2, its transpose, and the sum of the rows in fp32."""
    if not gradient.is_cuda:
        rounded = _rounded(gradient, scale, GRADIENT)
        return rounded, rounded.T.contiguous(), gradient.sum(0, dtype=torch.float32)
    rows = gradient.new_empty(gradient.shape, dtype=GRADIENT)
    columns = gradient.new_empty(gradient.shape[::-1], dtype=GRADIENT)
    sums = _launch(gradient.contiguous(), scale, columns, rows)
    return rows, columns, sums


@torch.library.custom_op(
    "eaglenet::fp8_quick_gelu_gradient",
    mutates_args=(),
    schema="(Tensor gradient, Tensor inputs, Tensor scale, Tensor output_scale)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def fp8_quick_gelu_gradient(
    gradient: Tensor, inputs: Tensor, scale: Tensor, output_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the layouts and sums of gradient * slope(inputs), and Q(quick_gelu(inputs))^T."""
    if not gradient.is_cuda:
        to_inputs = gradient.float() * slope(inputs.float())
        rounded = _rounded(to_inputs, scale, GRADIENT)
        outputs = _rounded(quick_gelu(inputs.float()), output_scale, VALUE)
        return rounded, rounded.T.contiguous(), to_inputs.sum(0), outputs.T.contiguous()
    rows = gradient.new_empty(gradient.shape, dtype=GRADIENT)
    columns = gradient.new_empty(gradient.shape[::-1], dtype=GRADIENT)
    outputs = gradient.new_empty(gradient.shape[::-1], dtype=VALUE)
    arguments = (gradient.contiguous(), scale, columns, rows, inputs.contiguous())
    return rows, columns, _launch(*arguments, output_scale, outputs), outputs


@fp8_columns.register_fake
def _columns_shape(values: Tensor, scale: Tensor) -> Tensor:
    return values.new_empty(values.shape[1], values.shape[0], dtype=VALUE)


@fp8_layouts.register_fake
def _layouts_shape(gradient: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, width = gradient.shape
    return (
        gradient.new_empty(num_rows, width, dtype=GRADIENT),
        gradient.new_empty(width, num_rows, dtype=GRADIENT),
        gradient.new_empty(width, dtype=torch.float32),
    )


@fp8_quick_gelu_gradient.register_fake
def _gradient_shape(
    gradient: Tensor, inputs: Tensor, scale: Tensor, output_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*_layouts_shape(gradient, scale), _columns_shape(inputs, output_scale))


def _launch(values: Tensor, *arguments: Tensor) -> Tensor:
    from eaglenet.encoders.fp8_kernel import launch

    with torch.cuda.device_of(values):
        return launch(values, *arguments)


def _rounded(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    return (values.float() * (1.0 / scale)).clamp(-limit, limit).to(dtype)
