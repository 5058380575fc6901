"""Results of scored tiles: the whole matrix, or a running top-k; both can be resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.files import atomic_write, read_json, write_json

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
