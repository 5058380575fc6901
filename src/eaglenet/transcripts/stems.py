"""Inflected words of languages other than English, by the stemmers of the Snowball project.

The full-text index stems English words. A query in another language is extended by the words of the
transcripts that have the same stem.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian",
    "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian",
    "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian", "nb": "norwegian",
    "ne": "nepali", "nl": "dutch", "nn": "norwegian", "no": "norwegian", "pl": "polish",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
"""Stemmers by the code of a language, as transcript lines have it."""
MIN_TERM, MAX_TERM = 3, 40
"""Characters of words that are stemmed; words of one stem have the first ``MIN_TERM`` in common."""
MAX_STEMS = 1000
"""Words that are stemmed per query, for all its terms and languages; one takes up to 0.5 ms."""
MAX_CANDIDATES = 100
"""Words that are compared with a term in one language."""
_SHORT_I = re.compile("(?<=[\u0430\u0435\u0438\u043e\u0443\u044b\u044d\u044e\u044f])\u0438")

FindWords = Callable[[str, int], Sequence[str]]
"""Finds words of the transcripts with a prefix, at most so many."""


def words_with_stem(term: str, words: Sequence[str], stemmer: str) -> list[str]:
    """Return the words that have the same stem as ``term``.

    Words have no case and accents; the stemmers need few of them.
    """
    same = stem(term, stemmer)
    return [
        word
        for word in words
        if word != term and len(word) <= MAX_TERM and stem(word, stemmer) == same
    ]


def inflections(
    terms: Sequence[str], stemmers: Sequence[str], find_words: FindWords
) -> list[list[str]]:
    """Return the words of the transcripts with the stem of each term, in one of the languages.

    Whoever made a transcript chose its languages and words, so that the work is limited.
    """
    room = MAX_STEMS
    share = min(MAX_CANDIDATES, max(1, MAX_STEMS // (len(terms) * len(stemmers) or 1)))
    inflected: list[list[str]] = []
    for term in terms:
        similar: set[str] = set()
        for stemmer in stemmers if MIN_TERM <= len(term) <= MAX_TERM and term.isalpha() else ():
            if room <= 0:
                break
            unchanged = os.path.commonprefix([term, stem(term, stemmer)])  # noqa: RUF071
            # Some stemmers also change the letter before the ending (cheval, chevaux).
            words = find_words(term[: max(MIN_TERM, len(unchanged) - 1)], share)
            room -= 1 + len(words)
            similar.update(words_with_stem(term, words, stemmer))
        inflected.append(sorted(similar))
    return inflected


@lru_cache(maxsize=100_000)
def stem(word: str, stemmer: str) -> str:
    """Stem of a word; the word itself if there is no such stemmer."""
    # Importing the tables of all languages takes 0.1 s, which English transcripts do not need.
    import snowballstemmer

    # An installed PyStemmer is used in place of the Python code, and may know fewer languages.
    if stemmer not in snowballstemmer.algorithms():
        return word
    stemmed: str = snowballstemmer.stemmer(stemmer).stemWord(_SHORT_I.sub("\u0439", word))
    return stemmed
