"""The device to compute on, and the fastest precision there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from eaglenet.core.errors import UsageError

AUTO = "auto"
Precision = Literal["fp32", "bf16", "fp16", "int8"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Precision for encoding; ``auto`` takes the fastest one of the device."""
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
"""Capabilities of CPUs that multiply bfloat16: two of x86, two of ARM."""
INT8_FLAGS = ("dot", "avx512_vnni", "avx_vnni")
"""Capabilities of CPUs that sum int8 products: one of ARM, two of x86."""
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU as torch sees it: how many there are, and their fast 16-bit precision."""

    count: Callable[[], int]
    half: Callable[[], Precision]
    is_automatic: bool
    """Whether ``auto`` takes it."""


def _cuda_half() -> Precision:
    # Emulated bfloat16 is slower than fp32.
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def _mps_count() -> int:
    return int(torch.backends.mps.is_available())


def _mps_half() -> Precision:
    # Metal has bfloat16 since macOS 14.
    return "bf16" if torch.backends.mps.is_macos_or_newer(14, 0) else "fp16"


def _xpu_half() -> Precision:
    return "bf16" if torch.xpu.is_bf16_supported() else "fp16"


ACCELERATORS: dict[str, Accelerator] = {
    # ROCm builds of torch call AMD GPUs "cuda", too.
    "cuda": Accelerator(lambda: torch.cuda.device_count(), _cuda_half, is_automatic=True),
    "mps": Accelerator(_mps_count, _mps_half, is_automatic=True),
    "xpu": Accelerator(lambda: torch.xpu.device_count(), _xpu_half, is_automatic=False),
}
"""GPUs by torch's name, in the order in which ``auto`` prefers them."""


def best_device() -> str:
    """Return ``cuda`` or ``mps`` where there is such a GPU, else ``cpu``."""
    for name, accelerator in ACCELERATORS.items():
        if accelerator.is_automatic and accelerator.count():
            return name
    return "cpu"


def require_device(choice: torch.device | str) -> torch.device:
    """Return the chosen device; raise :class:`UsageError` if it does not exist here.

    ``auto`` is :func:`best_device`, ``rocm`` and ``rocm:N`` are AMD GPUs.
    """
    name = best_device() if choice == AUTO else str(choice)
    kind, _, number = name.partition(":")
    if kind == "rocm":
        if torch.version.hip is None:
            raise UsageError(
                f"--device {choice}: this torch is not built for ROCm; install a ROCm build "
                "(https://pytorch.org/get-started) or give auto"
            )
        name = f"cuda:{number}" if number else "cuda"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(
            f"--device {choice} is unknown; give auto, cpu, cuda, cuda:N, mps, xpu or rocm"
        ) from None
    accelerator = ACCELERATORS.get(device.type)
    count = accelerator.count() if accelerator is not None else 1
    if (device.index or 0) >= count:
        gpus = "no such GPU" if not count else "one GPU" if count == 1 else f"{count} GPUs"
        raise UsageError(f"--device {choice}: torch sees {gpus} here; give cpu or auto")
    return device


def has_fast_bf16(device: torch.device | str) -> bool:
    """Return whether the device multiplies bfloat16 in hardware."""
    kind = torch.device(device).type
    if kind == "cpu":
        flags = _cpu_flags()
        return any(bool(flags.get(name)) for name in BF16_FLAGS)
    return kind in ACCELERATORS and ACCELERATORS[kind].half() == "bf16"


def has_fast_int8(device: torch.device | str) -> bool:
    """Return whether the device is a CPU with instructions for sums of int8 products."""
    flags = _cpu_flags() if torch.device(device).type == "cpu" else {}
    return any(bool(flags.get(name)) for name in INT8_FLAGS)


def choose_precision(device: torch.device | str, choice: str = AUTO) -> Precision:
    """Return the precision for encoding: the choice, or for ``auto`` the fastest of the device."""
    if choice not in get_args(PrecisionChoice):
        raise UsageError(f"precision {choice!r} is unknown; give auto, fp32, bf16, fp16 or int8")
    kind = torch.device(device).type
    if choice == "int8" and kind != "cpu":
        raise UsageError(f"int8 is for CPUs, but the model is on {device}; give bf16")
    if choice == "fp16" and kind == "cpu":
        raise UsageError("fp16 is for GPUs, but the model is on cpu; give bf16 or int8")
    if choice != AUTO:
        return cast(Precision, choice)
    if kind in ACCELERATORS:
        return ACCELERATORS[kind].half()
    return "bf16" if has_fast_bf16(device) else "int8" if has_fast_int8(device) else "fp32"


def autocast_for(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context with 16-bit products over fp32 weights; fp32 and int8 change nothing."""
    if precision in _AUTOCAST:
        return torch.autocast(device.type, _AUTOCAST[precision])
    return nullcontext()


def _cpu_flags() -> dict[str, Any]:
    """Return the CPU's capabilities; empty where this torch does not report them."""
    function = getattr(torch.cpu, "get_capabilities", None)
    return dict(function()) if function is not None else {}
