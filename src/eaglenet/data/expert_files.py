"""The files of a folder of experts, read one by one with checks that say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.data.feature_folder import INDEX_FILE, read_array
from eaglenet.errors import DatasetError
from eaglenet.types import Expert, TextGraph

GRAPHS_FILE = "graphs.npz"
IDS = "token_ids"


@dataclass(frozen=True)
class PackedTokens:
    """Sets of tokens, one after the other: set ``n`` is ``count[n]`` rows from ``start[n]`` on."""

    values: Tensor
    start: Int[Tensor, "sets"]
    count: Int[Tensor, "sets"]
    seconds: Float[Tensor, "rows"] | None = None

    @property
    def most(self) -> int:
        """The size of the largest set; at least 1, so that no batch has an empty axis."""
        return max(int(self.count.max()), 1) if len(self.count) else 1

    def rows_of(self, sets: Int[Tensor, "chosen"]) -> tuple[Tensor, Bool[Tensor, "chosen tokens"]]:
        """Rows of the packed array for each token of the chosen sets, and which are real."""
        offsets = torch.arange(self.most, device=self.count.device)
        mask = offsets[None] < self.count[sets, None]
        return (self.start[sets, None] + offsets[None]).masked_fill(~mask, 0), mask

    def gather(self, sets: Int[Tensor, "chosen"]) -> Expert:
        """The chosen sets as float32, padded with masked zeros."""
        rows, mask = self.rows_of(sets)
        if len(self.values) == 0:
            empty = torch.zeros(*mask.shape, self.values.shape[1], device=mask.device)
            return Expert(empty, mask)
        values = self.values.index_select(0, rows.flatten()).float().view(*mask.shape, -1)
        values = values.masked_fill(~mask[..., None], 0.0)
        if self.seconds is None:
            return Expert(values, mask)
        return Expert(values, mask, self.seconds[rows].masked_fill(~mask, -1.0))

    def to(self, device: torch.device | str) -> PackedTokens:
        seconds = None if self.seconds is None else self.seconds.to(device)
        return PackedTokens(
            self.values.to(device), self.start.to(device), self.count.to(device), seconds
        )


def described(index: Mapping[str, Any], key: str, folder: Path) -> dict[str, Mapping[str, Any]]:
    """A table of names in ``index.json``: each entry says its width."""
    table = index.get(key) or {}
    path = folder / INDEX_FILE
    if not isinstance(table, Mapping):
        raise DatasetError(f"{path}: {key} should be an object of names, is {table!r:.80}")
    for name, entry in table.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("dim"), int):
            raise DatasetError(f"{path}: {key} {name!r} should say its dim, says {entry!r:.80}")
        if not name.replace("_", "").replace("-", "").isalnum():
            raise DatasetError(
                f"{path}: {key} {name!r}: use letters, digits, - and _; it names a file"
            )
    return dict(table)


def check_width(path: Path, found: int, entry: Mapping[str, Any]) -> None:
    """Refuse an array of another width than ``index.json`` says."""
    if found != entry["dim"]:
        raise DatasetError(f"{path}: {found} wide, {INDEX_FILE} says {entry['dim']}")


def read_packed(
    folder: Path, stem: str, sets: int, entry: Mapping[str, Any], *, least: int = 0
) -> PackedTokens:
    """Tokens, their counts and, where there are any, their times."""
    path = folder / f"{stem}.npy"
    values = read_array(path, (np.float16, np.float32))
    check_width(path, values.shape[1], entry)
    count = read_counts(folder, stem, sets, len(values), least)
    seconds = read_seconds(folder, stem, len(values))
    return PackedTokens(values, count.cumsum(0) - count, count, seconds)


def read_seconds(folder: Path, stem: str, rows: int) -> Tensor | None:
    """When each token was seen; None where the folder does not say."""
    path = folder / f"{stem}_seconds.npy"
    if not path.exists():
        return None
    seconds = torch.from_numpy(_load(path)).float()
    if seconds.shape != (rows,) or not bool(seconds.isfinite().all()):
        raise DatasetError(
            f"{path}: shape {tuple(seconds.shape)}, expected one finite number for each of the "
            f"{rows} tokens, -1 where it is unknown"
        )
    return seconds


def read_counts(folder: Path, stem: str, sets: int, rows: int, least: int) -> Tensor:
    """How many rows each set has, ``least`` or more."""
    path = folder / f"{stem}_counts.npy"
    count = _load(path)
    if count.shape != (sets,) or count.dtype.kind not in "iu" or (count < least).any():
        raise DatasetError(
            f"{path}: {count.dtype.name} of shape {count.shape}, expected {sets} whole numbers, "
            f"{least} or more"
        )
    if int(count.sum()) != rows:
        raise DatasetError(f"{path}: sums to {int(count.sum())}, {stem}.npy has {rows} rows")
    return torch.from_numpy(count.astype(np.int64))


def read_ids(folder: Path, num_texts: int) -> PackedTokens | None:
    """Token ids of the captions; None where the folder has none."""
    path = folder / f"{IDS}.npy"
    if not path.exists():
        return None
    ids = _load(path)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or (ids < 0).any():
        raise DatasetError(f"{path}: expected one axis of whole numbers, 0 or more")
    count = read_counts(folder, IDS, num_texts, len(ids), 1)
    values = torch.from_numpy(ids.astype(np.int64))[:, None]
    return PackedTokens(values, count.cumsum(0) - count, count)


def read_graphs(
    folder: Path, num_texts: int, words: Mapping[str, PackedTokens], chosen: str
) -> TextGraph | None:
    """Graphs of the captions; None where the folder has none."""
    path = folder / GRAPHS_FILE
    if not path.exists():
        return None
    if chosen not in words:
        raise DatasetError(f"{path}: points at words {chosen!r}, which the folder does not have")
    content = _load(path)
    missing = [name for name in ("spans", "roles", "edges") if name not in content]
    if missing:
        raise DatasetError(f"{path}: {', '.join(missing)} missing")
    spans, roles, edges = (torch.from_numpy(content[name]) for name in ("spans", "roles", "edges"))
    nodes = roles.shape[-1]
    expected = {
        "spans": (num_texts, nodes, words[chosen].most),
        "roles": (num_texts, nodes),
        "edges": (num_texts, nodes, nodes),
    }
    for name, value in (("spans", spans), ("roles", roles), ("edges", edges)):
        if tuple(value.shape) != expected[name]:
            raise DatasetError(f"{path}: {name} {tuple(value.shape)}, expected {expected[name]}")
    return TextGraph(spans.bool(), roles.long(), edges.bool())


def read_teachers(folder: Path, counts: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """Vectors of all teachers, of texts and of videos."""
    sides: list[list[Tensor]] = [[], []]
    for text_path in sorted(folder.glob("teacher_*_text.npy")):
        video_path = text_path.with_name(text_path.name.replace("_text.npy", "_video.npy"))
        pair = [read_array(path, (np.float16, np.float32)) for path in (text_path, video_path)]
        shapes = (tuple(pair[0].shape), tuple(pair[1].shape))
        width = pair[0].shape[1]
        if shapes != ((counts[1], width), (counts[0], width)):
            raise DatasetError(
                f"{text_path} and {video_path.name}: shapes {shapes[0]} and {shapes[1]}, expected "
                f"{counts[1]} texts and {counts[0]} videos of one width"
            )
        if sides[0] and sides[0][0].shape[1] != width:
            raise DatasetError(
                f"{text_path}: {width} wide, the teacher before it {sides[0][0].shape[1]}; "
                "teachers of one folder need one width"
            )
        for side, values in zip(sides, pair, strict=True):
            side.append(values)
    if not sides[0]:
        return None, None
    return torch.stack(sides[0], dim=1), torch.stack(sides[1], dim=1)


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {INDEX_FILE} says that it exists") from None
    except (ValueError, EOFError, OSError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
