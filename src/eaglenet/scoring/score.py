"""``score_all``: every text against every video, tile by tile, and the results that it fills."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.files import atomic_write, read_json, write_json
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method, evaluating
from eaglenet.scoring.scorer import Scorer, choose

SCORES_FILE = "scores.npy"


@dataclass(frozen=True)
class TopK:
    """The best videos of each text, best first."""

    scores: Tensor
    """``[texts, k]`` float32."""
    videos: Tensor
    """``[texts, k]`` int64 column numbers."""


def spans(total: int, size: int) -> Iterator[slice]:
    """Cut ``range(total)`` into slices of at most ``size``."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


class RunningTopK:
    """Top k columns of a block of rows, updated tile by tile."""

    def __init__(self, k: int, start: TopK | None = None) -> None:
        self.k = k
        self._scores = None if start is None else start.scores
        self._videos = None if start is None else start.videos

    def add(self, scores: Tensor, first_video: int) -> None:
        """Take a tile ``[texts, videos]`` whose first column is video ``first_video``."""
        columns = torch.arange(
            first_video, first_video + scores.shape[1], device=scores.device
        ).expand(scores.shape[0], -1)
        if self._scores is not None and self._videos is not None:
            scores = torch.cat([self._scores, scores], dim=1)
            columns = torch.cat([self._videos, columns], dim=1)
        best = scores.topk(min(self.k, scores.shape[1]), dim=1)
        self._scores = best.values
        self._videos = columns.gather(1, best.indices)

    def result(self) -> TopK:
        if self._scores is None or self._videos is None:
            raise ValueError("no tile was added")
        return TopK(self._scores, self._videos)


@dataclass(frozen=True)
class ResumeFolder:
    """Folder for finished blocks, with a hash of everything they depend on."""

    folder: Path
    fingerprint: str


class Result(ABC):
    """Collects tiles; after each block of videos the state on disk is complete.

    With a folder it resumes from the state there, and refuses a state made from other inputs.
    """

    def __init__(self, resume: ResumeFolder | None) -> None:
        self.folder = None if resume is None else resume.folder
        self.blocks_done = 0
        self._fingerprint = "" if resume is None else resume.fingerprint
        if resume is not None:
            resume.folder.mkdir(parents=True, exist_ok=True)
            self._restore(resume.fingerprint)

    def _restore(self, fingerprint: str) -> None:
        journal = self._journal
        if not journal.exists():
            return
        try:
            state = read_json(journal)
        except ValueError as error:
            raise self._unreadable_error(journal) from error
        if state["fingerprint"] != fingerprint:
            raise UsageError(
                f"{self.folder} holds scores of other features, weights or settings; "
                "choose another folder or delete it"
            )
        self.blocks_done = state["blocks_done"]
        try:
            self._load()
        except (OSError, ValueError, EOFError) as error:
            raise self._unreadable_error(error) from error

    def _unreadable_error(self, what: object) -> UsageError:
        return UsageError(
            f"{self.folder} holds scores that cannot be read ({what}); "
            "choose another folder or delete it"
        )

    def block_finished(self) -> None:
        self.blocks_done += 1
        if self.folder is None:
            return
        self._store()
        state = {"fingerprint": self._fingerprint, "blocks_done": self.blocks_done}
        write_json(self._journal, state, indent=None)

    @property
    def _journal(self) -> Path:
        if self.folder is None:
            raise ValueError("without a folder nothing is stored")
        return self.folder / "progress.json"

    @abstractmethod
    def add(self, texts: slice, videos: slice, scores: Tensor) -> None: ...

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def _store(self) -> None: ...


class MatrixResult(Result):
    """The whole matrix: in memory, or in a memory-mapped ``scores.npy`` of the folder."""

    def __init__(
        self,
        num_texts: int,
        num_videos: int,
        device: torch.device,
        resume: ResumeFolder | None = None,
    ) -> None:
        self.device = device
        self.shape = (num_texts, num_videos)
        self._file: np.memmap[tuple[int, ...], np.dtype[np.float32]] | None = None
        super().__init__(resume)
        if resume is None:
            self._matrix = torch.empty(self.shape, device=device)
        elif self._file is None:
            self._map("w+")

    def _map(self, mode: str) -> None:
        if self.folder is None:
            raise ValueError("without a folder nothing is stored")
        self._file = np.lib.format.open_memmap(
            self.folder / SCORES_FILE, mode=mode, dtype=np.float32, shape=self.shape
        )
        self._matrix = torch.from_numpy(self._file)

    def add(self, texts: slice, videos: slice, scores: Tensor) -> None:
        self._matrix[texts, videos] = scores.to(self._matrix.device)

    def _load(self) -> None:
        self._map("r+")

    def _store(self) -> None:
        if self._file is not None:
            self._file.flush()

    def value(self) -> Tensor:
        if self.folder is None:
            return self._matrix
        # Copy on write: changes by the caller do not reach the file.
        scores = np.load(self.folder / SCORES_FILE, mmap_mode="c")
        return torch.from_numpy(scores).to(self.device)


class TopKResult(Result):
    """The best videos of each text so far."""

    def __init__(
        self, num_texts: int, k: int, device: torch.device, resume: ResumeFolder | None = None
    ) -> None:
        self.device = device
        self._best: dict[int, RunningTopK] = {}  # by the first text of a tile
        self._k = k
        self._earlier: TopK | None = None
        self.num_texts = num_texts
        super().__init__(resume)

    def add(self, texts: slice, videos: slice, scores: Tensor) -> None:
        if texts.start not in self._best:
            self._best[texts.start] = RunningTopK(self._k, self._part(texts))
        self._best[texts.start].add(scores, videos.start)

    def _part(self, texts: slice) -> TopK | None:
        if self._earlier is None:
            return None
        return TopK(self._earlier.scores[texts], self._earlier.videos[texts])

    def _load(self) -> None:
        state = torch.load(self._state, weights_only=True, map_location=self.device)
        self._earlier = TopK(state["scores"], state["videos"])

    def _store(self) -> None:
        best = self.value()
        with atomic_write(self._state) as partial:
            torch.save({"scores": best.scores, "videos": best.videos}, partial)

    @property
    def _state(self) -> Path:
        # One file per block: a kill between this write and the journal's keeps the journal's state.
        return self._journal.with_name(f"best_{self.blocks_done % 2}.pt")

    def value(self) -> TopK:
        if not self._best and self._earlier is not None:
            return self._earlier
        parts = [self._best[first].result() for first in sorted(self._best)]
        return TopK(
            torch.cat([part.scores for part in parts]), torch.cat([part.videos for part in parts])
        )


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
