"""The same bits again on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable(device: torch.device, is_on: bool) -> Iterator[None]:
    """On a GPU choose kernels whose sums do not depend on timing; a CPU's never do.

    An operation without such a kernel raises. Only warning of it would not do: PyTorch then leaves
    the backward pass of attention as it is, too.
    """
    if device.type != "cuda" or not is_on:
        yield
        return
    # Read when cuBLAS starts; without it matrix products may choose another algorithm each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
