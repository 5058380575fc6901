"""Folders of expert features: features of the same videos by several pretrained models.

Such a folder is a feature folder (`data.features`) with more files, so that methods which read only
frames and texts can use it too. Its ``index.json`` also has:

- ``experts``: ``{name: {"dim": width, "model": name, "seconds_per_token": number or null}}``
- ``frames``: name of the expert in ``frame_features.npy``, which no video lacks
- ``words``: ``{name: {"dim": width, "model": name}}``, kinds of token features of texts
- ``graphs``: kind of token features that the graphs refer to

Files, all optional except those of the experts:

- ``expert_NAME.npy`` [all tokens, dim], the tokens of all videos in order;
  ``expert_NAME_counts.npy`` [videos], 0 if the video lacks the expert; and
  ``expert_NAME_seconds.npy`` [all tokens], -1 if unknown
- ``words_NAME.npy`` and ``words_NAME_counts.npy`` [texts]
- ``token_ids.npy`` and ``token_ids_counts.npy`` [texts]
- ``graphs.npz``: spans, roles and edges
- ``teacher_NAME_text.npy`` [texts, width] and ``teacher_NAME_video.npy`` [videos, width]
"""

from __future__ import annotations

import glob
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.core.files import write_bytes, write_json
from eaglenet.core.types import Expert, TextGraph
from eaglenet.research.data.features import (
    FRAMES_FILE,
    INDEX_FILE,
    FeatureSplit,
    PackedTokens,
    load_feature_folder,
    read_array,
    read_index,
)

GRAPHS_FILE = "graphs.npz"
IDS = "token_ids"


def read_table(index: Mapping[str, Any], key: str, folder: Path) -> dict[str, Mapping[str, Any]]:
    """Read a table of ``index.json``; raise unless every entry has its width as ``dim``."""
    table = index.get(key) or {}
    path = folder / INDEX_FILE
    if not isinstance(table, Mapping):
        raise DatasetError(f"{path}: {key} should be an object of names, is {table!r:.80}")
    for name, entry in table.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("dim"), int):
            raise DatasetError(f"{path}: {key} {name!r} should have a dim, is {entry!r:.80}")
        if not name.replace("_", "").replace("-", "").isalnum():
            raise DatasetError(f"{path}: {key} {name!r}: use only letters, digits, - and _")
    return dict(table)


def check_width(path: Path, width: int, entry: Mapping[str, Any]) -> None:
    """Raise if the width of an array differs from ``index.json``."""
    if width != entry["dim"]:
        raise DatasetError(f"{path}: {width} wide, {INDEX_FILE} says {entry['dim']}")


def read_packed(
    folder: Path, stem: str, sets: int, entry: Mapping[str, Any], *, minimum: int = 0
) -> PackedTokens:
    """Read tokens, the number of tokens per set, and their times if the folder has any."""
    path = folder / f"{stem}.npy"
    values = read_array(path, (np.float16, np.float32))
    check_width(path, values.shape[1], entry)
    count = read_counts(folder, stem, sets, len(values), minimum)
    seconds = read_seconds(folder, stem, len(values))
    return PackedTokens(values, count.cumsum(0) - count, count, seconds)


def read_seconds(folder: Path, stem: str, rows: int) -> Tensor | None:
    """Read the time of each token; None if the folder has none."""
    path = folder / f"{stem}_seconds.npy"
    if not path.exists():
        return None
    seconds = torch.from_numpy(_load(path)).float()
    if seconds.shape != (rows,) or not bool(seconds.isfinite().all()):
        raise DatasetError(
            f"{path}: shape {tuple(seconds.shape)}, expected one finite number for each of the "
            f"{rows} tokens, -1 if it is unknown"
        )
    return seconds


def read_counts(folder: Path, stem: str, sets: int, rows: int, minimum: int) -> Tensor:
    """Read the number of rows of each set, which must be at least ``minimum``."""
    path = folder / f"{stem}_counts.npy"
    count = _load(path)
    if count.shape != (sets,) or count.dtype.kind not in "iu" or (count < minimum).any():
        raise DatasetError(
            f"{path}: {count.dtype.name} of shape {count.shape}, expected {sets} whole numbers, "
            f"{minimum} or more"
        )
    if int(count.sum()) != rows:
        raise DatasetError(f"{path}: sums to {int(count.sum())}, {stem}.npy has {rows} rows")
    return torch.from_numpy(count.astype(np.int64))


def read_ids(folder: Path, num_texts: int) -> PackedTokens | None:
    """Read the token ids of the captions; None if the folder has none."""
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
    folder: Path, num_texts: int, words: Mapping[str, PackedTokens], name_of_words: str
) -> TextGraph | None:
    """Read the graphs of the captions; None if the folder has none."""
    path = folder / GRAPHS_FILE
    if not path.exists():
        return None
    if name_of_words not in words:
        raise DatasetError(f"{path}: refers to words {name_of_words!r}, which the folder lacks")
    content = _load(path)
    missing_names = [name for name in ("spans", "roles", "edges") if name not in content]
    if missing_names:
        raise DatasetError(f"{path}: {', '.join(missing_names)} missing")
    spans, roles, edges = (torch.from_numpy(content[name]) for name in ("spans", "roles", "edges"))
    nodes = roles.shape[-1]
    shapes = {
        "spans": (num_texts, nodes, words[name_of_words].max_count),
        "roles": (num_texts, nodes),
        "edges": (num_texts, nodes, nodes),
    }
    for name, value in (("spans", spans), ("roles", roles), ("edges", edges)):
        if tuple(value.shape) != shapes[name]:
            raise DatasetError(f"{path}: {name} {tuple(value.shape)}, expected {shapes[name]}")
    return TextGraph(spans.bool(), roles.long(), edges.bool())


