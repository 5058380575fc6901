"""Features of a dataset, made once by the towers of one or several models, to train heads on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eaglenet.data.sources import Source
from eaglenet.errors import UsageError
from eaglenet.experiments.evaluation import dataset_source
from eaglenet.experiments.feature_writing import encoded, write_features
from eaglenet.methods.folder import load
from eaglenet.progress import Progress
from eaglenet.training.distributed import World, join, leave
from eaglenet.training.epochs import index_chunks
from eaglenet.training.evaluating import fetched
from eaglenet.types import Expert


def export_features(
    name_or_folder: str,
    dataset: str,
    root: str | Path,
    output: str | Path,
    *,
    split: str = "train",
    options: Mapping[str, Any] | None = None,
    experts: Mapping[str, str] | None = None,
    words: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Source:
    """Encode a split with a model's towers into a features folder ``output``.

    Train on it with the ``features`` recipes, evaluate on it with ``eaglenet evaluate``. With
    ``experts`` (name -> model) the folder also holds the frames of those models and the words,
    ids and graphs of the first, for the ``experts`` recipes; with ``words`` it holds these without
    any other model.
    """
    output = Path(output).expanduser()
    if output.exists():
        raise UsageError(f"{output} exists; features are never overwritten, give another folder")
    method = load(name_or_folder)
    world = join(device)
    try:
        if world.size > 1:
            raise UsageError("features are written by one process: run this without torchrun")
        source = dataset_source(method, dataset, root, split, options, world, progress)
        write_features(
            method.to(world.device).eval(),
            source,
            output,
            model=name_or_folder,
            dataset=dataset,
            split=split,
            experts={
                name: (of, _expert(of, dataset, root, split, options, world, progress, source))
                for name, of in (experts or {}).items()
            },
            words=words,
            progress=progress,
        )
    finally:
        leave(world)
    return source


@torch.inference_mode()
def _expert(
    name_or_folder: str,
    dataset: str,
    root: str | Path,
    split: str,
    options: Mapping[str, Any] | None,
    world: World,
    progress: Progress | None,
    first: Source,
) -> Expert:
    """The frames of another model as an expert, of the very same videos."""
    method = load(name_or_folder).to(world.device).eval()
    source = dataset_source(method, dataset, root, split, options, world, progress)
    if list(source.video_ids) != list(first.video_ids):
        raise UsageError(
            f"{name_or_folder} sees other videos of {dataset} {split} than the first model; "
            "decode them all first, with `eaglenet data cache`"
        )
    chunks = index_chunks(source.num_videos, 32)
    videos = encoded(
        method.encode_video,
        fetched(source.videos, chunks, f"encoding videos with {name_or_folder}", progress),
        world.device,
    )
    return Expert(videos.frames, videos.mask)
