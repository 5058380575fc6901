"""Inflected words of languages other than English, by the stemmers of the Snowball project.

The full-text index stems English words. A query in another language is extended by the words of the
transcripts that have the same stem.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
MIN_TERM = 3
"""Characters that words of one stem have in common, at their beginning."""
_SHORT_I = re.compile("(?<=[\u0430\u0435\u0438\u043e\u0443\u044b\u044d\u044e\u044f])\u0438")


def words_with_stem(term: str, words: Sequence[str], stemmers: Sequence[str]) -> list[str]:
    """Return the words that have the same stem as ``term`` by one of the stemmers, sorted.

    Words have no case and accents; the stemmers need few of them.
    """
    # Importing the tables of all languages takes 0.1 s, which English transcripts do not need.
    import snowballstemmer

    texts = [_SHORT_I.sub("\u0439", word) for word in (term, *words)]
    similar: set[str] = set()
    # An installed PyStemmer is used in place of the Python code, and may know fewer languages.
    for name in set(stemmers).intersection(snowballstemmer.algorithms()):
        stem, *stems = snowballstemmer.stemmer(name).stemWords(texts)
        similar.update(word for word, other in zip(words, stems, strict=True) if other == stem)
    return sorted(similar - {term})
