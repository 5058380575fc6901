"""Speech recognition on recordings with known text: word errors, time, memory and search.

    python benchmarks/speech.py --model FOLDER            # Whisper base in CTranslate2's format
    python benchmarks/speech.py --model FOLDER --minutes 2 --save

Debian's voices (``apt-get install flite festival festvox-italp16k``) read generated sentences.
Films are read chunk by chunk, as by ``eaglenet index --listen``. For the search, the recognised
lines are written as subtitles. A known line counts as found if the best hit for its first five
words overlaps with it in time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import save_result
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.indexing.recognition import ChunkRequest, SpeechRecognizer
from eaglenet.search.engine import Engine
from eaglenet.transcripts.lines import TranscriptLine, analyse
from eaglenet.transcripts.speech import RATE
from eaglenet.video.audio import Samples
from eaglenet.video.decoding import probe
from talk import SpokenLine, make_music, make_noise, make_sentences, mix, speak, write_film

LEVELS = (20, 10, 5)
"""Level of the speech above the noise or music, in decibels."""
QUERY_WORDS = 5
SENTENCE_SECONDS = 4.8
"""Mean length of a sentence with its pause."""


def word_errors(reference: list[str], words: list[str]) -> int:
    """Count substitutions, insertions and deletions between two lists of words."""
    row = list(range(len(words) + 1))
    for number, reference_word in enumerate(reference, 1):
        previous, row[0] = row[0], number
        for column, word in enumerate(words, 1):
            cost = previous + (reference_word != word)
            previous = row[column]
            row[column] = min(cost, row[column] + 1, row[column - 1] + 1)
    return row[-1]


def words_of(text: str) -> list[str]:
    """Split text into folded words, as the search does."""
    return [term.text for term in analyse(text).terms]


def make_films(folder: Path, minutes: float, short: int) -> dict[str, list[SpokenLine]]:
    """Write all films; return the lines that are spoken in each."""
    films: dict[str, list[SpokenLine]] = {}

    def add(name: str, samples: Samples, lines: list[SpokenLine]) -> None:
        write_film(folder / f"{name}.mp4", samples, len(samples) / RATE)
        films[name] = lines

    if short:
        samples, lines = speak(make_sentences(short, seed=1))
        add("clean", samples, lines)
        for level in LEVELS:
            add(f"noise_{level}", mix(samples, make_noise(len(samples)), level), lines)
            add(f"music_{level}", mix(samples, make_music(len(samples)), level), lines)
        italian, italian_lines = speak(make_sentences(short, "it"), "it")
        add("italian", italian, italian_lines)
        add("italian_noise_10", mix(italian, make_noise(len(italian)), 10), italian_lines)
        minute = 60 * RATE
        add("silence", np.zeros(minute, np.float32), [])
        add("room", 1e-3 * make_noise(minute, 3), [])
        add("only_noise", 0.3 * make_noise(minute, 4), [])
        add("only_music", 0.5 * make_music(minute, 5), [])
        write_film(folder / "no_audio.mp4", None, 10.0)
        films["no_audio"] = []
    if minutes:
        samples, lines = speak(make_sentences(round(minutes * 60 / SENTENCE_SECONDS)))
        add("talk", samples, lines)
    return films


def transcribe(
    path: Path, recognizer: SpeechRecognizer, seconds: float
) -> tuple[list[TranscriptLine], float]:
    """Transcribe a film chunk by chunk; return its lines and the processor seconds."""
    process_start = time.process_time()
    lines: list[TranscriptLine] = []
    start = 0.0
    while True:
        end = start + recognizer.seconds
        is_last = end >= seconds
        request = ChunkRequest(path.name, str(path), start, min(end, seconds), is_last, seconds)
        lines += recognizer.read(request, recognizer.decode(request)).lines
        if is_last:
            return lines, time.process_time() - process_start
        start = end


def write_subtitles(path: Path, lines: list[TranscriptLine]) -> None:
    """Write lines as an SRT file."""

    def stamp(seconds: float) -> str:
        whole, part = divmod(round(seconds * 1000), 1000)
        return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02},{part:03}"

    rows = (
        f"{number}\n{stamp(line.start)} --> {stamp(line.end)}\n{line.text}\n"
        for number, line in enumerate(lines, 1)
    )
    path.write_text("\n".join(rows), "utf-8")


def measure_words(spoken_lines: list[SpokenLine], lines: list[TranscriptLine]) -> dict[str, Any]:
    """Return the word error rate, or the lines that were invented if nobody speaks."""
    if not spoken_lines:
        return {"invented_lines": len(lines), "invented": [line.text for line in lines][:5]}
    reference = words_of(" ".join(line.sentence.text for line in spoken_lines))
    errors = word_errors(reference, words_of(" ".join(line.text for line in lines)))
    languages = sorted({line.language for line in lines})
    rate = round(100 * errors / len(reference), 1)
    return {"words": len(reference), "word_error_rate": rate, "languages": languages}


def measure_search(engine: Engine, name: str, spoken_lines: list[SpokenLine]) -> dict[str, int]:
    """Count the lines whose first words find them, and those that start within a second."""
    first = timely = 0
    for line in spoken_lines:
        query = " ".join(line.sentence.text.split()[:QUERY_WORDS])
        hits = engine.search(query, 1, modalities=("speech",), path=f"*{name}.mp4")
        if not hits or not hits[0].transcript:
            continue
        match = hits[0].transcript[0]
        first += match.start < line.end and match.end > line.start
        timely += abs(match.start - line.start) <= 1.0
    return {"lines": len(spoken_lines), "found_first": first, "within_a_second": timely}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a Whisper model")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of the long talk")
    parser.add_argument(
        "--short", type=int, default=6, help="sentences of each other film; 0: the talk only"
    )
    parser.add_argument("--save", action="store_true", help="write results/speech-cpu.json")
    options = parser.parse_args()
    recognizer = SpeechRecognizer(options.model, "cpu")
    recognizer.load()
    with tempfile.TemporaryDirectory() as temporary:
        videos = Path(temporary) / "films"
        videos.mkdir()
        films = make_films(videos, options.minutes, options.short)
        report: dict[str, Any] = {"threads": os.environ.get("OMP_NUM_THREADS"), "films": {}}
        transcripts = {}
        for name in films:
            path = videos / f"{name}.mp4"
            seconds = probe(path).duration
            lines, processor = transcribe(path, recognizer, seconds)
            transcripts[name] = lines
            if lines:
                write_subtitles(path.with_suffix(".srt"), lines)
            report["films"][name] = {
                "seconds": round(seconds, 1),
                "core_minutes_per_hour": round(processor / seconds * 60, 1),
                "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                **measure_words(films[name], lines),
            }
            print(name, json.dumps(report["films"][name]), flush=True)
        index_options = IndexOptions(workers=0)
        index_videos([videos], Path(temporary) / "store", "small", options=index_options)
        engine = Engine.open(Path(temporary) / "store")
        for name, spoken_lines in films.items():
            if spoken_lines:
                report["films"][name] |= measure_search(engine, name, spoken_lines)
                print(name, json.dumps(report["films"][name]), flush=True)
    if options.save:
        save_result("speech" if options.short else "speech-talk", report)


if __name__ == "__main__":
    main()
