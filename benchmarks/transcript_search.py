"""Search in a transcript by exact terms, by meaning and by both, with questions in other words.

    python benchmarks/transcript_search.py                            # the text tower of `small`
    python benchmarks/transcript_search.py --sentences FOLDER --save  # and a sentence encoder

Made sentences are the lines; each is asked for by its first seven words (exact), by four words
(part) and by a paraphrase that shares no content word with it. One line is right. FOLDER is a
sentence encoder in the hub's format whose tokens are averaged, such as MiniLM-L6.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import eaglenet
from common import save_result
from eaglenet.transcripts.lines import TranscriptLine, analyse
from eaglenet.transcripts.meaning import MeaningIndex, TextEncoder, hybrid_strengths
from talk import ACTIONS, SUBJECTS, Sentence, make_sentences

WEIGHTS = (0.5, 1.0, 2.0)


def small_encoder() -> TextEncoder:
    """The text tower of `small`, whose space is that of images."""
    method = eaglenet.load("small")
    method.eval()

    def encode(texts: Any) -> NDArray[np.float32]:
        with torch.inference_mode():
            vectors = method.coarse_vectors(method.encode_text(list(texts)))
        return torch.nn.functional.normalize(vectors, dim=-1).numpy()

    return encode


def sentence_encoder(folder: Path) -> TextEncoder:
    """A sentence encoder: the mean of its tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    model.eval()

    def encode(texts: Any) -> NDArray[np.float32]:
        tokens = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        vectors = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(vectors, dim=-1).numpy()

    return encode


def exact_strengths(query: str, lines: list[set[str]]) -> NDArray[np.float32]:
    """Strength by terms, as :func:`eaglenet.search.transcripts.rank_clips` has it."""
    terms = {term.text for term in analyse(query).terms}
    counts = Counter(term for line in lines for term in terms & line)
    weights = {
        term: math.log1p((len(lines) - counts[term] + 0.5) / (counts[term] + 0.5)) for term in terms
    }
    largest, whole = max(weights.values()), sum(weights.values())
    totals = np.array([sum(weights[term] for term in terms & line) for line in lines])
    return (totals / whole * (1 - 2 ** (-totals / largest))).astype(np.float32)


def questions(sentences: list[Sentence]) -> dict[str, list[str]]:
    chance = random.Random(0)
    return {
        "exact": [" ".join(sentence.text.split()[:7]) for sentence in sentences],
        "part": [" ".join(chance.sample(sentence.text.split(), 4)) for sentence in sentences],
        "paraphrase": [sentence.paraphrase for sentence in sentences],
    }


def recall(strengths: list[NDArray[np.float32]]) -> dict[str, float]:
    """R@1 and R@5; a tie counts against the right line."""
    ranks = np.array([int((row >= row[number]).sum()) for number, row in enumerate(strengths)])
    return {f"R@{k}": round(100 * float((ranks <= k).mean()), 1) for k in (1, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=Path, help="folder of a sentence encoder")
    parser.add_argument(
        "--save", action="store_true", help="write results/transcript_search-cpu.json"
    )
    everything = len(SUBJECTS) * len(ACTIONS)
    parser.add_argument("--lines", type=int, default=everything, help="lines to search in")
    arguments = parser.parse_args()
    sentences = make_sentences(arguments.lines)
    lines = [
        TranscriptLine(10.0 * number, 10.0 * number + 3, sentence.text)
        for number, sentence in enumerate(sentences)
    ]
    terms = [{term.text for term in analyse(line.text).terms} for line in lines]
    encoders = {"small": small_encoder()}
    if arguments.sentences:
        encoders[arguments.sentences.name] = sentence_encoder(arguments.sentences)
    report: dict[str, Any] = {"lines": len(lines), "exact terms": {}, "encoders": {}}
    indexes = {name: MeaningIndex.build(lines, encode) for name, encode in encoders.items()}
    for kind, texts in questions(sentences).items():
        exact = [exact_strengths(text, terms) for text in texts]
        report["exact terms"][kind] = recall(exact)
        for name, encode in encoders.items():
            index = indexes[name]
            assert len(index.windows) == len(lines)
            cosines = [index.cosines(vector) for vector in encode(texts)]
            rows = report["encoders"].setdefault(name, {}).setdefault(kind, {})
            rows["meaning"] = recall(cosines)
            for weight in WEIGHTS:
                mixed = [
                    hybrid_strengths(*pair, weight) for pair in zip(exact, cosines, strict=True)
                ]
                rows[f"both, weight {weight:g}"] = recall(mixed)
    print(json.dumps(report, indent=1))
    if arguments.save:
        save_result("transcript_search", report)


if __name__ == "__main__":
    main()
