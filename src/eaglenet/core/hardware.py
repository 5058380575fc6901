"""What the machine has: the device to compute on and the precision that pays there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast, get_args

import torch

from eaglenet.core.errors import UsageError

AUTO = "auto"
Chosen = Literal["fp32", "bf16", "int8"]
EncodingPrecision = Literal["auto", "fp32", "bf16", "int8"]
"""Of encoding; ``auto`` takes what the machine is fast in."""
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
"""What a CPU says of itself where it multiplies bfloat16: two names of x86, two of ARM."""
INT8_FLAGS = ("dot", "avx512_vnni", "avx_vnni")
"""What a CPU says of itself where it adds up products of int8: ARM's name and two of x86."""


def best_device() -> str:
    """``cuda`` where a GPU is there, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def require_device(wanted: torch.device | str) -> torch.device:
    """The device that is asked for, if it is there; ``auto``: a GPU where there is one."""
    try:
        device = torch.device(best_device() if wanted == AUTO else wanted)
    except RuntimeError:
        raise UsageError(f"--device {wanted} is unknown; give auto, cpu, cuda or cuda:N") from None
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        seen = "no GPU" if not count else "one GPU" if count == 1 else f"{count} GPUs"
        raise UsageError(f"--device {wanted}: torch sees {seen} here; give cpu or auto")
    return device


def has_fast_bf16(device: torch.device | str) -> bool:
    """Whether the device multiplies bfloat16 itself; emulated products are slower than fp32."""
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind != "cpu":
        return False
    flags = _cpu_flags()
    return any(bool(flags.get(name)) for name in BF16_FLAGS)


def has_fast_int8(device: torch.device | str) -> bool:
    """Whether the device is a CPU with instructions for sums of int8 products."""
    flags = _cpu_flags() if torch.device(device).type == "cpu" else {}
    return any(bool(flags.get(name)) for name in INT8_FLAGS)


def choose_precision(device: torch.device | str, wanted: str = AUTO) -> Chosen:
    """The precision to encode in: as asked for, or by the machine for ``auto``."""
    if wanted not in get_args(EncodingPrecision):
        raise UsageError(f"precision {wanted!r} is unknown; give auto, fp32, bf16 or int8")
    if wanted == "int8" and torch.device(device).type != "cpu":
        raise UsageError(f"int8 products are for CPUs, the model is on {device}; give bf16")
    if wanted == AUTO:
        return "bf16" if has_fast_bf16(device) else "int8" if has_fast_int8(device) else "fp32"
    return cast(Chosen, wanted)


def encoding_in(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bf16 products over fp32 weights, or nothing changed: an int8 tower is int8 by itself."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def _cpu_flags() -> dict[str, Any]:
    """What the CPU can, as torch finds it; empty where this torch does not tell."""
    function = getattr(torch.cpu, "get_capabilities", None)
    return dict(function()) if function is not None else {}
