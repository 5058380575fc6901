"""The device to compute on, and the fastest precision there. Imports torch on first use."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from platform import machine
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from eaglenet.core.errors import UsageError, require_torch
from eaglenet.core.platform import read_proc

if TYPE_CHECKING:
    import torch

AUTO = "auto"
Precision = Literal["fp32", "bf16", "fp16", "int8"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""Precision for encoding; ``auto`` is the fastest one of the device."""
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
"""CPU capabilities that multiply bfloat16: two of x86, two of ARM."""
INT8_FLAGS = ("dot", "avx512_vnni", "avx_vnni")
"""CPU capabilities that sum int8 products: one of ARM, two of x86."""
CPUINFO_FIELDS = ("flags", "Features")
CPUINFO_NAMES = {"asimddp": "dot", "svebf16": "sve_bf16"}
"""Torch's name, used above, for each of Linux's names that differ."""
GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA, AMD and WSL drivers."""


ACCELERATORS = {"cuda": True, "mps": True, "xpu": False}
"""GPUs by torch's name, in the order in which ``auto`` prefers them; False: ``auto`` ignores them.
ROCm builds of torch call AMD GPUs "cuda", too."""


def _num_gpus(kind: str) -> int:
    """Return the number of GPUs of a kind that torch sees."""
    import torch

    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(getattr(torch, kind).device_count())


def _gpu_precision(kind: str) -> Precision:
    """Return the fastest precision of a kind of GPU."""
    import torch

    if kind == "cuda":
        # Emulated bfloat16 is slower than fp32.
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if kind == "mps":
        # Metal has bfloat16 since macOS 14.
        return "bf16" if torch.backends.mps.is_macos_or_newer(14, 0) else "fp16"
    return "bf16" if torch.xpu.is_bf16_supported() else "fp16"


def best_device() -> str:
    """Return ``cuda`` or ``mps`` if torch sees such a GPU, else ``cpu``."""
    names = (name for name, is_automatic in ACCELERATORS.items() if is_automatic)
    return next((name for name in names if _num_gpus(name)), "cpu")


def require_device(choice: torch.device | str) -> torch.device:
    """Return the chosen device; raise :class:`UsageError` if it does not exist here.

    ``auto`` is :func:`best_device`, ``rocm`` and ``rocm:N`` are AMD GPUs.
    """
    require_torch(f"device {choice}")
    import torch

    name = best_device() if choice == AUTO else str(choice)
    kind, _, number = name.partition(":")
    if kind == "rocm":
        if torch.version.hip is None:
            raise UsageError(
                f"device {choice}: this torch is not built for ROCm; install a ROCm build "
                "(https://pytorch.org/get-started) or use auto"
            )
        name = f"cuda:{number}" if number else "cuda"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(
            f"device {choice} is unknown; use auto, cpu, cuda, cuda:N, mps, xpu or rocm"
        ) from None
    count = _num_gpus(device.type) if device.type in ACCELERATORS else 1
    if (device.index or 0) >= count:
        gpus = "no such GPU" if not count else "one GPU" if count == 1 else f"{count} GPUs"
        raise UsageError(f"device {choice}: torch sees {gpus} here; use cpu or auto")
    return device


def has_fast_bf16(device: torch.device | str) -> bool:
    """Return whether the device multiplies bfloat16 in hardware."""
    kind = _kind(device)
    if kind == "cpu":
        flags = _cpu_flags()
        return any(bool(flags.get(name)) for name in BF16_FLAGS)
    return kind in ACCELERATORS and _gpu_precision(kind) == "bf16"


def has_fast_int8(device: torch.device | str) -> bool:
    """Return whether the device is a CPU with instructions for sums of int8 products."""
    flags = _cpu_flags() if _kind(device) == "cpu" else {}
    return any(bool(flags.get(name)) for name in INT8_FLAGS)


def choose_precision(device: torch.device | str, choice: str = AUTO) -> Precision:
    """Return the precision for encoding: ``choice``, or the fastest of the device for ``auto``."""
    if choice not in get_args(PrecisionChoice):
        raise UsageError(f"precision {choice!r} is unknown; use auto, fp32, bf16, fp16 or int8")
    kind = _kind(device)
    if choice == "int8" and kind != "cpu":
        raise UsageError(f"int8 is for CPUs, but the model is on {device}; use bf16")
    if choice == "fp16" and kind == "cpu":
        raise UsageError("fp16 is for GPUs, but the model is on cpu; use bf16 or int8")
    if choice != AUTO:
        return cast(Precision, choice)
    if kind in ACCELERATORS:
        return _gpu_precision(kind)
    return "bf16" if has_fast_bf16(device) else "int8" if has_fast_int8(device) else "fp32"


def autocast_for(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context for 16-bit products of fp32 weights; it does nothing for fp32 and int8."""
    if precision not in ("bf16", "fp16"):
        return nullcontext()
    import torch

    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def is_torch_installed() -> bool:
    """Return whether torch is installed, without importing it. Compact models do not need it."""
    return find_spec("torch") is not None


def has_gpu() -> bool:
    """Return whether ``auto`` may find a GPU, without importing torch.

    False if torch is not installed, even if a driver is.
    """
    if not is_torch_installed():
        return False
    is_apple = sys.platform == "darwin" and machine() == "arm64"
    return is_apple or any(Path(path).exists() for path in GPU_FILES)


def _kind(device: torch.device | str) -> str:
    return str(device).partition(":")[0]


def _cpu_flags() -> dict[str, Any]:
    """Return the CPU's capabilities by torch's names; empty if nothing reports them."""
    description = read_proc("cpuinfo")
    if description is not None:
        lines = (line.partition(":") for line in description.splitlines())
        flags = next((values for name, _, values in lines if name.strip() in CPUINFO_FIELDS), "")
        return {CPUINFO_NAMES.get(flag, flag): True for flag in flags.split()}
    if sys.platform == "darwin" and machine() == "arm64":
        return {"dot": True}  # All Apple silicon has it.
    if not is_torch_installed():
        return {}
    import torch

    function = getattr(torch.cpu, "get_capabilities", None)
    return dict(function()) if function is not None else {}


def free_gpu_memory() -> int:
    """Return the free bytes of the NVIDIA GPU; 0 without one, or without torch."""
    if not has_gpu():
        return 0
    import torch

    # ROCm builds of torch call AMD GPUs "cuda", too.
    if torch.version.cuda is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.mem_get_info()[0])
