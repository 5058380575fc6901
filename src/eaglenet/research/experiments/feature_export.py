"""Features of a dataset, encoded once by the towers of one or several models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import UsageError
from eaglenet.core.progress import Progress
from eaglenet.core.types import Expert
from eaglenet.methods.base import Method
from eaglenet.methods.early.teachtext import teaching_vectors
from eaglenet.models.folder import load
from eaglenet.research.data.experts import save_teacher
from eaglenet.research.data.sources import Source
from eaglenet.research.experiments.evaluation import dataset_source
from eaglenet.research.experiments.stored_data import encode_batches, read_features, write_features
from eaglenet.research.training.distributed import join
from eaglenet.research.training.epochs import fetched, index_chunks


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

    With ``experts`` (name -> model) the folder also holds the frames of those models and the words,
    token ids and graphs of the first; ``words`` adds these without another model.
    """
    output = Path(output).expanduser()
    if output.exists():
        raise UsageError(f"{output} exists and is never overwritten; choose another --output")
    with join(device) as world:
        if world.size > 1:
            raise UsageError("features are written by one process: run this without torchrun")

        def open_with(model: str) -> tuple[Method, Source]:
            method = load(model)
            source = dataset_source(method, dataset, root, split, options, world, progress)
            return method.to(world.device).eval(), source

        @torch.inference_mode()
        def encode_expert(model: str) -> Expert:
            """Encode the same videos with another model."""
            method, others = open_with(model)
            if list(others.video_ids) != list(source.video_ids):
                raise UsageError(
                    f"{model} could read other videos of {dataset} {split} than the first model; "
                    "decode all of them first with `eaglenet data cache`"
                )
            chunks, title = index_chunks(others.num_videos, 32), f"encoding videos with {model}"
            batches = fetched(others.videos, chunks, title, progress)
            videos = encode_batches(method.encode_video, batches, world.device)
            return Expert(videos.frames, videos.mask)

        method, source = open_with(name_or_folder)
        write_features(
            method,
            source,
            output,
            model=name_or_folder,
            dataset=dataset,
            split=split,
            experts={name: (of, encode_expert(of)) for name, of in (experts or {}).items()},
            words=words,
            progress=progress,
        )
    return source


def write_teacher(name_or_folder: str, folder: Path, name: str) -> tuple[int, int]:
    """Encode every text and video of a features folder with a model, as a teacher for others.

    The teacher may read other word features of the folder than its student. Gives the number of
    texts and videos.
    """
    if not name.replace("-", "").isalnum():
        raise UsageError(f"teacher {name!r}: use letters, digits and -; it names a file")
    if (folder / f"teacher_{name}_text.npy").exists():
        raise UsageError(f"{folder} has a teacher {name!r} already; give another name")
    method = load(name_or_folder).eval()
    split = read_features(folder, method)
    with torch.inference_mode():
        texts = [
            teaching_vectors(method, method.encode_text(split.text_batch(rows)))
            for rows in index_chunks(split.num_texts, 256)
        ]
        videos = [
            teaching_vectors(method, method.encode_video(split.video_batch(rows)))
            for rows in index_chunks(split.num_videos, 64)
        ]
    save_teacher(folder, name, torch.cat(texts), torch.cat(videos))
    return split.num_texts, split.num_videos
