"""A bank of typical sentences in a store: what each clip loses for being near to all of them.

The bank lies beside the manifest, which names it; only writers read it. The level of a clip is a
column of the snapshot's rows, computed when the clip is published and covered by their checksum.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.search.store.checks import file_check

FILES = "bank-*.npz"
MAX_BYTES = 2**30
SAME = 1e-5
"""Levels of one clip and bank on two machines differ by less."""


@dataclass(frozen=True)
class HubNote:
    """What a manifest says of the bank.

    source: where its sentences are from, in words. sentences: how many.
    weight, scale: w and a of :meth:`HubBank.levels`. file: its name in the store.
    """

    source: str
    sentences: int
    weight: float
    scale: float
    file: str

    def __post_init__(self) -> None:
        numbers = (self.weight, self.scale)
        if self.scale <= 0 or self.weight < 0 or not all(map(math.isfinite, numbers)):
            raise ValueError(f"a bank of weight {self.weight} and scale {self.scale}")
        if not re.fullmatch(r"bank-[0-9a-f]{32}\.npz", self.file):
            raise ValueError(f"a bank in {self.file!r:.60}")

    def __str__(self) -> str:
        count = f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"
        return f"{count} {self.source}, weight {self.weight:g}"


@dataclass(frozen=True, eq=False)
class HubBank:
    """Unit vectors of sentences; the sentences too, where they are known."""

    source: str
    vectors: NDArray[np.float32]
    weight: float
    scale: float
    texts: tuple[str, ...] = ()

    @cached_property
    def content(self) -> bytes:
        """Of its file: always the same bytes for the same bank."""
        stream = io.BytesIO()
        texts = np.frombuffer("\n".join(self.texts).encode(), np.uint8)
        numbers = np.array([self.weight, self.scale])
        np.savez(stream, vectors=self.vectors, numbers=numbers, texts=texts)
        return stream.getvalue()

    @property
    def note(self) -> HubNote:
        name = f"bank-{file_check(self.content)}.npz"
        return HubNote(self.source, len(self.vectors), self.weight, self.scale, name)

    @classmethod
    def from_bytes(cls, content: bytes, note: HubNote, dim: int) -> HubBank:
        """The bank that was noted; a ``ValueError`` where the bytes are another's."""
        if f"bank-{file_check(content)}.npz" != note.file:
            raise ValueError("it is not as it was written")
        with np.load(io.BytesIO(content)) as parts:
            vectors, texts = parts["vectors"], parts["texts"].tobytes().decode()
        if vectors.dtype != np.float32 or vectors.shape != (note.sentences, dim):
            raise ValueError(f"it holds {vectors.dtype} numbers of shape {vectors.shape}")
        sentences = tuple(texts.split("\n")) if texts else ()
        return cls(note.source, vectors, note.weight, note.scale, sentences)

    def levels(self, clips: NDArray[np.float32]) -> NDArray[np.float32]:
        r"""What each of the unit vectors ``[clips, dim]`` loses.

        .. math:: h(v) = \frac{w}{a} \log \frac{1}{K} \sum_k \exp(a \, b_k \cdot v)

        As ``layers.sentence_bank`` has it. Every clip is summed up by itself, in one order and in
        double precision: in whatever run and with whichever others it comes, its level is the same.
        """
        bank = self.vectors.astype(np.float64)
        scaled = self.scale * np.einsum("vd,kd->vk", clips.astype(np.float64), bank)
        most = scaled.max(axis=1)
        total = np.exp(scaled - most[:, None]).sum(axis=1)
        found = self.weight * (most + np.log(total) - math.log(len(bank))) / self.scale
        return np.asarray(found, np.float32)


def read_bank(content: bytes, note: HubNote, dim: int, location: str) -> HubBank:
    """:meth:`HubBank.from_bytes`, with an error that names the part and what mends it."""
    try:
        return HubBank.from_bytes(content, note, dim)
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise lost_bank(note, location, error) from error


def lost_bank(note: HubNote, location: str, reason: object) -> StoreError:
    return StoreError(
        f"{note.file} of {location} cannot be read ({reason}); what is searched stays as it is. "
        "Restore it, or name the bank again: "
        f"eaglenet index FOLDER --store {shell_quote(location)} --hubness own|off|FILE"
    )


def same_levels(one: Sequence[float] | NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether levels are those of the same bank, on this machine or another."""
    return bool(np.allclose(one, other, rtol=0, atol=SAME))
