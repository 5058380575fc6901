"""Writes what `data.experts` reads: experts, words, ids, graphs and teachers beside features."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglenet.data.expert_files import GRAPHS_FILE, IDS
from eaglenet.data.experts import load_expert_folder
from eaglenet.data.feature_folder import FRAMES_FILE, INDEX_FILE, read_index
from eaglenet.errors import DatasetError
from eaglenet.types import Expert, TextGraph


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
