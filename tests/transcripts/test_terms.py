"""Analysis of text in any script, for the index, queries and highlights."""

from __future__ import annotations

import random
import time

import pytest

from eaglenet.transcripts import stems
from eaglenet.transcripts.lines import Term, analyse, phrase_spans
from eaglenet.transcripts.stems import STEMMERS, inflections

LETTERS = dict(zip(map(ord, "0123456789"), "abcdefghij", strict=True))


def texts(text: str) -> list[str]:
    return [term.text for term in analyse(text).terms]


@pytest.mark.parametrize(
    ("indexed_text", "query"),
    [
        ("Die Stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("T\u00fcr", "tur"),
        ("don\u2019t", "don't"),
        ("\uff28\uff45\uff4c\uff4c\uff4f", "hello"),
        ("\u041c\u043e\u0441\u043a\u0432\u0430", "\u043c\u043e\u0441\u043a\u0432\u0430"),
        ("\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd", "\u05e9\u05dc\u05d5\u05dd"),
    ],
)
def test_case_accents_and_widths_do_not_matter(indexed_text: str, query: str) -> None:
    assert set(texts(query)) <= set(texts(indexed_text))


def test_chinese_is_found_by_any_two_characters_and_by_one() -> None:
    indexed_text = analyse("\u4ed6\u5f00\u7ea2\u8272\u6c7d\u8f66\u3002").index_text().split()
    assert {"\u6c7d\u8f66", "\u7ea2\u8272", "\u8272\u6c7d", "\u8f66"} <= set(indexed_text)
    assert "\u4ed6\u8f66" not in indexed_text


def test_scripts_beside_each_other_are_apart() -> None:
    assert texts("iPhone\u624b\u673a 15") == ["iphone", "\u624b\u673a", "15"]


def test_marks_stay_with_their_letters_where_they_tell_words_apart() -> None:
    assert texts("\u304c\u304e") != texts("\u304b\u304d")
    assert texts("\u0915\u093f\u0924\u093e\u092c") == ["\u0915\u093f\u0924\u093e\u092c"]


def test_terms_know_their_characters() -> None:
    text = "A  b\u00fcg\u00e9l, dogs"
    for term in analyse(text).terms:
        assert texts(text[term.start : term.end]) == [term.text]
    assert [term.text for term in analyse(text).alternatives] == ["dog"]


def test_a_phrase_is_found_where_its_terms_follow_each_other() -> None:
    terms = analyse("so it goes; it goes, so").terms
    assert phrase_spans(terms, ("it", "goes")) == [(3, 10), (12, 19)]
    assert phrase_spans(terms, ("goes", "goes")) == []
    assert phrase_spans(terms, ()) == []
    assert phrase_spans(analyse("keys, a table and keys").terms, ("table", "keys"), gap=1) == [
        (0, 4),
        (8, 13),
        (18, 22),
    ]
    assert phrase_spans(analyse("keys, a table and keys").terms, ("table", "keys"), gap=0) == []


def test_terms_near_each_other_take_linear_time() -> None:
    """A hostile transcript repeats the words of a query."""
    terms = [Term("ab"[number % 2], number, number + 1) for number in range(100_000)]
    began = time.process_time()
    assert len(phrase_spans(terms, ("a", "b"), gap=99)) == 100_000
    assert len(phrase_spans(terms, ("a", "c"), gap=99)) == 0
    assert time.process_time() - began < 10


def test_terms_near_each_other_are_those_of_every_window() -> None:
    generator = random.Random(0)
    for _ in range(500):
        letters = [generator.choice("abcdef") for _ in range(generator.randint(0, 25))]
        terms = [Term(letter, place, place + 1) for place, letter in enumerate(letters)]
        sought, gap = (
            set(generator.sample("abcdef", generator.randint(1, 4))),
            generator.randint(0, 8),
        )
        expected = {
            place
            for first in range(len(letters))
            if letters[first] in sought and sought <= set(letters[first : first + gap + 2])
            for place in range(first, min(first + gap + 2, len(letters)))
            if letters[place] in sought
        }
        spans = phrase_spans(terms, tuple(sought), gap)
        assert spans == [(place, place + 1) for place in sorted(expected)]


def test_every_stemmer_exists() -> None:
    import snowballstemmer

    assert set(STEMMERS.values()) <= set(snowballstemmer.algorithms())


def test_words_share_a_stem_in_one_of_the_languages() -> None:
    words = ["kind", "kinder", "kindern", "kindle"]

    def find(beginning: str, limit: int) -> list[str]:
        return [word for word in words if word.startswith(beginning)][:limit]

    assert inflections(["kindes", "und"], ["german", "italian"], find) == [words[:3], []]
    assert inflections(["kindes"], [], find) == [[]]
    assert inflections([], ["german"], find) == []


def test_words_that_a_transcript_planted_take_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stem_calls: list[str] = []

    def count(word: str, stemmer: str) -> str:
        stem_calls.append(word)
        return word[:4]

    monkeypatch.setattr(stems, "stem", count)

    def find(beginning: str, limit: int) -> list[str]:
        return [f"{beginning}{number:08}".translate(LETTERS) for number in range(limit)]

    # All terms of the longest query, with lines in every language.
    stemmers = sorted(set(STEMMERS.values()))
    inflections([f"word{letter}" for letter in LETTERS.values()] * 6, stemmers, find)
    inflections(["word"], ["german"], find)
    # A term is stemmed for its prefix, and again for the comparison.
    assert len(stem_calls) < 3 * stems.MAX_STEMS
    assert max(map(len, stem_calls)) <= stems.MAX_TERM


def test_words_longer_than_any_word_of_a_language_are_not_stemmed() -> None:
    long = "kind" + "er" * 30
    assert inflections(["kind", long], ["german"], lambda *_: [long, "kinder"]) == [["kinder"], []]
