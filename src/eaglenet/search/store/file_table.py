"""The indexed files as columns, for filters and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN_SIZE = -1
"""Of files in stores that were made before sizes were kept."""


@dataclass(frozen=True)
class FileTable:
    """The indexed file contents, column by column; one content may lie at several paths."""

    contents: list[str]
    paths: list[list[str]]
    modified: NDArray[np.float64]
    durations: NDArray[np.float64]
    widths: list[int]
    heights: list[int]
    tags: list[list[str]]
    sizes: list[int]
    """Bytes."""

    def __len__(self) -> int:
        return len(self.contents)

    def to_json(self) -> dict[str, Any]:
        return {
            "contents": self.contents,
            "paths": self.paths,
            "modified": self.modified.tolist(),
            "durations": self.durations.tolist(),
            "widths": self.widths,
            "heights": self.heights,
            "tags": self.tags,
            "sizes": self.sizes,
        }

    @classmethod
    def from_json(cls, columns: dict[str, Any]) -> FileTable:
        columns = {"sizes": [UNKNOWN_SIZE] * len(columns["contents"]), **columns}
        for name in ("modified", "durations"):
            columns[name] = np.asarray(columns[name], np.float64)
        return cls(**columns)
