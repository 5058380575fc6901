"""Search in transcripts by exact terms, and by terms and meaning, with queries in other words.

    python benchmarks/transcript_search.py
    python benchmarks/transcript_search.py --captions MSRVTT_data.json --videos TEST.csv --save

Every line is spoken in a separate video, in two cues. The queries for it are its first seven words
(exact), four of its words (part), and a paraphrase. ``made`` sentences are those of ``talk.py``,
the others are in ``paraphrases.py``. With ``--captions``, a caption of a video is a line, and the
query is another person's caption of the same video. The rule was chosen (``rules``) on the
``chosen`` queries only. The store is searched before and after windows are added. ``telling`` is
the percentage of queries whose right line would also appear in a ranking with frames, ``disturbed``
the percentage of captions of unrelated videos for which some line would.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import save_result
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.indexing.model import make_light_manifest
from eaglenet.indexing.transcripts import encode_transcripts, make_store_lines
from eaglenet.models.light_model import LightModel, MeaningEncoder
from eaglenet.search.engine import Engine
from eaglenet.store.records import Changes, ClipBatch, IndexedFile, Source, SourceLines
from eaglenet.store.store import LocalStore
from eaglenet.transcripts.lines import TranscriptLine, analyse, chance_cosine
from paraphrases import HELD_OUT, TUNING
from talk import ACTIONS, SUBJECTS, make_sentences

Question = tuple[str, int]
"""A query, and the number of its right line."""
CAPTION = "another person's caption"
CAPTION_VIDEOS = 200
WORDS_STEP = 4
"""Every ``WORDS_STEP``-th line has queries with its own words."""
WEIGHTS = (0.25, 0.5, 0.75, 1.0)
RANK_OFFSET = 60


def make_questions(
    captions: dict[str, list[str]],
) -> tuple[list[str], dict[str, list[Question]]]:
    """Return all lines, and the queries for them by kind."""
    chance = random.Random(0)
    sentences = make_sentences(len(SUBJECTS) * len(ACTIONS))
    lines: list[str] = []
    questions: dict[str, list[Question]] = {}

    def add(name: str, pairs: list[tuple[str, str]]) -> None:
        questions[name] = [(pair[1], len(lines) + number) for number, pair in enumerate(pairs)]
        lines.extend(pair[0] for pair in pairs)

    half = len(sentences) // 2
    pairs = [(sentence.text, sentence.paraphrase) for sentence in sentences]
    add("chosen paraphrase", list(TUNING))
    add("chosen made paraphrase", pairs[:half])
    add("paraphrase", list(HELD_OUT))
    add("made paraphrase", pairs[half:])
    sample = list(enumerate(lines))[::WORDS_STEP]
    questions["exact"] = [(" ".join(line.split()[:7]), number) for number, line in sample]
    questions["part"] = [
        (" ".join(chance.sample(line.split(), min(4, len(line.split())))), number)
        for number, line in sample
    ]
    videos = sorted(captions)[:CAPTION_VIDEOS]
    if videos:
        two = [chance.sample(captions[video], 2) for video in videos]
        add(CAPTION, [(first, second) for first, second in two])
    return lines, questions


def content_of(number: int) -> str:
    return hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()


def make_store(folder: Path, lines: list[str]) -> LocalStore:
    """Make a store with one clip per line, which has random features and the line in two cues."""
    model = LightModel.open("small")
    spec = FrameSpec(num_frames=model.frame_spec.num_frames, size=model.frame_spec.size)
    manifest = make_light_manifest(model, "small", spec, Splitting(), [])
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((len(lines), manifest.dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    features = np.zeros(len(lines), manifest.layout.dtype)
    starts = np.zeros(len(lines))
    keys = [(content_of(number), 0) for number in range(len(lines))]
    batch = ClipBatch(keys, starts, starts + 10, vectors, features, [b""] * len(lines))
    files, transcripts = [], []
    for number, line in enumerate(lines):
        content, words = content_of(number), line.split()
        file = IndexedFile(f"/talk/{number}.mp4", 1, 1, content, "done", duration=10, num_clips=1)
        files.append(file)
        middle = -(-len(words) // 2)
        cues = [
            TranscriptLine(2.0, 4.0, " ".join(words[:middle])),
            TranscriptLine(4.0, 6.0, " ".join(words[middle:]) or "."),
        ]
        source = Source(content, "subtitle", "", 0, 0, "benchmark", "done")
        transcripts.append(SourceLines(source, make_store_lines(cues)))
    with LocalStore.write(folder, manifest) as writer:
        writer.commit(Changes([batch], files, transcripts=transcripts))
        writer.finish()
    return LocalStore.open(folder)


def measure(folder: Path, questions: dict[str, list[Question]]) -> dict[str, dict[str, float]]:
    """Return R@1 and R@5 of ``--in speech`` by kind of query."""
    engine = Engine.open(folder)
    report = {}
    for name, pairs in questions.items():
        ranks = []
        for text, number in pairs:
            hits = engine.search(text, 5, modalities="speech", keep_duplicates=True)
            paths = [Path(hit.path).stem for hit in hits]
            ranks.append(paths.index(str(number)) if str(number) in paths else 5)
        report[name] = {
            f"R@{k}": round(100 * float((np.array(ranks) < k).mean()), 1) for k in (1, 5)
        }
    return report


def cosines(encoder: MeaningEncoder, texts: list[str], lines: NDArray[np.float32]) -> Any:
    return encoder.encode(texts) @ lines.T


def measure_chance(
    encoder: MeaningEncoder, vectors: NDArray[np.float32], questions: dict[str, list[Question]]
) -> dict[str, Any]:
    """Return how often right lines, and lines for unrelated captions, appear beside frames."""
    num_talk = sum(len(questions[name]) for name in questions if "paraphrase" in name)
    limit = chance_cosine(len(vectors))
    report: dict[str, Any] = {"windows": len(vectors), "cosine": round(limit, 3), "telling": {}}
    for name in ("paraphrase", "made paraphrase"):
        right = [number for _, number in questions[name]]
        own = cosines(encoder, [text for text, _ in questions[name]], vectors)
        share = (own[np.arange(len(right)), right] >= limit).mean()
        report["telling"][name] = round(100 * float(share), 1)
    if CAPTION in questions:
        texts = [text for text, _ in questions[CAPTION]]
        best = cosines(encoder, texts, vectors[:num_talk]).max(axis=1)
        report["disturbed"] = round(100 * float((best >= limit).mean()), 1)
    return report


def exact_strengths(texts: list[str], lines: list[str]) -> NDArray[np.float32]:
    """Return strengths ``[texts, lines]`` by terms, as in ``search.transcripts.rank_clips``."""
    terms_of_lines = [{term.text for term in analyse(line).terms} for line in lines]
    strengths = []
    for text in texts:
        terms = {term.text for term in analyse(text).terms}
        counts = Counter(term for line in terms_of_lines for term in terms & line)
        weights = {
            term: math.log1p((len(lines) - counts[term] + 0.5) / (counts[term] + 0.5))
            for term in terms
        }
        totals = np.array([sum(weights[term] for term in terms & line) for line in terms_of_lines])
        share = totals / sum(weights.values())
        strengths.append(share * (1 - 2 ** (-totals / max(weights.values()))))
    return np.stack(strengths).astype(np.float32)


def compare_rules(
    encoder: MeaningEncoder,
    lines: list[str],
    vectors: NDArray[np.float32],
    questions: dict[str, list[Question]],
) -> dict[str, dict[str, float]]:
    """Return R@1 of rules that join terms and meaning, on the queries used to choose one."""
    names = ("chosen paraphrase", "chosen made paraphrase", "exact", "part")
    num_chosen = sum(len(questions[name]) for name in names[:2])
    report: dict[str, dict[str, float]] = {}
    for name in names:
        pairs = [pair for pair in questions[name] if pair[1] < num_chosen]
        exact = exact_strengths([text for text, _ in pairs], lines)
        near = np.maximum(cosines(encoder, [text for text, _ in pairs], vectors), 0)
        deviations = (near - near.mean(1, keepdims=True)) / (4 * near.std(1, keepdims=True))
        ranks = [(-scores).argsort(1, kind="stable").argsort(1) + 1 for scores in (near, exact)]
        reciprocal = 1 / (RANK_OFFSET + ranks[0]) + (exact > 0) / (RANK_OFFSET + ranks[1])
        rules = {"words": exact, "meaning": near, "reciprocal ranks": reciprocal}
        for weight in WEIGHTS:
            strength = weight * np.minimum(near / 0.8, 1)
            rules[f"1 - (1 - words)(1 - {weight:g} meaning)"] = 1 - (1 - exact) * (1 - strength)
            rules[f"words + {weight:g} meaning"] = exact + strength
            rules[f"words + {weight:g} deviations"] = exact + weight * np.clip(deviations, 0, 1)
        right = np.array([number for _, number in pairs])
        for rule, scores in rules.items():
            own = scores[np.arange(len(right)), right][:, None]
            first = ((scores >= own).sum(1) <= 1).mean()
            report.setdefault(rule, {})[name] = round(100 * float(first), 1)
    return report


def read_captions(path: Path | None, videos: Path | None) -> dict[str, list[str]]:
    """Read the captions of MSR-VTT by video; with ``videos``, only of those in a table."""
    if path is None:
        return {}
    captions: dict[str, list[str]] = defaultdict(list)
    for row in json.loads(path.read_text())["sentences"]:
        captions[row["video_id"]].append(row["caption"])
    if videos is None:
        return captions
    with videos.open() as file:
        ids = {row["video_id"] for row in csv.DictReader(file)}
    return {video: texts for video, texts in captions.items() if video in ids}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=Path, help="captions of MSR-VTT (MSRVTT_data.json)")
    parser.add_argument("--videos", type=Path, help="table with a column video_id")
    parser.add_argument(
        "--save", action="store_true", help="write results/transcript_search-cpu.json"
    )
    options = parser.parse_args()
    lines, questions = make_questions(read_captions(options.captions, options.videos))
    encoder = MeaningEncoder.open()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        store = make_store(folder, lines)
        report: dict[str, Any] = {
            "lines": len(lines),
            "questions": {name: len(pairs) for name, pairs in questions.items()},
            "words": measure(folder, questions),
        }
        with LocalStore.write(folder) as writer:
            report["windows"] = encode_transcripts(writer, encoder=encoder)
            writer.finish()
        report["words and meaning"] = measure(folder, questions)
        report["meaning_bytes"] = sum(store.usage()[kind] for kind in ("windows", "meanings"))
    vectors = encoder.encode(lines)
    report["beside frames"] = measure_chance(encoder, vectors, questions)
    report["rules"] = compare_rules(encoder, lines, vectors, questions)
    print(json.dumps(report, indent=1))
    if options.save:
        save_result("transcript_search", report)


if __name__ == "__main__":
    main()
