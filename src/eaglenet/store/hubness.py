"""Hubness bank: texts whose average similarity is subtracted from the scores of every clip.

A clip that is similar to every text would be a hit for every query. Its hubness offset measures
that against a fixed bank of texts, when the clip is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEMPERATURE = 20.0
"""Scale of a bank whose texts were not used in training, as in the inverted softmax of QB-Norm."""
TOLERANCE = 1e-5
"""Tolerance between offsets of one clip and bank that are computed on two machines."""
CHUNK = 256
CLIPS, TEXTS = 16, 40
"""Clips and texts per product. BLAS is three times as fast as einsum. For larger products (16 x 40
x 384 numbers) OpenBLAS starts threads, which wait for each other while decoders use all cores."""


@dataclass(frozen=True, eq=False)
class HubnessBank:
    """Unit vectors of the texts, and the texts themselves if they are known.

    source: origin of the texts, for display. weight, scale: w and a of :meth:`offsets`.
    """

    source: str
    vectors: NDArray[np.float32]
    weight: float
    scale: float
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.weight, self.scale)
        if self.scale <= 0 or self.weight < 0 or not all(map(math.isfinite, numbers)):
            raise ValueError(f"a hubness bank of weight {self.weight} and scale {self.scale}")

    def __str__(self) -> str:
        count = f"{len(self.vectors)} text{'' if len(self.vectors) == 1 else 's'}"
        return f"{count} {self.source}, weight {self.weight:g}"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HubnessBank)
            and (self.source, self.weight, self.texts) == (other.source, other.weight, other.texts)
            # Runtimes and processors round the exponential of a learned scale differently.
            and math.isclose(self.scale, other.scale, rel_tol=TOLERANCE)
            and np.array_equal(self.vectors, other.vectors)
        )

    def offsets(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        r"""Return the hubness offset of each of the unit vectors ``[clips, dim]``.

        .. math:: h(v) = \frac{w}{a} \log \frac{1}{K} \sum_k \exp(a \, b_k \cdot v)

        Computed in double precision and in products of one shape, so that the number of clips has
        no effect: the order of the terms of a sum depends on the shape.
        """
        texts = _groups(self.vectors, TEXTS).transpose(0, 2, 1)  # [groups, dim, texts]
        parts = [np.zeros(0, np.float32)]
        for start in range(0, len(vectors), CHUNK):
            chunk = vectors[start : start + CHUNK]
            clips = _groups(chunk, CLIPS)[:, None]  # [groups, 1, clips, dim]
            cosines = (clips @ texts).transpose(0, 2, 1, 3).reshape(len(clips) * CLIPS, -1)
            logits = self.scale * cosines[: len(chunk), : len(self.vectors)]
            largest = logits.max(axis=1)
            total = np.exp(logits - largest[:, None]).sum(axis=1)
            mean = largest + np.log(total) - math.log(len(self.vectors))
            parts.append((self.weight * mean / self.scale).astype(np.float32))
        return np.concatenate(parts)

    def to_row(self) -> tuple[Any, ...]:
        """Return values for the table ``hubness``."""
        vectors = np.ascontiguousarray(self.vectors, np.float32).tobytes()
        return self.source, float(self.weight), float(self.scale), vectors, "\n".join(self.texts)

    @classmethod
    def from_row(cls, values: tuple[Any, ...], dim: int) -> HubnessBank:
        source, weight, scale, vectors, texts = values
        array = np.frombuffer(vectors, np.float32).reshape(-1, dim)
        return cls(source, array, weight, scale, tuple(texts.split("\n")) if texts else ())


def _groups(rows: NDArray[np.float32], size: int) -> NDArray[np.float64]:
    """Return rows in groups, ``[groups, size, dim]`` in float64; zeros fill the last one."""
    groups = np.zeros((-(-len(rows) // size), size, rows.shape[1]))
    groups.reshape(-1, rows.shape[1])[: len(rows)] = rows
    return groups
