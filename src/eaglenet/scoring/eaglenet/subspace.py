"""The first product of a pair, made small: radii of real pairs lie in a small subspace.

A candidate is t + r * eps_i with the radius r = exp(s W + b), where s are the cosines with a dozen
frames: r is a smooth function of a dozen numbers, so the radii that occur are, to the last digits,
combinations r = sum_k a_k u_k of a few orthonormal vectors. Then

    (t + r * eps_i) V = t V + sum_k a_k ((u_k * eps_i) V),

and what stands in brackets is of the model alone. Of 21 x 512 multiply-adds a column K x 21 are
left. The u_k are found from the radii that are met; every radius is compared with its combination,
and where one differs by more than ``TOLERANCE`` more vectors are found, or, where that would take
too many, the whole product is made.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from eaglenet.scoring.eaglenet.plan import Plan

TOLERANCE = 1e-3
"""Largest part of a radius (its length) that may be left out. Only the weights of candidates come
from it; on the shipped demo model scores differ by 2e-7, as much as float32 rounds."""
MOST = 256
"""Vectors; beyond that, or half the dimensions, little is saved."""


@dataclass(frozen=True)
class _Basis:
    vectors: Tensor
    """``[k, dim]``, orthonormal."""
    products: Tensor
    """``[k, nodes * width]``: ``(u_k * eps_i) V`` of all nodes i."""


class RadiusSubspace:
    """Projects candidates of pairs; see the module. Safe in several threads."""

    def __init__(self, plan: Plan) -> None:
        self.noise = plan.noise
        self.matrix = plan.graph.layers[0].joined
        self._lock = threading.Lock()
        empty = plan.noise.new_zeros(0, plan.noise.shape[1])
        self._basis: _Basis | None = self._made(empty)

    @property
    def size(self) -> int | None:
        """Number of vectors; None where a few were not enough."""
        return None if self._basis is None else len(self._basis.vectors)

    def project(self, sentence: Tensor, spread: Tensor) -> Tensor | None:
        """``[videos, texts, nodes, width]`` of sentences ``[texts, dim]`` and their radii
        ``[videos, texts, dim]``; None where the radii fit no small subspace."""
        radii = spread.flatten(0, 1)
        basis = self._basis
        if basis is None or not self._fits(basis, radii):
            basis = self._extended(radii)
        if basis is None:
            return None
        nodes = len(self.noise)
        made = (radii @ basis.vectors.T) @ basis.products
        made = made.view(*spread.shape[:2], nodes, -1)
        return made.add_((sentence @ self.matrix)[None, :, None])

    def _fits(self, basis: _Basis, radii: Tensor) -> bool:
        left = radii - (radii @ basis.vectors.T) @ basis.vectors
        lengths = torch.linalg.vector_norm(radii, dim=-1)
        return bool((torch.linalg.vector_norm(left, dim=-1) <= TOLERANCE * lengths).all())

    def _extended(self, radii: Tensor) -> _Basis | None:
        """A basis that fits these radii too."""
        with self._lock:
            basis = self._basis
            if basis is None or self._fits(basis, radii):
                return basis
            known = basis.vectors.double()
            units = torch.nn.functional.normalize(radii.double(), dim=-1)
            left = units - (units @ known.T) @ known
            _, sizes, directions = torch.linalg.svd(left, full_matrices=False)
            # All that is left out of every radius together is less than may be of one.
            rest = sizes.square().flip(0).cumsum(0).flip(0).sqrt()
            added = directions[: int((rest > 0.3 * TOLERANCE).sum())]
            both = torch.cat([known, added - (added @ known.T) @ known])
            if len(both) > min(MOST, radii.shape[1] // 2):
                self._basis = None
            else:
                self._basis = self._made(torch.linalg.qr(both.T).Q.T.to(radii.dtype))
            return self._basis

    def _made(self, vectors: Tensor) -> _Basis:
        spread = (vectors[:, None] * self.noise).flatten(0, 1) @ self.matrix
        width = len(self.noise) * self.matrix.shape[1]
        return _Basis(vectors.contiguous(), spread.reshape(len(vectors), width).contiguous())
