"""Cheaper projection of candidates: radii of real pairs lie in a small subspace.

A candidate is t + r * eps_i with the radius r = exp(s W + b), where s are the cosines with a dozen
frames: r is a smooth function of a dozen numbers, so the radii that occur are, to the last digits,
combinations r = sum_k a_k u_k of a few orthonormal vectors. Then

    (t + r * eps_i) V = t V + sum_k a_k ((u_k * eps_i) V),

and the bracket depends on the model only: K x 21 multiply-adds per column instead of 21 x 512. The
u_k are computed from the radii that occur. Every radius is compared with its combination; if one
differs by more than ``TOLERANCE``, vectors are added, or, if there would be too many, the whole
product is computed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from eaglenet.scoring.eaglenet.plan import Plan

TOLERANCE = 1e-3
"""Largest fraction of a radius (its length) that may be missing. It affects only the weights of
candidates; scores of the demo model differ by 2e-7, which is float32 rounding."""
MAX_VECTORS = 256
"""Beyond this, or half the dimensions, little is saved."""


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
        self._basis: _Basis | None = self._make_basis(empty)

    @property
    def size(self) -> int | None:
        """Number of vectors; None if the radii need too many."""
        return None if self._basis is None else len(self._basis.vectors)

    def project(self, sentence: Tensor, spread: Tensor) -> Tensor | None:
        """``[videos, texts, nodes, width]`` of sentences ``[texts, dim]`` and their radii
        ``[videos, texts, dim]``; None if the radii fit no small subspace."""
        radii = spread.flatten(0, 1)
        basis = self._basis
        if basis is None or not self._fits(basis, radii):
            basis = self._extend(radii)
        if basis is None:
            return None
        nodes = len(self.noise)
        projections = (radii @ basis.vectors.T) @ basis.products
        projections = projections.view(*spread.shape[:2], nodes, -1)
        return projections.add_((sentence @ self.matrix)[None, :, None])

    def _fits(self, basis: _Basis, radii: Tensor) -> bool:
        left = radii - (radii @ basis.vectors.T) @ basis.vectors
        lengths = torch.linalg.vector_norm(radii, dim=-1)
        return bool((torch.linalg.vector_norm(left, dim=-1) <= TOLERANCE * lengths).all())

    def _extend(self, radii: Tensor) -> _Basis | None:
        """Extend the basis so that it fits these radii too."""
        with self._lock:
            basis = self._basis
            if basis is None or self._fits(basis, radii):
                return basis
            vectors = basis.vectors.double()
            units = torch.nn.functional.normalize(radii.double(), dim=-1)
            left = units - (units @ vectors.T) @ vectors
            _, sizes, directions = torch.linalg.svd(left, full_matrices=False)
            # The error of all radii together is less than the tolerance of one.
            rest = sizes.square().flip(0).cumsum(0).flip(0).sqrt()
            new_vectors = directions[: int((rest > 0.3 * TOLERANCE).sum())]
            both = torch.cat([vectors, new_vectors - (new_vectors @ vectors.T) @ vectors])
            if len(both) > min(MAX_VECTORS, radii.shape[1] // 2):
                self._basis = None
            else:
                self._basis = self._make_basis(torch.linalg.qr(both.T).Q.T.to(radii.dtype))
            return self._basis

    def _make_basis(self, vectors: Tensor) -> _Basis:
        spread = (vectors[:, None] * self.noise).flatten(0, 1) @ self.matrix
        width = len(self.noise) * self.matrix.shape[1]
        return _Basis(vectors.contiguous(), spread.reshape(len(vectors), width).contiguous())
