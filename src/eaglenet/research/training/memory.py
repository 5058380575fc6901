"""Peak memory of a stretch of work, on a GPU or in this process."""

from __future__ import annotations

import contextlib

import torch

from eaglenet.core.platform import PROC, read_proc


def reset_peak_memory(device: torch.device) -> None:
    """Start measuring: the peak is what is held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # "5" resets the peak resident size of this process (Linux); elsewhere nothing is measured.
        with contextlib.suppress(OSError):
            (PROC / "self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Bytes: the GPU allocator's peak, or the process's peak resident size; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    for line in (read_proc("self/status") or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
