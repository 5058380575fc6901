"""Search by meaning: windows of lines, their encoder, and their strength with exact terms."""

from __future__ import annotations

import numpy as np
import pytest

from eaglenet.models.light_model import MeaningEncoder
from eaglenet.transcripts.lines import (
    MAX_GAP,
    MEANING_WEIGHT,
    MIN_COSINE,
    TranscriptLine,
    chance_cosine,
    hybrid_strength,
    make_windows,
    meaning_strength,
)


@pytest.fixture(scope="module")
def encoder() -> MeaningEncoder:
    return MeaningEncoder.open()


def lines_of(*texts: str, gap: float = 0.0) -> list[TranscriptLine]:
    return [
        TranscriptLine((2 + gap) * number, (2 + gap) * number + 2, text)
        for number, text in enumerate(texts)
    ]


def test_a_sentence_over_two_lines_is_whole_in_one_window() -> None:
    windows = make_windows(lines_of("where did you put", "the keys of the car", "I have no idea"))
    (window,) = windows
    assert window.text == "where did you put the keys of the car I have no idea"
    assert (window.first, window.last) == (0, 2)
    assert (window.start, window.end) == (0.0, 6.0)


def test_windows_overlap_by_half_and_end_before_a_pause() -> None:
    texts = ("one two", "three four", "five six", "seven eight")
    long = make_windows(lines_of(*texts), max_words=4)
    assert [window.text for window in long] == [
        "one two three four",
        "three four five six",
        "five six seven eight",
    ]
    apart = make_windows(lines_of("one two", "three four", gap=MAX_GAP + 0.1))
    assert [window.text for window in apart] == ["one two", "three four"]


@pytest.mark.parametrize("seed", range(5))
def test_every_line_is_in_a_window_and_no_window_in_another(seed: int) -> None:
    generator = np.random.default_rng(seed)
    clock, lines = 0.0, []
    for count in generator.integers(0, 45, 200):
        clock += float(generator.choice([0.1, 1.0, 6.0]))
        lines.append(TranscriptLine(clock, clock + 1, " ".join(["word"] * count)))
    windows = make_windows(lines)
    spans = [(window.first, window.last) for window in windows]
    assert {line for first, last in spans for line in range(first, last + 1)} == set(range(200))
    assert spans == sorted(set(spans))
    lasts = [last for _, last in spans]
    assert lasts == sorted(set(lasts))
    assert all(len(window.text.split()) <= 32 or window.first == window.last for window in windows)


def test_no_lines_and_lines_longer_than_a_window() -> None:
    assert make_windows([]) == []
    (window,) = make_windows(lines_of(" ".join(["word"] * 100)), max_words=10)
    assert window.first == window.last == 0


def test_other_words_of_the_same_meaning_are_near(encoder: MeaningEncoder) -> None:
    lines = ["the dog ran away", "interest rates went up again", "add salt and let it simmer"]
    questions = ["a pet escaped", "borrowing money is more expensive", "cooking instructions"]
    cosines = encoder.encode(questions) @ encoder.encode(lines).T
    assert cosines.argmax(axis=1).tolist() == [0, 1, 2]
    assert np.allclose(np.linalg.norm(encoder.encode(lines), axis=1), 1, atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dim)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("who took my umbrella", True),
        ("Caution, wet floor!", True),
        ("il vecchio guardiano del faro ha perso le chiavi", False),
        ("der Hund wurde aus dem Fluss gerettet", False),
        ("\u7ea2\u8272\u6c7d\u8f66", False),
        ("\u043d\u0430 \u043c\u043e\u0440\u0435", False),
        ("", False),
        ("\u266a \u266a", False),
    ],
)  # fmt: skip
def test_only_english_is_encoded(encoder: MeaningEncoder, text: str, is_read: bool) -> None:
    assert encoder.reads(text) is is_read


def test_exact_terms_come_first_and_meaning_decides_without_them() -> None:
    strengths = [meaning_strength(cosine) for cosine in (-1, MIN_COSINE - 0.01, 0.4, 0.8, 1.0)]
    assert strengths == [0, 0, pytest.approx(0.375), MEANING_WEIGHT, MEANING_WEIGHT]
    assert hybrid_strength(0.6, 0.0) == pytest.approx(0.6)
    assert hybrid_strength(0.0, 0.3) == pytest.approx(0.3)
    assert 0.9 < hybrid_strength(0.9, 0.3) < hybrid_strength(0.9, 0.5) < 1
    assert hybrid_strength(0.9, 0.0) > hybrid_strength(0.0, MEANING_WEIGHT)


def test_more_windows_must_be_nearer_not_to_be_chance() -> None:
    limits = [chance_cosine(count) for count in (0, 160, 1_000, 100_000)]
    assert limits[0] == limits[1] == pytest.approx(0.5)
    assert limits == sorted(limits)
    assert limits[-1] < 1
