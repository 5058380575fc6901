"""``score_all``: every text against every video, tile by tile."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method, evaluating
from eaglenet.scoring.results import MatrixResult, Result, ResumeFolder, TopK, TopKResult, spans
from eaglenet.scoring.scorer import Scorer, choose


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: str = ...,
    pair_noise: int | None = ...,
    tile_texts: int | None = ...,
    tile_videos: int | None = ...,
    top_k: None = ...,
    resume: Path | str | None = ...,
    progress: Progress | None = ...,
) -> Tensor: ...


@overload
def score_all(
    method: Method,
    text: TextFeatures,
    video: VideoFeatures,
    *,
    backend: str = ...,
    precision: str = ...,
    pair_noise: int | None = ...,
    tile_texts: int | None = ...,
    tile_videos: int | None = ...,
    top_k: int,
    resume: Path | str | None = ...,
    progress: Progress | None = ...,
) -> TopK: ...


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
    top_k: int | None = None,
    resume: Path | str | None = None,
    progress: Progress | None = None,
) -> Tensor | TopK:
    """Return float32 scores ``[texts, videos]`` on the features' device, computed tile by tile.

    Args:
        backend: ``reference`` (the method's own score, any method), ``factorised`` (plain PyTorch,
            with the video's own part once per video), ``kernel`` (Triton), or ``auto``.
        precision: ``fp32`` (within 1e-5 of the reference) or ``bf16`` (within 3e-3).
        pair_noise: seed of separate noise for each pair, for methods that score with random
            candidates; by default all pairs share the noise stored with the model.
        tile_texts, tile_videos: size of a tile; each back end has its own default.
        top_k: return the best videos of each text instead of the matrix, which is never built.
        resume: folder for finished blocks of videos; a second call continues from there.
        progress: called after every tile with the pairs scored and all pairs.
    """
    if len(text) == 0 or len(video) == 0:
        raise UsageError(
            f"{len(text)} texts and {len(video)} videos to score; at least one of each is needed"
        )
    if video.frames.shape[1] == 0:
        raise UsageError("videos of 0 frames have no scores; each needs at least one frame")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k is {top_k}; it must be 1 or more")
    with evaluating(method):
        scorer = choose(method, video, backend=backend, precision=precision, pair_noise=pair_noise)
        tile = (
            scorer.tile_texts if tile_texts is None else tile_texts,
            scorer.tile_videos if tile_videos is None else tile_videos,
        )
        if min(tile) < 1:
            raise UsageError(f"tiles of {tile[0]} texts x {tile[1]} videos; both must be 1 or more")
        device = video.frames.device
        resume_folder = None
        if resume is not None:
            model = (type(method).__qualname__, getattr(method, "config", None))
            settings = (model, type(scorer).__name__, precision, pair_noise, top_k, tile[1])
            resume_folder = ResumeFolder(Path(resume), _fingerprint(method, text, video, settings))
        result: MatrixResult | TopKResult
        if top_k is None:
            result = MatrixResult(len(text), len(video), device, resume_folder)
        else:
            result = TopKResult(len(text), min(top_k, len(video)), device, resume_folder)
        scorer.calibrate(text, video)
        _fill(scorer, text, video, tile, result, progress)
        return result.value()


def _fill(
    scorer: Scorer,
    text: TextFeatures,
    video: VideoFeatures,
    tile: tuple[int, int],
    result: Result,
    progress: Progress | None,
) -> None:
    """Score all tiles, videos in the outer loop, so that each is prepared once."""
    for number, video_span in enumerate(spans(len(video), tile[1])):
        if number < result.blocks_done:
            continue
        prepared_videos = scorer.prepare(video[video_span])
        for text_span in spans(len(text), tile[0]):
            result.add(text_span, video_span, scorer.score(text[text_span], prepared_videos))
            block = text_span.stop * (video_span.stop - video_span.start)
            num_pairs = video_span.start * len(text) + block
            report_progress(progress, "scoring pairs", num_pairs, len(text) * len(video))
        result.block_finished()


def _fingerprint(
    method: Method, text: TextFeatures, video: VideoFeatures, settings: tuple[object, ...]
) -> str:
    """Return a hash of everything that stored blocks depend on, including the order of rows."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for record in (text, video):
        names = [spec.name for spec in fields(record) if getattr(record, spec.name) is not None]
        digest.update(repr(names).encode())
        for value in record.tensors():
            _update(digest, "", value)
    for name, value in method.state_dict().items():
        _update(digest, name, value)
    return digest.hexdigest()


def _update(digest: hashlib.blake2b, name: str, value: Tensor) -> None:
    """Hash a tensor's bytes, a block of rows at a time."""
    digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
    rows = value.reshape(1, -1) if value.dim() < 2 else value
    for span in spans(len(rows), 1024):
        flat = rows[span].detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
