"""Vectors of the meaning of transcript lines, with the text tower of the packaged model `small`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from eaglenet.models.files import Array
from eaglenet.models.light_model import LightModel, unit
from eaglenet.models.word_pieces import UNKNOWN

MODEL = "small"
FORMAT = "windows 1"
"""Changed when windows are cut or vectors are made differently, so that all are made again."""
MAX_PIECES = 1.3
"""Maximum word pieces per word of a text that counts as English: 98% of English lines have fewer,
and Italian, German, French and Spanish lines have more. The tower knows only English: lines of
other languages all get similar vectors."""
UNKNOWN_PIECES = 3
"""Number of word pieces that an unknown word counts as."""


class MeaningEncoder:
    """Encodes English texts into unit vectors; texts of similar meaning have a large cosine.

    The mean vector of the texts in the hubness bank is subtracted from those of the text tower,
    because what all texts have in common does not distinguish them.
    """

    def __init__(self, model: LightModel) -> None:
        self.model = model

    @classmethod
    def open(cls) -> MeaningEncoder:
        return cls(LightModel.open(MODEL))

    @cached_property
    def identity(self) -> str:
        """Name and version of the vectors, as a store keeps it."""
        return f"{FORMAT} {MODEL} {self.model.identity}"

    @property
    def dim(self) -> int:
        return self.model.dim

    def reads(self, text: str) -> bool:
        """Return whether a text is in the language of the tower.

        >>> encoder = MeaningEncoder.open()
        >>> encoder.reads("a man drives a car"), encoder.reads("ein Mann f\u00e4hrt Auto")
        (True, False)
        """
        tokenizer = self.model.text.tokenizer
        words = tokenizer.words(text)
        unknown = tokenizer.vocabulary[UNKNOWN]
        num_pieces = sum(UNKNOWN_PIECES if unknown in word else len(word) for word in words)
        return bool(words) and num_pieces <= MAX_PIECES * len(words)

    def encode(self, texts: Sequence[str]) -> Array:
        """Unit vectors ``[texts, dim]``."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return unit(unit(self.model.encode_texts(texts)) - self._mean)

    @cached_property
    def _mean(self) -> Array:
        bank = self.model.bank
        if bank is None:
            return np.zeros(self.dim, np.float32)
        mean: Array = bank.vectors.mean(axis=0)
        return mean
