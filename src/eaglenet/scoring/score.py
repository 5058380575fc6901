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
from eaglenet.scoring.backends import choose
from eaglenet.scoring.gathering import Kept, MatrixResult, Result, TopKResult
from eaglenet.scoring.scorer import Scorer
from eaglenet.scoring.tiles import TopK, spans


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
    """Float32 scores ``[texts, videos]`` on the features' device; memory holds one tile beside it.

    Args:
        backend: ``reference`` (the method's own score, any method), ``factorised`` (plain PyTorch,
            what depends on a video alone once per video), ``kernel`` (Triton), or ``auto``.
        precision: ``fp32`` (within 1e-5 of the reference) or ``bf16`` (within 3e-3).
        pair_noise: seed of noise of its own for each pair, for methods that score with random
            candidates; without it all pairs share the bank that is kept with the model.
        tile_texts, tile_videos: size of a tile; each back end has its own default.
        top_k: give the best videos of each text instead of the matrix, which is then never made.
        resume: a folder that keeps finished blocks of videos; a second call goes on from there.
        progress: told the pairs scored and all pairs, after every tile.
    """
    if len(text) == 0 or len(video) == 0:
        raise UsageError(
            f"{len(text)} texts and {len(video)} videos to score; give at least one each"
        )
    if video.frames.shape[1] == 0:
        raise UsageError("videos of 0 frames have no scores; give at least one frame each")
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
        kept = None
        if resume is not None:
            model = (type(method).__qualname__, getattr(method, "config", None))
            settings = (model, type(scorer).__name__, precision, pair_noise, top_k, tile[1])
            kept = Kept(Path(resume), _fingerprint(method, text, video, settings))
        result: MatrixResult | TopKResult
        if top_k is None:
            result = MatrixResult(len(text), len(video), device, kept)
        else:
            result = TopKResult(len(text), min(top_k, len(video)), device, kept)
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
    """Videos outside, texts inside: a video's own part is made once."""
    for number, video_span in enumerate(spans(len(video), tile[1])):
        if number < result.blocks_done:
            continue
        prepared = scorer.prepare(video[video_span])
        for text_span in spans(len(text), tile[0]):
            result.add(text_span, video_span, scorer.score(text[text_span], prepared))
            block = text_span.stop * (video_span.stop - video_span.start)
            done = video_span.start * len(text) + block
            report_progress(progress, "scoring pairs", done, len(text) * len(video))
        result.block_finished()


def _fingerprint(
    method: Method, text: TextFeatures, video: VideoFeatures, settings: tuple[object, ...]
) -> str:
    """Changes when anything does that would make kept blocks wrong, the order of rows included."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for record in (text, video):
        given = [spec.name for spec in fields(record) if getattr(record, spec.name) is not None]
        digest.update(repr(given).encode())
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
