"""Features of a split, made by the towers of a model and written as a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.files import atomic_folder
from eaglenet.core.progress import Progress
from eaglenet.core.types import Expert, TextFeatures, TextGraph, Tokens
from eaglenet.methods.base import Method
from eaglenet.research.data.experts import add_experts
from eaglenet.research.data.features import save_feature_folder
from eaglenet.research.data.role_graphs import over_tokens, role_graphs
from eaglenet.research.data.sources import Source
from eaglenet.research.training.epochs import fetched, index_chunks

FRAMES, WORDS = "frames", "words"
"""How the first model's frames and words are called in a folder of experts."""


@torch.inference_mode()
def write_features(
    method: Method,
    source: Source,
    output: Path,
    *,
    model: str,
    dataset: str,
    split: str,
    experts: Mapping[str, tuple[str, Expert]] | None = None,
    words: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Encode ``source`` with ``method`` and write a features folder, all of it or nothing.

    ``model`` is how the method is called. ``experts``: what other models saw, by name, with how
    they are called. With ``words`` (or experts) the words, ids and graphs of texts are kept too.
    """
    text_chunks = index_chunks(source.num_texts, 256)
    video_chunks = index_chunks(source.num_videos, 32)
    texts = encoded(
        method.encode_text,
        fetched(source.texts, text_chunks, "encoding texts", progress),
        method.device,
    )
    videos = encoded(
        method.encode_video,
        fetched(source.videos, video_chunks, "encoding videos", progress),
        method.device,
    )
    others = dict(experts or {})
    vectors = _words(method, source, method.device) if others or words else {}
    with atomic_folder(output) as partial:
        made = save_feature_folder(
            partial / output.name,
            texts,
            videos,
            video_of_text=source.video_of_text,
            video_ids=source.video_ids,
            captions=source.sentences,
            frame_spec=method.frame_spec,
            model=model,
            dataset=dataset,
            split=split,
            protocol=source.protocol.family,
        )
        if others or words:
            add_experts(
                made,
                {name: seen for name, (_, seen) in others.items()},
                models={name: of for name, (of, _) in others.items()}
                | dict.fromkeys(vectors, model),
                frames=FRAMES,
                frames_model=model,
                words=vectors,
                token_ids=_token_ids(source),
                graphs=_graphs(method, source, vectors[WORDS][1]) if vectors else None,
                graph_words=WORDS,
            )
        for path in made.iterdir():
            path.replace(partial / path.name)
        made.rmdir()
    return output


def encoded(encode: Callable[[Any], Any], batches: Iterator[Any], device: torch.device) -> Any:
    """All features, on the host."""
    parts = [encode(batch.to(device)).to("cpu", torch.float32) for batch in batches]
    return type(parts[0]).concatenate(parts)


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


def _words(
    method: Method, source: Source, device: torch.device
) -> dict[str, tuple[Tensor, Tensor]]:
    """Every word as the first model's text tower sees it; nothing where it gives sentences only."""
    if not method.encoder.abilities.words:
        return {}
    parts = [
        method.encoder.encode_text(source.texts(rows).to(device), words=True).to(
            "cpu", torch.float16
        )
        for rows in index_chunks(source.num_texts, 256)
    ]
    # Stored so anyway; whole words of 80,000 captions are gigabytes.
    text = TextFeatures.concatenate(parts)
    if text.words is None or text.words_mask is None:
        return {}
    return {WORDS: (text.words, text.words_mask)}
