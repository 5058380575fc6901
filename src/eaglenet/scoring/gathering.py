"""Results of scored tiles: the whole matrix, or a running top-k; both can be resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.files import atomic_write, read_json, write_json
from eaglenet.scoring.tiles import RunningTopK, TopK

SCORES_FILE = "scores.npy"


@dataclass(frozen=True)
class Kept:
    """A folder that finished blocks are kept in, and of what they are."""

    folder: Path
    fingerprint: str


class Result(ABC):
    """Takes tiles; after each block of videos the state on disk is whole again.

    Where it is kept, it goes on from the state of its folder, and refuses one that was made from
    something else.
    """

    def __init__(self, kept: Kept | None) -> None:
        self.folder = None if kept is None else kept.folder
        self.blocks_done = 0
        self._fingerprint = "" if kept is None else kept.fingerprint
        if kept is not None:
            kept.folder.mkdir(parents=True, exist_ok=True)
            self._restore(kept.fingerprint)

    def _restore(self, fingerprint: str) -> None:
        journal = self._journal
        if not journal.exists():
            return
        try:
            kept = read_json(journal)
        except ValueError as error:
            raise self._broken(journal) from error
        if kept["fingerprint"] != fingerprint:
            raise UsageError(
                f"{self.folder} holds scores of other features, weights or settings; "
                "give another folder or delete it"
            )
        self.blocks_done = kept["blocks_done"]
        try:
            self._load()
        except (OSError, ValueError, EOFError) as error:
            raise self._broken(error) from error

    def _broken(self, what: object) -> UsageError:
        return UsageError(
            f"{self.folder} holds scores that cannot be read ({what}); "
            "give another folder or delete it"
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
            raise ValueError("nothing is kept without a folder")
        return self.folder / "progress.json"

    @abstractmethod
    def add(self, texts: slice, videos: slice, scores: Tensor) -> None: ...

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def _store(self) -> None: ...


class MatrixResult(Result):
    """The whole matrix: in memory, or in a memory-mapped ``scores.npy`` where a folder is given."""

    def __init__(
        self, num_texts: int, num_videos: int, device: torch.device, kept: Kept | None = None
    ) -> None:
        self.device = device
        self.shape = (num_texts, num_videos)
        self._mapped: np.memmap[tuple[int, ...], np.dtype[np.float32]] | None = None
        super().__init__(kept)
        if kept is None:
            self._matrix = torch.empty(self.shape, device=device)
        elif self._mapped is None:
            self._map("w+")

    def _map(self, mode: str) -> None:
        if self.folder is None:
            raise ValueError("nothing is kept without a folder")
        self._mapped = np.lib.format.open_memmap(
            self.folder / SCORES_FILE, mode=mode, dtype=np.float32, shape=self.shape
        )
        self._matrix = torch.from_numpy(self._mapped)

    def add(self, texts: slice, videos: slice, scores: Tensor) -> None:
        self._matrix[texts, videos] = scores.to(self._matrix.device)

    def _load(self) -> None:
        self._map("r+")

    def _store(self) -> None:
        if self._mapped is not None:
            self._mapped.flush()

    def value(self) -> Tensor:
        if self.folder is None:
            return self._matrix
        # Copied on writing: what a caller does with the scores does not reach the kept ones.
        kept = np.load(self.folder / SCORES_FILE, mmap_mode="c")
        return torch.from_numpy(kept).to(self.device)


class TopKResult(Result):
    """The best videos of each text so far."""

    def __init__(
        self, num_texts: int, k: int, device: torch.device, kept: Kept | None = None
    ) -> None:
        self.device = device
        self._best: dict[int, RunningTopK] = {}  # by the first text of a tile
        self._k = k
        self._restored: TopK | None = None
        self.num_texts = num_texts
        super().__init__(kept)

    def add(self, texts: slice, videos: slice, scores: Tensor) -> None:
        if texts.start not in self._best:
            self._best[texts.start] = RunningTopK(self._k, self._part(texts))
        self._best[texts.start].add(scores, videos.start)

    def _part(self, texts: slice) -> TopK | None:
        if self._restored is None:
            return None
        return TopK(self._restored.scores[texts], self._restored.videos[texts])

    def _load(self) -> None:
        kept = torch.load(self._state, weights_only=True, map_location=self.device)
        self._restored = TopK(kept["scores"], kept["videos"])

    def _store(self) -> None:
        best = self.value()
        with atomic_write(self._state) as partial:
            torch.save({"scores": best.scores, "videos": best.videos}, partial)

    @property
    def _state(self) -> Path:
        # One file per block: a kill between this write and the journal's keeps the journal's state.
        return self._journal.with_name(f"best_{self.blocks_done % 2}.pt")

    def value(self) -> TopK:
        if not self._best and self._restored is not None:
            return self._restored
        parts = [self._best[first].result() for first in sorted(self._best)]
        return TopK(
            torch.cat([part.scores for part in parts]), torch.cat([part.videos for part in parts])
        )
