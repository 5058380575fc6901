"""One analysis for what is stored, asked for and highlighted, in any script."""

from __future__ import annotations

import pytest

from eaglenet.transcripts.lines import analyse, phrase_spans
from eaglenet.transcripts.stems import STEMMERS, words_with_stem


def texts(text: str) -> list[str]:
    return [term.text for term in analyse(text).terms]


@pytest.mark.parametrize(
    ("stored", "asked"),
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
def test_case_accents_and_widths_do_not_matter(stored: str, asked: str) -> None:
    assert set(texts(asked)) <= set(texts(stored))


def test_chinese_is_found_by_any_two_characters_and_by_one() -> None:
    stored = analyse("\u4ed6\u5f00\u7ea2\u8272\u6c7d\u8f66\u3002").index_text().split()
    assert {"\u6c7d\u8f66", "\u7ea2\u8272", "\u8272\u6c7d", "\u8f66"} <= set(stored)
    assert "\u4ed6\u8f66" not in stored


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


def test_every_stemmer_exists() -> None:
    import snowballstemmer

    assert set(STEMMERS.values()) <= set(snowballstemmer.algorithms())


def test_words_share_a_stem_in_one_of_the_languages() -> None:
    words = ["kind", "kinder", "kindern", "kindle"]
    assert words_with_stem("kindes", words, ["german", "italian"]) == ["kind", "kinder", "kindern"]
    assert words_with_stem("kindes", words, []) == []
