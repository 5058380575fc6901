"""Search by meaning: windows of lines and the ranking with exact terms."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.meaning import (
    MAX_GAP,
    MeaningIndex,
    hybrid_strengths,
    make_windows,
    meaning_strengths,
)

TOPICS = {"dog": 0, "puppy": 0, "car": 1, "automobile": 1, "soup": 2, "broth": 2}


def encode_topics(texts: Sequence[str]) -> NDArray[np.float32]:
    """Synonyms share a direction; any other word points nowhere in particular."""
    vectors = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in text.split():
            row[TOPICS.get(word, 3 + zlib.crc32(word.encode()) % 61)] += (
                1 if word in TOPICS else 0.2
            )
        row /= max(float(np.linalg.norm(row)), 1e-6)
    return vectors


def lines_of(*texts: str, gap: float = 0.0) -> list[TranscriptLine]:
    return [
        TranscriptLine((2 + gap) * number, (2 + gap) * number + 2, text)
        for number, text in enumerate(texts)
    ]


def test_a_sentence_over_two_lines_is_whole_in_one_window() -> None:
    windows = make_windows(lines_of("where did you put", "the keys of the car", "I have no idea"))
    assert windows[0].text == "where did you put the keys of the car I have no idea"
    assert (windows[0].first, windows[0].last) == (0, 2)
    assert (windows[0].start, windows[0].end) == (0.0, 6.0)


def test_a_window_ends_before_it_is_too_long_and_before_a_pause() -> None:
    long = make_windows(lines_of("one two three", "four five six", "seven eight"), max_words=6)
    assert [window.text for window in long] == [
        "one two three four five six",
        "four five six seven eight",
        "seven eight",
    ]
    apart = make_windows(lines_of("one two", "three four", gap=MAX_GAP + 0.1))
    assert [window.text for window in apart] == ["one two", "three four"]


def test_a_line_longer_than_a_window_is_still_one_window() -> None:
    (window,) = make_windows(lines_of(" ".join(["word"] * 100)), max_words=10)
    assert window.first == window.last == 0


def test_no_lines_make_an_empty_index() -> None:
    index = MeaningIndex.build([], encode_topics)
    assert index.windows == []
    assert index.vectors.shape[0] == 0


def test_other_words_of_the_same_meaning_find_the_line() -> None:
    lines = lines_of("the dog sleeps", "my car is new", "we had soup", gap=MAX_GAP + 1)
    index = MeaningIndex.build(lines, encode_topics, batch=2)
    for query, right in (("a puppy", 0), ("an automobile", 1), ("some broth", 2)):
        assert int(index.cosines(encode_topics([query])[0]).argmax()) == right


def test_windows_and_vectors_must_be_as_many() -> None:
    windows = make_windows(lines_of("one"))
    with pytest.raises(ValueError, match="1 windows, 2 vectors"):
        MeaningIndex(windows, np.zeros((2, 3), np.float32))


def test_the_strength_by_meaning_does_not_depend_on_the_scale_of_the_cosines() -> None:
    cosines = np.array([0.1, 0.12, 0.11, 0.1, 0.4], np.float32)
    assert np.allclose(
        meaning_strengths(cosines), meaning_strengths(0.2 * cosines + 0.7), atol=1e-4
    )
    assert meaning_strengths(cosines).argmax() == 4
    assert meaning_strengths(np.full(5, 0.3, np.float32)).max() == 0.0
    assert np.allclose(meaning_strengths(np.array([0.5, -1.0], np.float32)), [0.5, 0.0])


def test_exact_terms_come_first_and_meaning_decides_without_them() -> None:
    cosines = np.array([0.2, 0.25, 0.1, 0.15, 0.1, 0.12], np.float32)
    exact = np.array([0.0, 0.0, 0.0, 0.9, 0.0, 0.0], np.float32)
    assert hybrid_strengths(exact, cosines).argmax() == 3
    assert hybrid_strengths(np.zeros(6, np.float32), cosines).argmax() == 1
