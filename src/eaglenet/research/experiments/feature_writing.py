"""Writing the features of a split, encoded by the towers of a model, as a folder."""

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
"""Names of the first model's frames and words in a folder of experts."""


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
    """Encode ``source`` with ``method`` and write a features folder atomically.

    model: name of the method. experts: name -> (model, features) of other models. With ``words``
    (or experts) the words, token ids and graphs of the texts are written too.
    """
    text_chunks = index_chunks(source.num_texts, 256)
    video_chunks = index_chunks(source.num_videos, 32)
    texts = encode_batches(
        method.encode_text,
        fetched(source.texts, text_chunks, "encoding texts", progress),
        method.device,
    )
    videos = encode_batches(
        method.encode_video,
        fetched(source.videos, video_chunks, "encoding videos", progress),
        method.device,
    )
    others = dict(experts or {})
    vectors = _words(method, source, method.device) if others or words else {}
    with atomic_folder(output) as partial:
        folder = save_feature_folder(
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
                folder,
                {name: features for name, (_, features) in others.items()},
                models={name: of for name, (of, _) in others.items()}
                | dict.fromkeys(vectors, model),
                frames=FRAMES,
                frames_model=model,
                words=vectors,
                token_ids=_token_ids(source),
                graphs=_graphs(method, source, vectors[WORDS][1]) if vectors else None,
                graph_words=WORDS,
            )
        for path in folder.iterdir():
            path.replace(partial / path.name)
        folder.rmdir()
    return output


def encode_batches(
    encode: Callable[[Any], Any], batches: Iterator[Any], device: torch.device
) -> Any:
    """Encode all batches; the features are on the CPU."""
    features = [encode(batch.to(device)).to("cpu", torch.float32) for batch in batches]
    return type(features[0]).concatenate(features)


def _token_ids(source: Source) -> list[list[int]] | None:
    """Token ids of the captions, for methods that learn to write them; None for features."""
    all_ids: list[list[int]] = []
    for rows in index_chunks(source.num_texts, 256):
        tokens = source.texts(rows)
        if not isinstance(tokens, Tokens):
            return None
        all_ids += [ids[mask].tolist() for ids, mask in zip(tokens.ids, tokens.mask, strict=True)]
    return all_ids


def _graphs(method: Method, source: Source, mask: Tensor) -> TextGraph:
    """Graphs of the verbs and nouns of the captions, over their tokens."""
    sentences = [sentence.split() for sentence in source.sentences]
    vocabulary = sorted({word for sentence in sentences for word in sentence})
    counts = method.tokenize([*vocabulary, ""]).mask.sum(dim=1)
    special = int(counts[-1])  # a start and an end, or an end alone
    num_tokens = {
        word: max(int(count) - special, 0)
        for word, count in zip(vocabulary, counts[:-1], strict=True)
    }
    longest = max(len(sentence) for sentence in sentences)
    return over_tokens(
        role_graphs(sentences, longest),
        [[num_tokens[word] for word in sentence] for sentence in sentences],
        int(mask.sum(dim=1).max()),
        first=1 if special > 1 else 0,
    )


def _words(
    method: Method, source: Source, device: torch.device
) -> dict[str, tuple[Tensor, Tensor]]:
    """Word features of the first model; empty where its text tower gives sentences only."""
    if not method.encoder.abilities.words:
        return {}
    batches = [
        method.encoder.encode_text(source.texts(rows).to(device), words=True).to(
            "cpu", torch.float16
        )
        for rows in index_chunks(source.num_texts, 256)
    ]
    # Half precision is what is stored; the words of 80,000 captions are gigabytes.
    text = TextFeatures.concatenate(batches)
    if text.words is None or text.words_mask is None:
        return {}
    return {WORDS: (text.words, text.words_mask)}
