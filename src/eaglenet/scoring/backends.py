"""The three ways to score, and the choice between them."""

from __future__ import annotations

import importlib.util
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eaglenet.errors import UsageError
from eaglenet.methods.base import Method
from eaglenet.scoring.eaglenet import factorised
from eaglenet.scoring.eaglenet.factorised import Prepared
from eaglenet.scoring.eaglenet.plan import Plan, plan_of
from eaglenet.types import TextFeatures, VideoFeatures

Backend = Literal["auto", "reference", "factorised", "kernel"]
Precision = Literal["fp32", "bf16"]

KERNEL_TILE_BYTES = 2 * 2**30
"""A tile's projections at most. Larger tiles were at most 3% faster on an H200."""

logger = logging.getLogger(__name__)


class Scorer(ABC):
    """Scores tiles: ``prepare`` a block of videos once, then ``score`` texts against it.

    A score does not depend on the caller's autocast or precision of float32 products.
    """

    tile_texts: int
    tile_videos: int
    precision: Precision

    def prepare(self, video: VideoFeatures) -> Any:
        """What does not depend on the text; rows can be cut and stored per video."""
        with _alone(video.frames.device, self.precision):
            return self._prepare(video)

    def score(self, text: TextFeatures, prepared: Any) -> Tensor:
        """Float32 scores ``[texts, videos]``."""
        with _alone(text.sentence.device, self.precision):
            return self._score(text, prepared)

    @abstractmethod
    def _prepare(self, video: VideoFeatures) -> Any: ...

    @abstractmethod
    def _score(self, text: TextFeatures, prepared: Any) -> Tensor: ...


@contextmanager
def _alone(device: torch.device, precision: Precision) -> Iterator[None]:
    kept = torch.get_float32_matmul_precision()
    if precision == "fp32":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(kept)


class ReferenceScorer(Scorer):
    """The method's own ``score``; any method."""

    def __init__(self, method: Method, precision: Precision) -> None:
        self.method = method
        self.precision = precision
        self.dtype = next((value.dtype for value in method.parameters()), torch.float32)
        self.tile_texts, self.tile_videos = method.score_tile

    def _prepare(self, video: VideoFeatures) -> VideoFeatures:
        return video.to(video.frames.device, self.dtype)

    def _score(self, text: TextFeatures, prepared: VideoFeatures) -> Tensor:
        device = prepared.frames.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.method.score(text.to(device, self.dtype), prepared).float()


class FactorisedScorer(Scorer):
    """Plain PyTorch on what is left of a pair; EagleNet, any device."""

    def __init__(self, plan: Plan, precision: Precision) -> None:
        self.precision = precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.plan = plan
        self.fast = replace(plan, graph=_cast(plan.graph, self.dtype))
        on_device = plan.noise.is_cuda
        self.tile_texts = 32 if on_device else 8
        self.tile_videos = 256 if on_device else 128

    def _prepare(self, video: VideoFeatures) -> Prepared:
        full = video.to(video.frames.device, torch.float32)
        return factorised.rounded(factorised.prepare(self.plan, full), self.dtype)

    def _score(self, text: TextFeatures, prepared: Prepared) -> Tensor:
        return factorised.score_tile(self.fast, text.sentence.float(), prepared)


class KernelScorer(Scorer):
    """The Triton kernels; EagleNet with two graph layers on a CUDA device."""

    tile_texts = 64

    def __init__(self, plan: Plan, precision: Precision) -> None:
        from eaglenet.scoring.eaglenet.fused import FusedScorer

        self.precision = precision
        self.plan = plan
        self.fused = FusedScorer(plan, precise=precision == "fp32")
        row = self.tile_texts * self.fused.bytes_a_pair()
        self.tile_videos = min(max(KERNEL_TILE_BYTES // row, 1), 512)

    def _prepare(self, video: VideoFeatures) -> Prepared:
        full = video.to(video.frames.device, torch.float32)
        return self.fused.prepare(factorised.prepare(self.plan, full))

    def _score(self, text: TextFeatures, prepared: Prepared) -> Tensor:
        return self.fused.score_tile(text.sentence, prepared)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A plan with its floating-point tensors in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(_cast(item, dtype) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {spec.name: _cast(getattr(value, spec.name), dtype) for spec in fields(value)}
        # One projection for all edges stays one object: the scorer then multiplies it once.
        if parts.get("text_frame") is not None and value.text_frame is value.text_text:  # type: ignore[attr-defined]
            parts["text_frame"] = parts["text_text"]
        return replace(value, **parts)
    return value


def why_no_kernel(plan: Plan, video: VideoFeatures) -> str | None:
    """The reason why the Triton kernels cannot be used, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install 'eaglenet[triton]')"
    from eaglenet.scoring.eaglenet.fused import why_not
    from eaglenet.scoring.eaglenet.kernel import is_interpreted

    if video.frames.device.type != "cuda" and not is_interpreted():
        return f"features are on {video.frames.device.type}, the kernels need a CUDA device"
    return why_not(plan, video.frames.shape[1])


def check_choice(backend: str, precision: str) -> None:
    """Raise if no scorer is called so: before the long work whose result it is to score."""
    if backend not in get_args(Backend):
        raise UsageError(f"back end {backend!r}; choose one of {', '.join(get_args(Backend))}")
    if precision not in get_args(Precision):
        raise UsageError(f"precision {precision!r}; choose one of {', '.join(get_args(Precision))}")


def choose(
    method: Method, video: VideoFeatures, *, backend: str = "auto", precision: str = "fp32"
) -> Scorer:
    """The scorer for a method on its videos' device. ``--verbose`` shows which and why."""
    check_choice(backend, precision)
    exact: Precision = "bf16" if precision == "bf16" else "fp32"
    # Weights are folded once, always in full precision.
    with _alone(video.frames.device, "fp32"):
        return _built(method, video, backend, exact)


def _built(method: Method, video: VideoFeatures, backend: str, exact: Precision) -> Scorer:
    device = video.frames.device
    plan = None if backend == "reference" else plan_of(method, device)
    if plan is None:
        reason = "asked for" if backend == "reference" else f"{method.name} has no factorised form"
        if backend not in ("auto", "reference"):
            raise UsageError(f"the {backend} back end cannot score this model: {reason}")
        logger.info("scoring with the reference back end: %s", reason)
        return ReferenceScorer(method, exact)
    if backend == "factorised" or (backend == "auto" and device.type != "cuda"):
        reason = "asked for" if backend == "factorised" else f"features are on {device.type}"
        logger.info("scoring with the factorised back end: %s", reason)
        return FactorisedScorer(plan, exact)
    obstacle = why_no_kernel(plan, video)
    if obstacle is None:
        reason = "asked for" if backend == "kernel" else "a two-layer graph on a CUDA device"
        logger.info("scoring with the kernel back end: %s", reason)
        return KernelScorer(plan, exact)
    if backend == "kernel":
        raise UsageError(f"the kernel back end cannot score this model: {obstacle}")
    logger.info("scoring with the factorised back end: %s", obstacle)
    return FactorisedScorer(plan, exact)
