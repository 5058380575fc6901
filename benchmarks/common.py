"""Shared by all benchmarks: environment, timing, ranks and results."""

from __future__ import annotations

import datetime
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eaglenet.core.files import write_json
from eaglenet.research.evaluation.run_records import describe_environment

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "torch", "triton", "onnxruntime", "transformers", "tokenizers", "numpy", "av", "lancedb",
    "decord2", "faiss-cpu", "opencv-python-headless", "open_clip_torch", "sentence-transformers",
    "faster-whisper", "ctranslate2", "rapidocr", "scenedetect", "uvicorn",
)  # fmt: skip


def serve_command(store: Path) -> list[str]:
    """Return the command that serves a store on a free port, which the command prints."""
    options = ["--store", str(store), "--port", "0"]
    return [sys.executable, "-P", "-m", "eaglenet", "serve", *options]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median and best of ``repeats`` calls."""

    median: float
    best: float
    repeats: int


def time_calls(
    function: Callable[[], Any],
    device: torch.device | str = "cpu",
    *,
    repeats: int = 10,
    warmup: int = 3,
) -> Timing:
    """Time calls of a function; the device is synchronised before and after each call."""
    synchronize = torch.cuda.synchronize if torch.device(device).type == "cuda" else _nothing
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return Timing(statistics.median(seconds), min(seconds), repeats)


def _nothing() -> None:
    return None


def square_product(
    device: str, *, dtype: torch.dtype | None = None
) -> tuple[Callable[[], Any], int]:
    """Return a product of two square matrices, and its number of operations.

    By default, it is in bf16 on a GPU and in fp32 on a CPU.
    """
    on_gpu = device == "cuda"
    size = 8192 if on_gpu else 1024
    dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return lambda: left @ right, 2 * size**3


def ceiling(device: str, *, dtype: torch.dtype | None = None) -> float:
    """Return the TFLOP/s of the best of ten square products, the short-term peak of a device."""
    product, count = square_product(device, dtype=dtype)
    return count / time_calls(product, device, repeats=10).best / 1e12


def calls_per_second(
    sides: dict[str, Callable[[], Any]], device: str, *, rounds: int, turn: float
) -> dict[str, float]:
    """Return the calls per second of each side, measured alternately: the median over rounds.

    In each round, every side has a turn of about ``turn`` seconds, in which its calls (at least
    one) are queued without waiting. This brings a GPU to its power limit, as real work does.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else _nothing
    warmup = 3 if device == "cuda" else 1
    calls = {
        name: max(1, round(turn / time_calls(side, device, repeats=1, warmup=warmup).best))
        for name, side in sides.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(calls[name]):
                side()
            synchronize()
            rates[name].append(calls[name] / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in rates.items()}


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Compute attention as two products and a softmax, in the precision of the operands."""
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # type: ignore[no-untyped-call]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)  # type: ignore[no-untyped-call]


def _product(
    bias: list[int], left: list[int], right: list[int], out_shape: Any = None, **others: Any
) -> int:
    """Count a product fused with an activation, which the counter of torch leaves out."""
    return 2 * left[0] * left[1] * right[1]


def _own_product(
    left: list[int], weight: list[int], bias: list[int], out_shape: Any = None, **others: Any
) -> int:
    """Count the fused product of ``eaglenet.encoders.blocks``, whose weight is not transposed."""
    return 2 * left[0] * left[1] * weight[0]


def operations(function: Callable[[], Any]) -> int:
    """Count the floating-point operations of matrix products and convolutions in a call.

    A multiply-add counts as two. Attention is unfused, so that its products count on any device.
    """
    import eaglenet.encoders.blocks  # noqa: F401  # registers the operation with torch

    counter = FlopCounterMode(
        display=False,
        custom_mapping={
            torch.ops.aten._addmm_activation: _product,
            torch.ops.eaglenet.quick_gelu_product: _own_product,
        },
    )
    with sdpa_kernel(SDPBackend.MATH), counter:
        function()
    return int(counter.get_total_flops())


def environment() -> dict[str, Any]:
    """Return date, hardware, versions and commit."""
    description = describe_environment(PACKAGES)
    hardware = description["hardware"]
    gpus = hardware.get("gpus")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": hardware["processor"],
        "cpu_cores": hardware["cores"],
        "threads": torch.get_num_threads(),
        "gpu": gpus[0] if gpus else None,
        "cuda": torch.version.cuda,
        "python": description["versions"].pop("python"),
        "versions": description["versions"],
        "commit": description["commit"] or "unknown",
    }


def save_result(
    name: str, payload: dict[str, Any], folder: Path | None = None, *, device: str = ""
) -> Path:
    """Write ``payload`` with its environment to ``results/<name>-<cpu or gpu>.json``.

    device: the device that was measured, if it can be chosen: a CPU beside a GPU is not that GPU.
    """
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    where = environment() | ({"device": device} if device else {})
    on_gpu = where["gpu"] is not None and device != "cpu"
    kind = str(where["gpu"]).split()[-1].lower() if on_gpu else "cpu"
    path = folder / f"{name}-{kind}.json"
    write_json(path, {"environment": where, **payload})
    return path


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile in milliseconds."""
    values = 1000 * np.asarray(seconds)
    return {f"p{rank}_ms": round(float(np.percentile(values, rank)), 1) for rank in (50, 99)}


def children_seconds() -> float:
    """Return the processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ranks_of(scores: Tensor, video_of_text: Tensor) -> Tensor:
    """Return the rank of the right video of each text; equal scores count as better."""
    return (scores >= scores.gather(1, video_of_text[:, None])).sum(dim=1)


def recalls(ranks: Tensor) -> dict[str, float]:
    """Return R@1, R@5 and R@10 in percent."""
    return {f"R@{k}": round(100 * float((ranks <= k).double().mean()), 2) for k in (1, 5, 10)}