def read_teachers(folder: Path, counts: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """Read the text and the video vectors of all teachers; None if the folder has none."""
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
                f"{text_path}: {width} wide, but the previous teacher {sides[0][0].shape[1]}; "
                "all teachers of a folder need the same width"
            )
        for side, values in zip(sides, pair, strict=True):
            side.append(values)
    if not sides[0]:
        return None, None
    return torch.stack(sides[0], dim=1), torch.stack(sides[1], dim=1)


def _load(path: Path) -> Any:
    """Read an array, or all arrays of a ``.npz`` file by name."""
    try:
        content = np.load(path, allow_pickle=False)
        return content if isinstance(content, np.ndarray) else dict(content)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {INDEX_FILE} lists it") from None
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def load_expert_folder(folder: Path | str, *, words: str = "") -> FeatureSplit:
    """Read and check a folder of experts; a plain feature folder has one expert, its frames.

    ``words`` selects one of several kinds of token features.
    """
    folder = Path(folder)
    index = read_index(folder)
    split = load_feature_folder(folder)
    counts = (split.num_videos, split.num_texts)
    table = read_table(index, "experts", folder)
    frames_name = str(index.get("frames") or "frames")
    if table and frames_name not in table:
        raise DatasetError(
            f"{folder / INDEX_FILE}: frames is {frames_name!r}, which is not among the experts "
            f"{', '.join(table)}"
        )
    if table:
        check_width(folder / FRAMES_FILE, split.frame_dim, table[frames_name])
    experts = {
        name: read_packed(folder, f"expert_{name}", counts[0], entry)
        for name, entry in sorted(table.items())
        if name != frames_name
    }
    kinds = {
        name: read_packed(folder, f"words_{name}", counts[1], entry, minimum=1)
        for name, entry in read_table(index, "words", folder).items()
    }
    if words and words not in kinds:
        raise UsageError(
            f"{folder} has no words {words!r}; it has {', '.join(kinds) or 'no words'}"
        )
    selected_words = words or next(iter(kinds), "")
    teachers = read_teachers(folder, counts)
    seconds = read_seconds(folder, f"expert_{frames_name}", len(split.frames.values))
    return replace(
        split,
        frames=replace(split.frames, seconds=seconds),
        experts=experts,
        frames_expert=frames_name,
        words=kinds,
        selected_words=selected_words,
        token_ids=read_ids(folder, counts[1]),
        graphs=read_graphs(folder, counts[1], kinds, str(index.get("graphs") or selected_words)),
        text_teachers=teachers[0],
        video_teachers=teachers[1],
    )


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
    """Add experts to a feature folder; ``index.json`` is written last.

    frames: name of the frames of the folder among the experts. frame_seconds: times of all frames.
    words: values [texts, tokens, dim] and mask of token features, by name.

    Raises:
        DatasetError: the folder has experts already, or the new files do not fit it.
    """
    folder = Path(folder)
    index = read_index(folder)
    if index.get("experts"):
        raise DatasetError(f"{folder} already has experts; features are never overwritten")
    with _undo_on_error(folder, ("expert_*", "words_*", f"{IDS}*", GRAPHS_FILE)):
        _write_experts(
            folder,
            index,
            experts,
            models=models,
            frames=frames,
            frames_model=frames_model,
            frame_seconds=frame_seconds,
            words=words,
            token_ids=token_ids,
            graphs=graphs,
            graph_words=graph_words,
        )
    return folder


@contextmanager
def _undo_on_error(folder: Path, patterns: Sequence[str]) -> Iterator[None]:
    """Remove new files that match ``patterns`` if the block raises, and restore the index.

    Otherwise NaN or a full disk would leave a folder that cannot be read.
    """
    index = (folder / INDEX_FILE).read_bytes()
    old_files = set(folder.iterdir())
    try:
        yield
    except BaseException:
        write_bytes(folder / INDEX_FILE, index)
        for path in {path for pattern in patterns for path in folder.glob(pattern)} - old_files:
            path.unlink(missing_ok=True)
        raise


def _write_experts(
    folder: Path,
    index: dict[str, Any],
    experts: Mapping[str, Expert],
    *,
    models: Mapping[str, str],
    frames: str,
    frames_model: str,
    frame_seconds: Tensor | None,
    words: Mapping[str, tuple[Tensor, Tensor]] | None,
    token_ids: Sequence[Sequence[int]] | None,
    graphs: TextGraph | None,
    graph_words: str,
) -> None:
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
        arrays = {name: getattr(graphs, name).numpy() for name in ("spans", "roles", "edges")}
        np.savez_compressed(folder / GRAPHS_FILE, **arrays)
    write_json(folder / INDEX_FILE, index, indent=None)
    load_expert_folder(folder)  # Raises if a file does not fit.


def _write_packed(
    folder: Path, stem: str, values: Tensor, mask: Tensor, seconds: Tensor | None = None
) -> None:
    np.save(folder / f"{stem}.npy", values[mask].to(torch.float16).numpy())
    np.save(folder / f"{stem}_counts.npy", mask.sum(dim=1).to(torch.int32).numpy())
    if seconds is not None:
        np.save(folder / f"{stem}_seconds.npy", seconds[mask].float().numpy())


def save_teacher(folder: Path | str, name: str, texts: Tensor, videos: Tensor) -> None:
    """Add the vectors of a teacher, in the order of the texts and videos of the folder."""
    folder = Path(folder)
    with _undo_on_error(folder, (f"teacher_{glob.escape(name)}_*.npy",)):
        for side, values in (("text", texts), ("video", videos)):
            np.save(folder / f"teacher_{name}_{side}.npy", values.detach().cpu().float().numpy())
        load_expert_folder(folder)  # Raises if a file does not fit.
