"""Features of a dataset, made once by the towers of one or several models, to train heads on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.data.expert_writing import add_experts
from eaglenet.data.features import save_feature_folder
from eaglenet.data.role_graphs import over_tokens, role_graphs
from eaglenet.data.sources import Source
from eaglenet.errors import UsageError
from eaglenet.experiments.evaluation import dataset_source
from eaglenet.methods.base import Method
from eaglenet.methods.folder import load
from eaglenet.progress import Progress
from eaglenet.training.distributed import World, join, leave
from eaglenet.training.epochs import index_chunks
from eaglenet.training.rounds import fetched
from eaglenet.types import Expert, TextFeatures, TextGraph, Tokens

FRAMES, WORDS = "frames", "words"
"""How the first model's frames and words are called in a folder of experts."""


def export_features(
    name_or_folder: str,
    dataset: str,
    root: str | Path,
    output: str | Path,
    *,
    split: str = "train",
    options: Mapping[str, Any] | None = None,
    experts: Mapping[str, str] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Source:
    """Encode a split with a model's towers into a features folder ``output``.

    Train on it with the ``features`` recipes, evaluate on it with ``eaglenet evaluate``. With
    ``experts`` (name -> model) the folder also holds the frames of those models and the words,
    ids and graphs of the first, for the ``experts`` recipes.
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
            words = _words(method, source, world) if experts else {}
            seen = {
                name: _expert(model, dataset, root, split, options, world, progress, source)
                for name, model in (experts or {}).items()
            }
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
    if experts:
        models = {**experts, **dict.fromkeys(words, name_or_folder)}
        add_experts(
            output,
            seen,
            models=models,
            frames=FRAMES,
            frames_model=name_or_folder,
            words=words,
            token_ids=_token_ids(source),
            graphs=_graphs(method, source, words[WORDS][1]) if words else None,
            graph_words=WORDS,
        )
    return source


def _token_ids(source: Source) -> list[list[int]] | None:
    """The captions as ids, for methods that learn to write them."""
    found: list[list[int]] = []
    for rows in index_chunks(source.num_texts, 256):
        tokens = source.texts(rows)
        if not isinstance(tokens, Tokens):
            return None
        found += [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    return found


def _graphs(method: Method, source: Source, mask: Tensor) -> TextGraph:
    """Verbs and nouns of the captions, over the tokens that their words are cut into."""
    sentences = [sentence.split() for sentence in source.sentences]
    known = sorted({word for sentence in sentences for word in sentence})
    counted = method.tokenize([*known, ""]).mask.sum(dim=1)
    special = int(counted[-1])  # a start and an end, or an end alone
    pieces = {
        word: max(int(count) - special, 0) for word, count in zip(known, counted[:-1], strict=True)
    }
    longest = max(len(sentence) for sentence in sentences)
    return over_tokens(
        role_graphs(sentences, longest),
        [[pieces[word] for word in sentence] for sentence in sentences],
        int(mask.sum(dim=1).max()),
        first=1 if special > 1 else 0,
    )


def _words(method: Method, source: Source, world: World) -> dict[str, tuple[Tensor, Tensor]]:
    """Every word as the first model's text tower sees it; nothing where it gives sentences only."""
    if not method.encoder.abilities.words:
        return {}
    parts = [
        method.encoder.encode_text(source.texts(rows).to(world.device), words=True)
        for rows in index_chunks(source.num_texts, 256)
    ]
    text = TextFeatures.concatenate([part.to("cpu", torch.float32) for part in parts])
    if text.words is None or text.words_mask is None:
        return {}
    return {WORDS: (text.words, text.words_mask)}


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
    videos = _encoded(
        method.encode_video,
        fetched(source.videos, chunks, f"encoding videos with {name_or_folder}", progress),
        world,
    )
    return Expert(videos.frames, videos.mask)


def _encoded(encode: Callable[[Any], Any], batches: Iterator[Any], world: World) -> Any:
    """All features, on the host."""
    parts = [encode(batch.to(world.device)).to("cpu", torch.float32) for batch in batches]
    return type(parts[0]).concatenate(parts)
