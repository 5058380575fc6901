"""Environment of a measurement: versions, commit, hardware, command, peak memory."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.platform import PROC, read_proc
from eaglenet.version import __version__

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "av", "triton")


def describe_environment(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    versions = {"eaglenet": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "commit": git_commit(Path(__file__).parent),
        "hardware": describe_hardware(),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "eaglenet"), *sys.argv[1:]],
    }


def describe_hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        hardware["memory_gib"] = round(total / 2**30, 1)
    if torch.cuda.is_available():
        hardware["gpus"] = [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ]
    return hardware


def git_commit(folder: Path) -> str | None:
    """Return the commit of the working tree of ``folder``, with ``+`` if files were changed.

    ``EAGLENET_COMMIT`` overrides it, for files that were copied without their history.
    """
    if "EAGLENET_COMMIT" in os.environ:
        return os.environ["EAGLENET_COMMIT"]
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()


def _processor_name() -> str:
    for line in (read_proc("cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak to the memory in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # "5" resets the peak resident size of this process; Linux only.
        with contextlib.suppress(OSError):
            (PROC / "self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes, of the GPU or of this process; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    for line in (read_proc("self/status") or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
