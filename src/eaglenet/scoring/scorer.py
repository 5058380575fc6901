"""Scorers of tiles of pairs, the choice of one, and the scores of all pairs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.registry import Registry
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method, evaluating

Precision = Literal["fp32", "bf16"]


class Scorer(ABC):
    """Scorer of tiles: ``prepare`` a block of videos once, then ``score`` texts with it.

    Scores do not depend on autocast or the float32 matmul precision of the caller.
    """

    tile_texts: int
    tile_videos: int
    precision: Precision

    def calibrate(self, text: TextFeatures, video: VideoFeatures) -> None:
        """Adapt to all features before scoring; scores change only by rounding."""
        return

    def prepare(self, video: VideoFeatures) -> Any:
        """Compute everything that depends on the videos only; row i belongs to video i."""
        with fixed_precision(video.frames.device, self.precision):
            return self._prepare(video)

    def score(self, text: TextFeatures, prepared_videos: Any) -> Tensor:
        """Return float32 scores ``[texts, videos]``."""
        with fixed_precision(text.sentence.device, self.precision):
            return self._score(text, prepared_videos)

    def allow_shortcuts(self) -> None:
        """Allow approximations that are exact to 1e-5, if there are any."""
        return

    @abstractmethod
    def _prepare(self, video: VideoFeatures) -> Any: ...

    @abstractmethod
    def _score(self, text: TextFeatures, prepared_videos: Any) -> Tensor: ...


@contextmanager
def fixed_precision(device: torch.device, precision: Precision) -> Iterator[None]:
    """Compute products in ``precision``, regardless of the settings of the caller."""
    previous = torch.get_float32_matmul_precision()
    if precision == "fp32":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(previous)


class ReferenceScorer(Scorer):
    """Scorer that calls ``score`` of the method; works for any method."""

    def __init__(self, method: Method, precision: Precision) -> None:
        self.method = method
        self.precision = precision
        self.dtype = next((value.dtype for value in method.parameters()), torch.float32)
        self.tile_texts, self.tile_videos = method.score_tile

    def _prepare(self, video: VideoFeatures) -> VideoFeatures:
        return video.to(video.frames.device, self.dtype)

    def _score(self, text: TextFeatures, prepared_videos: VideoFeatures) -> Tensor:
        device = prepared_videos.frames.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.method.score(text.to(device, self.dtype), prepared_videos).float()


class PairNoiseScorer(Scorer):
    """Scorer that calls ``score`` of the method with separate noise per pair.

    Slow, because it draws the noise of every pair.
    """

    # The noise of 1,024 pairs with 20 candidates of 512 numbers takes 42 MB, or 84 MB at the peak.
    tile_texts, tile_videos = 32, 32
    precision: Precision = "fp32"

    def __init__(self, method: Any, seed: int) -> None:
        self.method = method
        self.seed = seed

    def _prepare(self, video: VideoFeatures) -> VideoFeatures:
        return video

    def _score(self, text: TextFeatures, prepared_videos: VideoFeatures) -> Tensor:
        text = text.to(prepared_videos.frames.device)
        noise = self.method.pair_noise(text, prepared_videos, self.seed)
        scores: Tensor = self.method.score(text, prepared_videos, noise)
        return scores.float()


class FastForm(Protocol):
    """Weights of a model, rearranged for fast scoring that is as exact as its ``score``."""

    def factorised_scorer(self, precision: Precision) -> Scorer:
        """Return the scorer in plain PyTorch, for any device."""
        ...

    def kernel_scorer(self, precision: Precision) -> Scorer:
        """Return the scorer with GPU kernels; :meth:`why_no_kernel` must return None."""
        ...

    def why_no_kernel(self, video: VideoFeatures) -> str | None:
        """Return the reason why the kernels cannot score these videos, or None."""
        ...


FAST_FORMS: Registry[Callable[[Any, torch.device], FastForm | None]] = Registry(
    "fast scorer",
    modules={
        "eaglenet": "eaglenet.scoring.eaglenet.scorers",
        "wordframe": "eaglenet.scoring.wordframe",
    },
)
"""Functions by name of the method, each of which returns the fast form of a model, or None."""


Backend = Literal["auto", "reference", "factorised", "kernel"]

logger = logging.getLogger(__name__)


def check_choice(backend: str, precision: str) -> None:
    """Raise ``UsageError`` for an unknown back end or precision."""
    if backend not in get_args(Backend):
        raise UsageError(
            f"unknown back end {backend!r}; choose one of {', '.join(get_args(Backend))}"
        )
    if precision not in get_args(Precision):
        raise UsageError(
            f"unknown precision {precision!r}; choose one of {', '.join(get_args(Precision))}"
        )


def choose(
    method: Method,
    video: VideoFeatures,
    *,
    backend: str = "auto",
    precision: str = "fp32",
    pair_noise: int | None = None,
) -> Scorer:
    """Return the scorer for a method on the device of the videos; log the choice and why."""
    check_choice(backend, precision)
    if pair_noise is not None:
        return _with_pair_noise(method, backend, precision, pair_noise)
    # Weights are always folded in full precision.
    with fixed_precision(video.frames.device, "fp32"):
        return _build_scorer(method, video, backend, cast(Precision, precision))


def _with_pair_noise(method: Method, backend: str, precision: str, seed: int) -> Scorer:
    if not hasattr(method, "pair_noise"):
        raise UsageError(f"{method.name} has no evaluation noise; remove --pair-noise")
    if backend not in ("auto", "reference") or precision != "fp32":
        raise UsageError(
            "--pair-noise needs the reference back end in fp32; remove --backend and --precision"
        )
    return PairNoiseScorer(method, seed)


def _build_scorer(
    method: Method, video: VideoFeatures, backend: str, precision: Precision
) -> Scorer:
    device = video.frames.device
    form = None
    if backend != "reference" and method.name in FAST_FORMS:
        form = FAST_FORMS[method.name](method, device)
    if form is None:
        reason = "requested" if backend == "reference" else f"{method.name} has no factorised form"
        if backend not in ("auto", "reference"):
            raise UsageError(f"the {backend} back end cannot score this model: {reason}")
        logger.info("scoring with the reference back end: %s", reason)
        return ReferenceScorer(method, precision)
    if backend == "factorised" or (backend == "auto" and device.type != "cuda"):
        reason = "requested" if backend == "factorised" else f"features are on {device.type}"
        logger.info("scoring with the factorised back end: %s", reason)
        return form.factorised_scorer(precision)
    obstacle = form.why_no_kernel(video)
    if obstacle is None:
        reason = "requested" if backend == "kernel" else "a two-layer graph on a CUDA device"
        logger.info("scoring with the kernel back end: %s", reason)
        return form.kernel_scorer(precision)
    if backend == "kernel":
        raise UsageError(f"the kernel back end cannot score this model: {obstacle}")
    logger.info("scoring with the factorised back end: %s", obstacle)
    return form.factorised_scorer(precision)


@dataclass(frozen=True)
class TopK:
    """Best videos of each text, best first."""

    scores: Tensor
    """``[texts, k]`` float32."""
    videos: Tensor
    """``[texts, k]`` int64 indices of videos."""


@torch.no_grad()
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = "auto",
    precision: str = "fp32",
    pair_noise: int | None = None,
    tile_texts: int | None = None,
    tile_videos: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Return float32 scores ``[texts, videos]`` on the device of the features.

    Args:
        backend: ``reference`` (``score`` of the method, for any method), ``factorised`` (plain
            PyTorch; computes once per video what depends on the video alone), ``kernel``
            (Triton), or ``auto``.
        precision: ``fp32`` (within 1e-5 of the reference) or ``bf16`` (within 3e-3).
        pair_noise: seed of separate noise for each pair, for methods that score with random
            candidates. By default, all pairs share the noise stored with the model.
        tile_texts, tile_videos: size of a tile; the default depends on the back end.
        progress: called after every tile with the number of scored pairs and of all pairs.
    """
    scorer = choose(method, video, backend=backend, precision=precision, pair_noise=pair_noise)
    tiles = _score_tiles(method, scorer, text, video, (tile_texts, tile_videos), progress)
    matrix = torch.empty(len(text), len(video), device=video.frames.device)
    for texts, videos, scores in tiles:
        matrix[texts, videos] = scores
    return matrix


