"""Features of a dataset, made once by a model's towers, for heads that are trained on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from eaglenet.data.features import save_feature_folder
from eaglenet.errors import UsageError
from eaglenet.experiments.evaluation import dataset_source
from eaglenet.methods.folder import load
from eaglenet.training.distributed import World, join, leave
from eaglenet.training.logbook import Progress
from eaglenet.training.rounds import fetched
from eaglenet.training.sources import Source, index_chunks


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
            text_chunks = index_chunks(source.num_texts, 256)
            video_chunks = index_chunks(source.num_videos, 32)
            texts = _encoded(
                method.encode_text,
                fetched(source.texts, text_chunks, "encoding texts", progress),
                world,
            )
            videos = _encoded(
                method.encode_video,
                fetched(source.videos, video_chunks, "encoding videos", progress),
                world,
            )
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
        protocol=source.protocol.family,
    )
    return source


def _encoded(encode: Callable[[Any], Any], batches: Iterator[Any], world: World) -> Any:
    """All features, on the host."""
    parts = [encode(batch.to(world.device)).to("cpu", torch.float32) for batch in batches]
    return type(parts[0]).concatenate(parts)
