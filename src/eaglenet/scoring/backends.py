"""Choice of the scoring back end: reference, factorised or kernel."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from eaglenet.core.errors import UsageError
from eaglenet.core.types import VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.scoring.scorer import (
    FAST_FORMS,
    HasPairNoise,
    PairNoiseScorer,
    Precision,
    ReferenceScorer,
    Scorer,
    fixed_precision,
)

Backend = Literal["auto", "reference", "factorised", "kernel"]

logger = logging.getLogger(__name__)


def check_choice(backend: str, precision: str) -> None:
    """Raise an error for unknown names, before a long computation starts."""
    if backend not in get_args(Backend):
        raise UsageError(f"back end {backend!r}; choose one of {', '.join(get_args(Backend))}")
    if precision not in get_args(Precision):
        raise UsageError(f"precision {precision!r}; choose one of {', '.join(get_args(Precision))}")


def choose(
    method: Method,
    video: VideoFeatures,
    *,
    backend: str = "auto",
    precision: str = "fp32",
    pair_noise: int | None = None,
) -> Scorer:
    """Return the scorer for a method on its videos' device. ``--verbose`` shows which and why."""
    check_choice(backend, precision)
    if pair_noise is not None:
        return _with_pair_noise(method, backend, precision, pair_noise)
    exact: Precision = "bf16" if precision == "bf16" else "fp32"
    # Weights are folded once, always in full precision.
    with fixed_precision(video.frames.device, "fp32"):
        return _build_scorer(method, video, backend, exact)


def _with_pair_noise(method: Method, backend: str, precision: str, seed: int) -> Scorer:
    if not isinstance(method, HasPairNoise):
        raise UsageError(f"{method.name} has no evaluation noise; leave out --pair-noise")
    if backend not in ("auto", "reference") or precision != "fp32":
        raise UsageError(
            "--pair-noise is scored by the reference back end in fp32; leave out "
            "--backend and --precision"
        )
    return PairNoiseScorer(method, seed)


def _build_scorer(method: Method, video: VideoFeatures, backend: str, exact: Precision) -> Scorer:
    device = video.frames.device
    form = None
    if backend != "reference" and method.name in FAST_FORMS:
        form = FAST_FORMS[method.name](method, device)
    if form is None:
        reason = "requested" if backend == "reference" else f"{method.name} has no factorised form"
        if backend not in ("auto", "reference"):
            raise UsageError(f"the {backend} back end cannot score this model: {reason}")
        logger.info("scoring with the reference back end: %s", reason)
        return ReferenceScorer(method, exact)
    if backend == "factorised" or (backend == "auto" and device.type != "cuda"):
        reason = "requested" if backend == "factorised" else f"features are on {device.type}"
        logger.info("scoring with the factorised back end: %s", reason)
        return form.factorised(exact)
    obstacle = form.why_no_kernel(video)
    if obstacle is None:
        reason = "requested" if backend == "kernel" else "a two-layer graph on a CUDA device"
        logger.info("scoring with the kernel back end: %s", reason)
        return form.kernel(exact)
    if backend == "kernel":
        raise UsageError(f"the kernel back end cannot score this model: {obstacle}")
    logger.info("scoring with the factorised back end: %s", obstacle)
    return form.factorised(exact)
