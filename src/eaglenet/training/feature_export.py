"""Features of a dataset, made once by a model's towers, for heads that are trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from eaglenet.data.features import save_feature_folder
from eaglenet.errors import UsageError
from eaglenet.methods.folder import load
from eaglenet.training.distributed import World, join, leave
from eaglenet.training.runs import dataset_source
from eaglenet.training.sources import Source, index_chunks

Progress = Callable[[str, int, int], None]


def export_features(
    name_or_folder: str,
    dataset: str,
    root: str,
    output: Path,
    *,
    split: str = "train",
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Source:
    """Encode a split with a model's towers into a features folder ``output``.

    Train on it with the ``features`` recipes, evaluate on it with ``eaglenet evaluate``.
    """
    if output.exists():
        raise UsageError(f"{output} exists; features are never overwritten, give another folder")
    method = load(name_or_folder)
    world = join(device)
    try:
        if world.size > 1:
            raise UsageError("features are written by one process: run this without torchrun")
        source = dataset_source(method, dataset, root, split, options, world, progress)
        method = method.to(world.device).eval()
        with torch.inference_mode():
            texts = _encoded(method.encode_text, source.texts, source.num_texts, 256, "texts",
                             world, progress)  # fmt: skip
            videos = _encoded(method.encode_video, source.videos, source.num_videos, 32, "videos",
                              world, progress)  # fmt: skip
    finally:
        leave(world)
    save_feature_folder(
        output,
        texts,
        videos,
        video_of_text=source.video_of_text,
        video_ids=source.video_ids,
        captions=source.sentences,
        frame_spec=method.frame_spec,
        model=name_or_folder,
        dataset=dataset,
        split=split,
        protocol=str(getattr(source.protocol, "name", source.protocol)),
    )
    return source


def _encoded(
    encode: Callable[[Any], Any],
    fetch: Callable[[Any], Any],
    count: int,
    batch: int,
    what: str,
    world: World,
    progress: Progress | None,
) -> Any:
    """All features, on the host."""
    parts = []
    done = 0
    for rows in index_chunks(count, batch):
        parts.append(encode(fetch(rows).to(world.device)).to("cpu", torch.float32))
        done += len(rows)
        if progress is not None:
            progress(f"encode {what}", done, count)
    return type(parts[0]).concatenate(parts)
