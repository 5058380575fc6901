"""Recall of pictures, of words and of both in one ranking, on videos with known lines.

    python benchmarks/words.py                          # 300 videos of the demo world
    python benchmarks/words.py --videos 60

Each video has its captions and a subtitle file of three lines that nobody else says; a third of the
lines speak of what other videos show, in the words of their captions. Queries are captions (seen),
whole lines and four words of a line (said), and a line's first words in quotes. The right
answer is one file. ``fused`` is the default of ``eaglenet search``; it should never be more
than a point of R@1 below the better of the two. The last table does the same for other thresholds
of a clip's coverage.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

from common import save_result
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.research.data.demo.dataset import render_world
from eaglenet.search import retrieval, transcripts
from eaglenet.search.engine import Engine

PEOPLE = "Anna Boris Chen Dora Emil Farah Goran Hilde Ivan Jana Karim Lena Milan Nora Otto Paula"
WHAT = "keys umbrella passport guitar bicycle letter suitcase lantern violin compass teapot ladder"
WHERE = "station kitchen harbour library garden museum cellar bakery bridge theatre attic market"
WHEN = "yesterday tonight tomorrow twice already again slowly quietly early late never finally"
TEMPLATES = (
    "I told {person} that the {what} is still in the {where} {when}",
    "Did {person} leave a {what} at the {where} {when}?",
    "{when} {person} sold me the {what} behind the {where}",
    "We met {person} at the {where} and lost the {what} {when}",
)
THRESHOLDS = (0.0, 0.4, 0.9)
UNSURE = ("seen", "part")
"""Kinds of questions on which the threshold has an effect."""
Question = tuple[str, str]
"""A query, and the name of the file that answers it."""


def make_lines(captions: list[str], chance: random.Random, said: set[str]) -> list[str]:
    """Three lines that were not said before, one of them about another video."""
    lines: list[str] = []
    while len(lines) < 3:
        words = {
            "person": chance.choice(PEOPLE.split()),
            "what": chance.choice(WHAT.split()),
            "where": chance.choice(WHERE.split()),
            "when": chance.choice(WHEN.split()),
        }
        line = chance.choice(TEMPLATES).format(**words)
        if len(lines) == 2:
            other = chance.choice(captions).split()
            start = chance.randrange(max(1, len(other) - 4))
            seen = " ".join(other[start : start + 4])
            line = f"{words['person']} once saw {seen} near the {words['where']} {words['when']}"
        if line not in said:
            said.add(line)
            lines.append(line)
    return lines


def make_questions(folder: Path, count: int, chance: random.Random) -> dict[str, list[Question]]:
    """Render the videos, write their subtitles, and ask for all of them."""
    split = render_world(folder / "world", "test", count)
    captions = [caption for record in split.videos for caption in record.captions]
    said: set[str] = set()
    questions: dict[str, list[Question]] = {"seen": [], "said": [], "part": [], "quoted": []}
    for record in split.videos:
        assert record.path is not None
        lines = make_lines(captions, chance, said)
        cues = [
            f"00:00:0{number},200 --> 00:00:0{number},900\n{line}\n"
            for number, line in enumerate(lines)
        ]
        record.path.with_suffix(".en.srt").write_text("\n".join(cues))
        line = chance.choice(lines)
        words = line.strip("?").split()
        kept = sorted(chance.sample(range(len(words)), 4))
        name = record.path.name
        questions["seen"].append((record.captions[0], name))
        questions["said"].append((line, name))
        questions["part"].append((" ".join(words[place] for place in kept), name))
        questions["quoted"].append((f'"{" ".join(words[:6])}"', name))
    return questions


def first_answers(engine: Engine, questions: list[Question], modalities: str) -> float:
    """R@1 in per cent."""
    found = engine.search_many([query for query, _ in questions], 1, modalities=modalities)
    right = sum(
        bool(hits) and Path(hits[0].path).name == name
        for hits, (_, name) in zip(found, questions, strict=True)
    )
    return round(100 * right / len(questions), 2)


def measure(engine: Engine, questions: dict[str, list[Question]]) -> dict[str, Any]:
    """R@1 of each kind of question in pictures, in words and in both."""
    ways = {
        "pictures": "visual",
        "words": "speech,screen-text",
        "fused": "visual,speech,screen-text",
    }
    return {
        kind: {way: first_answers(engine, asked, modalities) for way, modalities in ways.items()}
        for kind, asked in questions.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--videos", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = make_questions(folder, arguments.videos, random.Random(arguments.seed))
        options = IndexOptions(device="cpu", workers=0)
        videos, store = folder / "world" / "videos", folder / "store"
        report = index_videos([videos], store, "demo", options=options)
        engine = Engine.open(store, device="cpu")
        recalls = measure(engine, questions)
        thresholds = {}
        for threshold in THRESHOLDS:
            retrieval.MIN_COVERAGE = threshold  # type: ignore[attr-defined]
            thresholds[str(threshold)] = {
                kind: first_answers(engine, questions[kind], "visual,speech,screen-text")
                for kind in UNSURE
            }
    for kind, row in recalls.items():
        print(f"{kind:<7}" + "".join(f"  {way} {value:6.2f}" for way, value in row.items()))
        if row["fused"] < max(row["pictures"], row["words"]) - 1:
            print(f"        fused is more than a point below the better of the two for {kind}")
    for threshold, row in thresholds.items():
        values = "".join(f"  {kind} {value:6.2f}" for kind, value in row.items())
        print(f"coverage >= {threshold}{values}")
    payload = {
        "videos": arguments.videos,
        "lines": report.transcript_lines,
        "default_threshold": transcripts.MIN_COVERAGE,
        "recall_at_1": recalls,
        "fused_by_threshold": thresholds,
    }
    print(save_result("words", payload, arguments.output))


if __name__ == "__main__":
    main()
