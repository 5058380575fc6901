"""Compares the fp8 kernel on a GPU with the plain operations, in a process without an interpreter.

``PYTHONPATH=src python tests/encoders/fp8_on_device.py`` exits with 1 if they differ.
"""

from __future__ import annotations

import torch

from eaglenet.encoders import fp8_gradients
from eaglenet.encoders.fp8_gradients import GRADIENT, VALUE


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((16400, 320), (1024, 48), (16, 16)):
        gradient, inputs = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
        scale = fp8_gradients._sampled_scale(gradient, GRADIENT, gradient.shape[0])
        output_scale = fp8_gradients._scale(inputs, VALUE, fp8_gradients.ROOM)
        for operation, arguments in (
            (fp8_gradients.fp8_columns, (inputs, output_scale)),
            (fp8_gradients.fp8_layouts, (gradient, scale)),
            (fp8_gradients.fp8_quick_gelu_gradient, (gradient, inputs, scale, output_scale)),
        ):
            expected = operation(*arguments)
            computed = operation(*(value.cuda() for value in arguments))
            parts = (computed,) if isinstance(computed, torch.Tensor) else computed
            for part, value in zip(
                parts, (expected,) if isinstance(expected, torch.Tensor) else expected, strict=True
            ):
                torch.testing.assert_close(part.cpu().float(), value.float(), rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    main()