@torch.no_grad()
def score_best(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    count: int,
    *,
    backend: str = "auto",
    precision: str = "fp32",
    tile_texts: int | None = None,
    tile_videos: int | None = None,
) -> TopK:
    """Return the ``count`` best videos of each text, without building the matrix of all scores.

    Other arguments are those of :func:`score_all`.
    """
    if count < 1:
        raise UsageError(f"the number of best videos is {count}; it must be 1 or more")
    scorer = choose(method, video, backend=backend, precision=precision)
    tiles = _score_tiles(method, scorer, text, video, (tile_texts, tile_videos))
    best: dict[int, TopK] = {}  # By the first text of a tile.
    for texts, videos, scores in tiles:
        columns = torch.arange(videos.start, videos.stop, device=scores.device)
        columns = columns.expand(len(scores), -1)
        if texts.start in best:
            previous_best = best[texts.start]
            scores = torch.cat([previous_best.scores, scores], dim=1)
            columns = torch.cat([previous_best.videos, columns], dim=1)
        top = scores.topk(min(count, scores.shape[1]), dim=1)
        best[texts.start] = TopK(top.values, columns.gather(1, top.indices))
    return TopK(
        torch.cat([each.scores for each in best.values()]),
        torch.cat([each.videos for each in best.values()]),
    )


def _score_tiles(
    method: Method,
    scorer: Scorer,
    text: TextFeatures,
    video: VideoFeatures,
    tile: tuple[int | None, int | None],
    progress: Progress | None = None,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the scores of all tiles; videos are the outer loop, so that each is prepared once."""
    if len(text) == 0 or len(video) == 0:
        raise UsageError(
            f"{len(text)} texts and {len(video)} videos to score; pass at least one of each"
        )
    if video.frames.shape[1] == 0:
        raise UsageError("videos of 0 frames have no scores; each needs at least one frame")
    rows = scorer.tile_texts if tile[0] is None else tile[0]
    columns = scorer.tile_videos if tile[1] is None else tile[1]
    if min(rows, columns) < 1:
        raise UsageError(f"tiles of {rows} texts x {columns} videos; both must be 1 or more")
    with evaluating(method):
        scorer.calibrate(text, video)
        for videos in _spans(len(video), columns):
            prepared_videos = scorer.prepare(video[videos])
            for texts in _spans(len(text), rows):
                yield texts, videos, scorer.score(text[texts], prepared_videos)
                num_pairs = videos.start * len(text) + texts.stop * (videos.stop - videos.start)
                report_progress(progress, "scoring pairs", num_pairs, len(text) * len(video))


def _spans(total: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
