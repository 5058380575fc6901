"""Folders of features of many experts: what several pretrained models saw of the same videos.

Such a folder is a feature folder (`data.feature_folder`) with more files, so every method that
reads frames and sentences reads it too. ``index.json`` says more:

- ``experts``: ``{name: {"dim": width, "model": who made it, "seconds_per_token": number or null}}``
- ``frames``: the expert whose tokens are ``frame_features.npy``; no video may miss it
- ``words``: ``{name: {"dim": width, "model": who made it}}``
- ``graphs``: the name of the words that the graphs point at

and beside it lie, for every other expert, ``expert_NAME.npy`` [all tokens, dim] (videos after each
other) with ``expert_NAME_counts.npy`` [videos], where 0 says that the video misses the expert;
``expert_NAME_seconds.npy`` [all tokens], -1 for unknown; for every kind of words ``words_NAME.npy``
and ``words_NAME_counts.npy`` [texts]; ``token_ids.npy`` and ``token_ids_counts.npy``;
``graphs.npz`` (spans, roles, edges); ``teacher_NAME_text.npy`` [texts, width] and
``teacher_NAME_video.npy`` [videos, width]. All but the experts' own files are optional.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.types import Expert, TextFeatures, TextGraph, Tokens, VideoFeatures
from eaglenet.research.data.features import (
    FRAMES_FILE,
    INDEX_FILE,
    FeatureSplit,
    load_feature_folder,
    read_array,
    read_index,
)

# The files of a folder of experts, read one by one with checks that say what is wrong.

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


@dataclass(frozen=True)
class ExpertSplit(FeatureSplit):
    """A feature split whose videos come with experts, and whose texts may come with more.

    ``video_row`` says which rows of the folder this split's videos are; ``text_row`` does so of
    its texts. ``chosen_words`` names the words that :meth:`text_batch` gives.
    """

    video_row: Int[Tensor, "videos"] = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int64)
    )
    experts: Mapping[str, PackedTokens] = field(default_factory=dict)
    frames_expert: str = ""
    frame_seconds: Float[Tensor, "rows"] | None = None
    words: Mapping[str, PackedTokens] = field(default_factory=dict)
    chosen_words: str = ""
    token_ids: PackedTokens | None = None
    graphs: TextGraph | None = None
    text_teachers: Tensor | None = None
    video_teachers: Tensor | None = None

    @property
    def expert_widths(self) -> dict[str, int]:
        """Every expert and its width, the frames among them, in alphabetical order."""
        widths = {name: packed.values.shape[1] for name, packed in self.experts.items()}
        return dict(sorted({**widths, self.frames_expert: self.frame_dim}.items()))

    @property
    def words_dim(self) -> int:
        """Width of the chosen words; of sentences, where the folder has no words."""
        return self.words[self.chosen_words].values.shape[1] if self.words else self.text_dim

    def text_batch(self, indices: Sequence[int] | Tensor) -> TextFeatures:
        """Sentences with whatever else the folder has of texts."""
        features = super().text_batch(indices)
        rows = self.text_row[self._indices(indices)]
        if self.words:
            words = self.words[self.chosen_words].gather(rows)
            features = replace(features, words=words.values, words_mask=words.mask)
        if self.token_ids is not None:
            places, mask = self.token_ids.rows_of(rows)
            ids = self.token_ids.values[places, 0].long().masked_fill(~mask, 0)
            features = replace(features, tokens=Tokens(ids, mask))
        if self.graphs is not None:
            features = replace(features, graph=self.graphs[rows])
        if self.text_teachers is not None:
            features = replace(features, teachers=self.text_teachers[rows].float())
        return features

    def video_batch(self, indices: Sequence[int] | Tensor) -> VideoFeatures:
        """Frames, and all experts by name; the frames are one of them."""
        features = super().video_batch(indices)
        rows = self.video_row[self._indices(indices)]
        experts = {name: packed.gather(rows) for name, packed in self.experts.items()}
        experts[self.frames_expert] = Expert(features.frames, features.mask, self._seconds(indices))
        if self.video_teachers is not None:
            features = replace(features, teachers=self.video_teachers[rows].float())
        return replace(features, experts=dict(sorted(experts.items())))

    def _seconds(self, indices: Sequence[int] | Tensor) -> Tensor | None:
        if self.frame_seconds is None:
            return None
        chosen = self._indices(indices)
        packed = PackedTokens(
            self.packed_frames, self.frame_start, self.frame_count, self.frame_seconds
        )
        rows, mask = packed.rows_of(chosen)
        missing = self.max_frames - rows.shape[1]
        seconds = self.frame_seconds[rows].masked_fill(~mask, -1.0)
        return torch.nn.functional.pad(seconds, (0, missing), value=-1.0)

    def to(self, device: torch.device | str) -> ExpertSplit:
        moved = super().to(device)
        inner: dict[str, Any] = {
            "experts": {name: packed.to(device) for name, packed in self.experts.items()},
            "words": {name: packed.to(device) for name, packed in self.words.items()},
        }
        for name in ("token_ids", "graphs"):
            value = getattr(self, name)
            inner[name] = None if value is None else value.to(device)
        return cast(ExpertSplit, replace(moved, **inner))

    def select(self, video_indices: Sequence[int] | Tensor) -> ExpertSplit:
        chosen = torch.as_tensor(video_indices, dtype=torch.int64)
        part = cast(ExpertSplit, super().select(chosen))
        return replace(part, video_row=self.video_row[chosen.to(self.device)])


def load_expert_folder(folder: Path | str, *, words: str = "") -> ExpertSplit:
    """Read and check a folder of experts.

    A plain feature folder gives one expert, its frames. ``words`` chooses among several kinds.
    """
    folder = Path(folder)
    index = read_index(folder)
    whole = load_feature_folder(folder)
    counts = (whole.num_videos, whole.num_texts)
    found = described(index, "experts", folder)
    frames_name = str(index.get("frames") or "frames")
    if found and frames_name not in found:
        raise DatasetError(
            f"{folder / INDEX_FILE}: frames is {frames_name!r}, which is not among the experts "
            f"{', '.join(found)}"
        )
    if found:
        check_width(folder / FRAMES_FILE, whole.frame_dim, found[frames_name])
    experts = {
        name: read_packed(folder, f"expert_{name}", counts[0], entry)
        for name, entry in sorted(found.items())
        if name != frames_name
    }
    kinds = {
        name: read_packed(folder, f"words_{name}", counts[1], entry, least=1)
        for name, entry in described(index, "words", folder).items()
    }
    if words and words not in kinds:
        raise UsageError(
            f"{folder} has no words {words!r}; it has {', '.join(kinds) or 'sentences only'}"
        )
    chosen = words or next(iter(kinds), "")
    teachers = read_teachers(folder, counts)
    return ExpertSplit(
        **{name: getattr(whole, name) for name in whole.__dataclass_fields__},
        video_row=torch.arange(counts[0]),
        experts=experts,
        frames_expert=frames_name,
        frame_seconds=read_seconds(folder, f"expert_{frames_name}", len(whole.packed_frames)),
        words=kinds,
        chosen_words=chosen,
        token_ids=read_ids(folder, counts[1]),
        graphs=read_graphs(folder, counts[1], kinds, str(index.get("graphs") or chosen)),
        text_teachers=teachers[0],
        video_teachers=teachers[1],
    )


# Writes what `data.experts` reads: experts, words, ids, graphs and teachers beside features.


def add_experts(
    folder: Path | str,
    experts: Mapping[str, Expert],
    *,
    models: Mapping[str, str],
    frames: str,
    frames_model: str = "",
    frame_seconds: Tensor | None = None,
    words: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    token_ids: Sequence[Sequence[int]] | None = None,
    graphs: TextGraph | None = None,
    graph_words: str = "",
) -> Path:
    """Write experts (and words, ids, graphs) into a feature folder; ``index.json`` comes last.

    ``frames`` is how the folder's own frames are called among the experts, ``frame_seconds`` their
    times, one after another. ``words``: name -> (values [texts, words, dim], mask). What is wrong
    is found by reading the folder back.
    """
    folder = Path(folder)
    index = read_index(folder)
    if index.get("experts"):
        raise DatasetError(f"{folder} has experts already; features are never overwritten")
    frame_dim = int(np.load(folder / FRAMES_FILE, mmap_mode="r").shape[1])
    index["frames"] = frames
    index["experts"] = {frames: {"dim": frame_dim, "model": frames_model}}
    if frame_seconds is not None:
        np.save(folder / f"expert_{frames}_seconds.npy", frame_seconds.float().numpy())
    for name, expert in experts.items():
        _write_packed(folder, f"expert_{name}", expert.values, expert.mask, expert.seconds)
        index["experts"][name] = {"dim": expert.values.shape[-1], "model": models.get(name, "")}
    for name, (values, mask) in (words or {}).items():
        _write_packed(folder, f"words_{name}", values, mask)
        index.setdefault("words", {})[name] = {
            "dim": values.shape[-1],
            "model": models.get(name, ""),
        }
    if token_ids is not None:
        np.save(folder / f"{IDS}.npy", np.concatenate([np.asarray(ids) for ids in token_ids]))
        lengths = np.array([len(ids) for ids in token_ids], np.int32)
        np.save(folder / f"{IDS}_counts.npy", lengths)
    if graphs is not None:
        index["graphs"] = graph_words
        parts = {name: getattr(graphs, name).numpy() for name in ("spans", "roles", "edges")}
        np.savez_compressed(folder / GRAPHS_FILE, **parts)
    partial = folder / f".{INDEX_FILE}.{os.getpid()}"
    partial.write_text(json.dumps(index), encoding="utf-8")
    partial.replace(folder / INDEX_FILE)
    load_expert_folder(folder)
    return folder


def _write_packed(
    folder: Path, stem: str, values: Tensor, mask: Tensor, seconds: Tensor | None = None
) -> None:
    np.save(folder / f"{stem}.npy", values[mask].to(torch.float16).numpy())
    np.save(folder / f"{stem}_counts.npy", mask.sum(dim=1).to(torch.int32).numpy())
    if seconds is not None:
        np.save(folder / f"{stem}_seconds.npy", seconds[mask].float().numpy())


def save_teacher(folder: Path | str, name: str, texts: Tensor, videos: Tensor) -> None:
    """Add a teacher's vectors, in the order of the folder's texts and videos."""
    folder = Path(folder)
    for side, values in (("text", texts), ("video", videos)):
        np.save(folder / f"teacher_{name}_{side}.npy", values.detach().cpu().float().numpy())
    load_expert_folder(folder)
