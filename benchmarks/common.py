"""What every benchmark shares: where it ran, how a call is timed, how a result is kept."""

from __future__ import annotations

import datetime
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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eaglenet.core.files import write_json
from eaglenet.research.evaluation.run_records import describe_environment

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "torch", "triton", "transformers", "tokenizers", "numpy", "av", "lancedb", "decord2",
    "faiss-cpu", "opencv-python-headless",
)  # fmt: skip


def serve_command(store: Path) -> list[str]:
    """Command that serves a store on any free port, which it prints."""
    options = ["--store", str(store), "--port", "0"]
    return [sys.executable, "-P", "-m", "eaglenet", "serve", *options]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over several."""

    median: float
    best: float
    repeats: int


def timed(
    function: Callable[[], Any],
    device: torch.device | str = "cpu",
    *,
    repeats: int = 10,
    warmup: int = 3,
) -> Timing:
    """Seconds a call takes, the device's queue drained before and after each."""
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
    device: str, *, dtype: torch.dtype | None = None, size: int | None = None
) -> tuple[Callable[[], Any], int]:
    """A product of two square matrices (bf16 on a GPU, fp32 on a CPU), and its operations."""
    on_gpu = device == "cuda"
    size = size or (8192 if on_gpu else 1024)
    dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return lambda: left @ right, 2 * size**3


def ceiling(device: str, *, dtype: torch.dtype | None = None, size: int | None = None) -> float:
    """TFLOP/s of the best of ten square products: what a device gives at best, for a moment."""
    product, count = square_product(device, dtype=dtype, size=size)
    return count / timed(product, device, repeats=10).best / 1e12


def calls_a_second(
    sides: dict[str, Callable[[], Any]], device: str, *, rounds: int, turn: float
) -> dict[str, float]:
    """Of each side: median over rounds in which every side has one turn of about ``turn`` seconds.

    The calls of a turn (one at least) are queued without waiting in between. A GPU that is kept
    busy so runs into its limit of power, as it does in use.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else _nothing
    warmup = 3 if device == "cuda" else 1
    calls = {
        name: max(1, round(turn / timed(side, device, repeats=1, warmup=warmup).best))
        for name, side in sides.items()
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(calls[name]):
                side()
            synchronize()
            found[name].append(calls[name] / (time.perf_counter() - start))
    return {name: statistics.median(rates) for name, rates in found.items()}


@contextmanager
def written_out_attention() -> Iterator[None]:
    """Attention as two products and a softmax, in the operands' own precision."""
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # type: ignore[no-untyped-call]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)  # type: ignore[no-untyped-call]


def _product(
    bias: list[int], left: list[int], right: list[int], out_shape: Any = None, **others: Any
) -> int:
    """Operations of a product with an activation at its end, which torch's counter leaves out."""
    return 2 * left[0] * left[1] * right[1]


def _own_product(
    left: list[int], weight: list[int], bias: list[int], out_shape: Any = None, **others: Any
) -> int:
    """The same of ``eaglenet.encoders.blocks``, whose weight is a layer's own."""
    return 2 * left[0] * left[1] * weight[0]


def operations(function: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products and convolutions of a call, two a
    multiply-add. Attention is written out meanwhile, so that its products count on any device."""
    import eaglenet.encoders.blocks  # noqa: F401  # torch learns of the operation

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
    """Date, hardware, versions and commit: what a number means nothing without."""
    found = describe_environment(PACKAGES)
    hardware = found["hardware"]
    gpus = hardware.get("gpus")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": hardware["processor"],
        "cpu_cores": hardware["cores"],
        "threads": torch.get_num_threads(),
        "gpu": gpus[0] if gpus else None,
        "cuda": torch.version.cuda,
        "python": found["versions"].pop("python"),
        "versions": found["versions"],
        "commit": found["commit"] or "unknown",
    }


def save_result(name: str, payload: dict[str, Any], folder: Path | None = None) -> Path:
    """Write ``payload`` with its environment to ``results/<name>-<cpu or gpu>.json``."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    where = environment()
    kind = "cpu" if where["gpu"] is None else str(where["gpu"]).split()[-1].lower()
    path = folder / f"{name}-{kind}.json"
    write_json(path, {"environment": where, **payload})
    return path


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = 1000 * np.asarray(seconds)
    return {f"p{share}_ms": round(float(np.percentile(values, share)), 1) for share in (50, 99)}
