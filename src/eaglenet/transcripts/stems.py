"""Inflected words of languages other than English, found with the stemmers of Snowball.

The full-text index stems English words. A query in another language is extended by transcript words
of the same stem.
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
"""Stemmers by the language code of transcript lines."""
MIN_TERM, MAX_TERM = 3, 40
"""Characters of words that are stemmed; words of one stem share the first ``MIN_TERM``."""
MAX_STEMS = 1000
"""Maximum words stemmed per query, for all its terms and languages; each takes up to 0.5 ms."""
MAX_CANDIDATES = 100
"""Maximum words that are compared with a term in one language."""
_SHORT_I = re.compile("(?<=[\u0430\u0435\u0438\u043e\u0443\u044b\u044d\u044e\u044f])\u0438")

FindWords = Callable[[str, int], Sequence[str]]
"""Returns at most a given number of transcript words with a prefix."""


def words_with_stem(term: str, words: Sequence[str], stemmer: str) -> list[str]:
    """Return the words that have the same stem as ``term``.

    Words are without case and accents, which the stemmers hardly need.
    """
    term_stem = stem(term, stemmer)
    return [
        word
        for word in words
        if word != term and len(word) <= MAX_TERM and stem(word, stemmer) == term_stem
    ]


def inflections(
    terms: Sequence[str], stemmers: Sequence[str], find_words: FindWords
) -> list[list[str]]:
    """Return, for each term, the transcript words with the same stem in one of the languages.

    The work is limited, since transcripts with their languages and words are untrusted.
    """
    num_left = MAX_STEMS
    limit = min(MAX_CANDIDATES, max(1, MAX_STEMS // (len(terms) * len(stemmers) or 1)))
    words_of_terms: list[list[str]] = []
    for term in terms:
        similar: set[str] = set()
        for stemmer in stemmers if MIN_TERM <= len(term) <= MAX_TERM and term.isalpha() else ():
            if num_left <= 0:
                break
            prefix = os.path.commonprefix([term, stem(term, stemmer)])  # noqa: RUF071
            # Some stemmers also change the letter before the ending (cheval, chevaux).
            words = find_words(term[: max(MIN_TERM, len(prefix) - 1)], limit)
            num_left -= 1 + len(words)
            similar.update(words_with_stem(term, words, stemmer))
        words_of_terms.append(sorted(similar))
    return words_of_terms


@lru_cache(maxsize=100_000)
def stem(word: str, stemmer: str) -> str:
    """Return the stem of a word; the word itself if there is no such stemmer."""
    # Importing the tables of all languages takes 0.1 s; English transcripts do not need them.
    import snowballstemmer

    # The library uses PyStemmer if it is installed, which may know fewer languages.
    if stemmer not in snowballstemmer.algorithms():
        return word
    result: str = snowballstemmer.stemmer(stemmer).stemWord(_SHORT_I.sub("\u0439", word))
    return result
